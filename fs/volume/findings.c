/* findings.c: see findings.h. */
#include "fs/volume/findings.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "fs/volume/json.h"

void findings_add(struct findings *l, const struct finding *f, const char *fmt, ...)
{
    struct finding row = *f;
    va_list ap;
    l->count[f->fate]++;
    va_start(ap, fmt);
    if (vasprintf(&row.text, fmt, ap) < 0)
        row.text = NULL;
    va_end(ap);
    row.path = f->path ? strdup(f->path) : NULL;
    row.key = f->key ? strdup(f->key) : NULL;
    if (l->tell)
        l->tell(l->arg, &row);
    if (l->n == l->cap && l->n < FINDINGS_MAX) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct finding *more = realloc(l->row, cap * sizeof *more);
        if (more) {
            l->row = more;
            l->cap = cap;
        }
    }
    if (l->n < l->cap && l->n < FINDINGS_MAX) {
        l->row[l->n++] = row;
        return;
    }
    free(row.text);
    free(row.path);
    free(row.key);
}

void findings_done(struct findings *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->row[i].text);
        free(l->row[i].path);
        free(l->row[i].key);
    }
    free(l->row);
    l->row = NULL;
    l->n = l->cap = 0;
}

const char *finding_fate_text(enum finding_fate f)
{
    static const char *const text[] = {"told", "healed", "quarantined", "left"};
    return text[f];
}

void finding_print(const struct finding *f, FILE *out)
{
    for (const char *p = f->text ? f->text : f->kind; *p; p++)
        (void)fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, out);
    if (f->fate != FATE_TOLD)
        fprintf(out, " [%s]", finding_fate_text(f->fate));
    (void)fputc('\n', out);
}

void findings_json(const struct findings *l, FILE *out)
{
    (void)fputc('[', out);
    for (size_t i = 0; i < l->n; i++) {
        const struct finding *f = &l->row[i];
        fprintf(out, "%s\n {\"kind\":\"%s\",\"fate\":\"%s\",\"inode\":%llu,\"path\":", i ? "," : "",
                f->kind, finding_fate_text(f->fate), (unsigned long long)f->ino);
        json_string(out, f->path);
        fprintf(out, ",\"offset\":%llu,\"bytes\":%llu,\"key\":", (unsigned long long)f->off,
                (unsigned long long)f->len);
        json_string(out, f->key);
        (void)fputs(",\"text\":", out);
        json_string(out, f->text);
        (void)fputc('}', out);
    }
    (void)fputc(']', out);
}
