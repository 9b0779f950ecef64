/* The probe believes effects, not answers, and says in words what is to be mended. */
#include <criterion/criterion.h>
#include "tests/support/objtest.h"

static struct objtest t;

static void open_mem(void)
{
    ot_prepare(&t, STORE_MEM);
    ot_open(&t);
}

static void open_dir(void)
{
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
}

static void done(void)
{
    ot_done(&t);
}

static int probe(struct store_caps *caps, char *why)
{
    return store_probe(t.os, 5000, caps, why, 400);
}

Test(probe, memory_store_can_do_everything, .init = open_mem, .fini = done)
{
    struct store_caps c;
    char why[400];
    cr_assert_eq(probe(&c, why), 0, "%s", why);
    cr_assert(c.if_absent && c.if_match && c.checksum && c.range);
    cr_assert_eq(mem_count(t.os), 0, "nothing is left behind");
}

Test(probe, directory_store_can_do_everything, .init = open_dir, .fini = done)
{
    struct store_caps c;
    struct ot_rows rows;
    char why[400];
    cr_assert_eq(probe(&c, why), 0, "%s", why);
    cr_assert(c.if_absent && c.if_match && c.checksum && c.range);
    cr_assert_eq(ot_list(t.os, "", NULL, NULL, 0, &rows, NULL), 0);
    cr_assert_eq(rows.n, 0);
}

Test(probe, weak_stores_are_found_out, .init = open_mem, .fini = done)
{
    struct store_caps c;
    char why[400];
    for (unsigned weak = 0; weak < 16; weak++) {
        mem_weaken(t.os, weak);
        cr_assert_eq(probe(&c, why), 0, "%s", why);
        cr_assert_eq(c.if_absent, !(weak & MEM_NO_IF_ABSENT), "%x", weak);
        cr_assert_eq(c.if_match, !(weak & MEM_NO_IF_MATCH), "%x", weak);
        cr_assert_eq(c.checksum, !(weak & MEM_NO_CHECKSUM), "%x", weak);
        cr_assert_eq(c.range, !(weak & MEM_NO_RANGE), "%x", weak);
        cr_assert_eq(mem_count(t.os), 0);
    }
}

/* The conditional PUT took effect, its answer was lost, the retry reports a conflict or success. */
Test(probe, a_lost_answer_fakes_no_refusal, .init = open_mem, .fini = done)
{
    struct store_caps c;
    char why[400];
    mem_weaken(t.os, MEM_NO_IF_ABSENT);
    cr_assert_eq(fault_plan_set(t.os, "fail op=put nth=2 lost-reply", why, sizeof why), 0);
    cr_assert_eq(probe(&c, why), 0, "%s", why);
    cr_assert_not(c.if_absent);
}

Test(probe, failures_are_explained_and_nothing_is_left, .init = open_mem, .fini = done)
{
    static const struct {
        const char *plan, *say;
        int err;
    } cases[] = {{"fail err=nobucket", "create it", -ENODEV},
                 {"fail err=403", "access denied", -EACCES},
                 {"fail op=delete err=403", "access denied", -EACCES},
                 {"fail op=get nth=2 err=403", "access denied", -EACCES},
                 {"fail op=put err=ENOSPC", "full", -ENOSPC},
                 {"fail op=put stall", "in time", -ETIMEDOUT},
                 {"fail op=get corrupt=7", "other bytes", -EBADMSG}};
    struct store_caps c;
    char why[400];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert_eq(fault_plan_set(t.os, cases[i].plan, why, sizeof why), 0);
        cr_assert_eq(store_probe(t.os, 300, &c, why, sizeof why), cases[i].err, "%s: %s",
                     cases[i].plan, why);
        cr_assert_not_null(strstr(why, cases[i].say), "%s", why);
        if (i != 2) /* where deleting is what fails */
            cr_assert_eq(mem_count(t.os), 0, "%s", cases[i].plan);
        else
            mem_lose(t.os, mem_key(t.os, 0));
    }
}
