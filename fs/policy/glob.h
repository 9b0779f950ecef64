/* glob.h: patterns of paths, in the way of .gitignore and .editorconfig; pure functions, bytes, no locale.
 *
 *   no slash      is compared with the last component, in any directory: *.index
 *   a slash       is compared with the whole path from the root of the mount: kafka/x-?/0*.log (a slash at
 *                 the beginning only says this: /MANIFEST)
 *   * ? [...]     as in fnmatch(3), never across a slash; a leading dot is nothing special; \ takes the next
 *                 byte as it is
 *   **            as a whole component: any number of directories, none too; at the end: everything below
 *
 * Paths are written without a slash at the beginning: "topic/dir/name".
 */
#ifndef SLUICE_POLICY_GLOB_H
#define SLUICE_POLICY_GLOB_H

#include <stdbool.h>
#include <stddef.h>

enum { GLOB_BYTES_MAX = 1024, GLOB_PARTS_MAX = 64 };

struct glob {
    bool base; /* compare the last component alone */
    unsigned n;
    char **part; /* in one allocation, with their text; "**": any number of directories */
};

/* 0; -EINVAL with `why`: what is wrong and the remedy, a literal; -ENOMEM. */
int glob_compile(const char *text, struct glob *ret, const char **why);
void glob_done(struct glob *g);
bool glob_matches(const struct glob *g, const char *path);

#endif
