/* dirtest.h: looking into the folder of a directory store, for its unit tests; on top of objtest.h. */
#ifndef SLUICE_TEST_DIRTEST_H
#define SLUICE_TEST_DIRTEST_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include "tests/support/objtest.h"

/* t->conf.url.path is `dir`/store. */
static inline void path_of(const struct objtest *t, char *buf, size_t cap, const char *rel)
{
    snprintf(buf, cap, "%s/store/%s", t->dir, rel);
}

/* Pages of a file that are in the page cache. */
static inline size_t resident_pages(const char *path)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    cr_assert_geq(fd, 0);
    cr_assert_eq(fstat(fd, &st), 0);
    size_t pages = ((size_t)st.st_size + 4095) / 4096, n = 0;
    unsigned char *vec = malloc(pages);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert_neq(p, MAP_FAILED);
    cr_assert_eq(mincore(p, (size_t)st.st_size, vec), 0);
    for (size_t i = 0; i < pages; i++)
        n += vec[i] & 1;
    munmap(p, (size_t)st.st_size);
    close(fd);
    free(vec);
    return n;
}

/* Temporary files whose names begin so. */
static inline int count_tmp(const struct objtest *t, const char *prefix)
{
    char path[512];
    path_of(t, path, sizeof path, ".tmp");
    DIR *d = opendir(path);
    int n = 0;
    cr_assert_not_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += !strncmp(e->d_name, prefix, strlen(prefix));
    closedir(d);
    return n;
}

#endif
