/* findings.h: what a rebuild or a check found, for people and for programs. A list in memory, bounded:
 * beyond FINDINGS_MAX only the count goes on. One thread at a time. */
#ifndef SLUICE_VOLUME_FINDINGS_H
#define SLUICE_VOLUME_FINDINGS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { FINDINGS_MAX = 100000 };

/* What became of it. */
enum finding_fate {
    FATE_TOLD,        /* a fact to know; nothing to mend */
    FATE_HEALED,      /* mended from another copy */
    FATE_QUARANTINED, /* set aside, nothing deleted */
    FATE_LEFT         /* damage that is still there */
};

struct finding {
    const char *kind; /* a word of ours; static */
    enum finding_fate fate;
    uint64_t ino, off, len;  /* ino 0: of no file; len 0: no range */
    char *path, *key, *text; /* owned; path (from the root) and key may be NULL */
};

struct findings {
    struct finding *row;
    size_t n, cap;
    uint64_t count[4];                                /* by fate, those not kept included */
    void (*tell)(void *arg, const struct finding *f); /* at once; may be NULL */
    void *arg;
};

/* Copies path, key and the text. Memory that has run out is counted like the bound. */
void findings_add(struct findings *l, const struct finding *f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void findings_done(struct findings *l);

const char *finding_fate_text(enum finding_fate f);
/* One line, control characters replaced. */
void finding_print(const struct finding *f, FILE *out);
/* A JSON array. */
void findings_json(const struct findings *l, FILE *out);

#endif
