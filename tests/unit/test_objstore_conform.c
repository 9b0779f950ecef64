/* One body of tests over every backend: what callers may rely on, whatever the store is. */
#include <criterion/criterion.h>
#include "fs/base/bounds.h"
#include "tests/support/objconform.h"

static void run_kind(enum store_kind kind)
{
    struct objtest t;
    ot_prepare(&t, kind);
    ot_open(&t);
    objconform_all(t.os);
    ot_done(&t);
}

Test(conform, memory_store)
{
    run_kind(STORE_MEM);
}

Test(conform, directory_store)
{
    run_kind(STORE_DIR);
}

/* Everything at once: faults of every kind, random cancels, and a close while much is under way.
 * Each request ends exactly once. */
static void storm(enum store_kind kind, unsigned seed)
{
    enum { N = 300 };
    struct objtest t;
    struct ot_async *a = calloc(N, sizeof *a);
    static char bytes[20000], sink[N][20000];
    static char key[N][24];
    char why[300];
    srand(seed);
    fprintf(stderr, "storm: seed %u\n", seed);
    ot_prepare(&t, kind);
    ot_open(&t);
    cr_assert_eq(fault_plan_set(t.os,
                                "fail op=put nth=3 count=5 err=reset\n"
                                "fail op=get nth=5 count=9 truncate=7000\n"
                                "fail op=put nth=20 count=30 err=503\n"
                                "fail op=head nth=2 count=3 stall\n"
                                "fail op=get nth=40 count=20 delay=3\n"
                                "fail op=any nth=250 count=40 err=500\n"
                                "fail op=put nth=60 count=5 lost-reply\n",
                                why, sizeof why),
                 0, "%s", why);
    for (int i = 0; i < N; i++) {
        snprintf(key[i], sizeof key[i], "storm/%d/%d", rand() % 5, rand() % 20);
        unsigned urgent = rand() % 3 ? 0 : OBJ_URGENT;
        switch (rand() % 4) {
        case 0:
            ot_start(t.os, &a[i], OBJ_GET, key[i], urgent, sink[i], sizeof sink[i]);
            break;
        case 1:
            ot_start(t.os, &a[i], OBJ_HEAD, key[i], urgent, NULL, 0);
            break;
        case 2:
            ot_start(t.os, &a[i], OBJ_DELETE, key[i], urgent, NULL, 0);
            break;
        default:
            ot_start(t.os, &a[i], OBJ_PUT, key[i], urgent, bytes, sizeof bytes);
        }
        if (i % 7 == 3) {
            int k = rand() % (i + 1);
            if (!atomic_load(&a[k].done))
                obj_cancel(t.os, &a[k].r);
        }
        if (i % 16 == 0)
            ot_sleep_ms(1);
    }
    ot_sleep_ms(seed % 30);
    ot_shut(&t);
    for (int i = 0; i < N; i++)
        cr_assert_eq(atomic_load(&a[i].done), 1, "request %d ended %d times", i,
                     atomic_load(&a[i].done));
    free(a);
    ot_done(&t);
}

Test(conform, every_request_ends_once_whatever_happens_directory)
{
    for (unsigned seed = 1; seed <= 5; seed++)
        storm(STORE_DIR, seed * 7);
}

Test(conform, every_request_ends_once_whatever_happens_memory)
{
    for (unsigned seed = 1; seed <= 5; seed++)
        storm(STORE_MEM, seed * 7);
}
