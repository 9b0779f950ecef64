/* fuzz_kv_journal.c: replay of arbitrary journal files. The first byte says how many files the rest
 * is cut into. Batches must come in order, beginning after the mark, whatever the bytes are. */
#include "fs/meta/kv_priv.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_batch(void *arg, const struct kj_batch *b)
{
    uint64_t *last = arg;
    if (b->seq != *last + 1)
        abort();
    struct kj_op op;
    size_t pos = 0;
    int r;
    while ((r = kj_op_next(b->payload, b->len, &pos, &op)) > 0)
        if (op.key + op.klen > b->payload + b->len || op.val + op.vlen > b->payload + b->len)
            abort();
    if (r < 0)
        return r;
    *last = b->seq;
    return 0;
}

static void on_origin(void *arg, const struct kv_origin *o)
{
    (void)arg;
    (void)o;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t files = 1 + data[0] % 3;
    uint64_t mark = data[1] % 4, last = mark;
    data += 2;
    size -= 2;
    char why[128];
    struct kj_replay r = {.mark = mark,
                          .expected = mark + 1,
                          .batch = on_batch,
                          .origin = on_origin,
                          .arg = &last,
                          .why = why,
                          .why_cap = sizeof why};
    for (size_t i = 0; i < files; i++) {
        size_t from = size * i / files, to = size * (i + 1) / files;
        uint64_t first, durable, limit = UINT64_MAX;
        if (i + 1 < files)
            (void)(kj_file_head_decode(data + to, size - to, i + 2, &first, &durable) == 0 &&
                   (limit = first));
        if (kj_replay_file(&r, i + 1, data + from, to - from, limit) < 0)
            break;
        if (r.expected != last + 1)
            abort();
    }
    return 0;
}
