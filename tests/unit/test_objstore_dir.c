/* What is particular to the directory store: the marker, durability of names, residue, races. */
#include <criterion/criterion.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "fs/base/io.h"
#include "tests/support/dirtest.h"

static bool exists(const struct objtest *t, const char *rel)
{
    char path[512];
    path_of(t, path, sizeof path, rel);
    return access(path, F_OK) == 0;
}

static int try_open(struct objtest *t, char *why, size_t cap)
{
    struct objstore *os;
    int r = dir_open(&t->conf, &os, why, cap);
    if (r == 0)
        obj_close(os);
    return r;
}

Test(dir, objects_are_plain_files_under_their_key)
{
    struct objtest t;
    char path[512], got[8] = "";
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "segments/0/a.b-c_D", "content", 7, 0, NULL, NULL), 0);
    path_of(&t, path, sizeof path, "segments/0/a.b-c_D");
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f);
    cr_assert_eq(fread(got, 1, 8, f), 7);
    fclose(f);
    cr_assert_str_eq(got, "content");
    cr_assert_eq(ot_delete(t.os, "segments/0/a.b-c_D", 0, NULL), 0);
    cr_assert_not(exists(&t, "segments"), "empty folders go");
    ot_done(&t);
}

Test(dir, keys_that_would_escape_are_refused)
{
    static const char *const bad[] = {"..",    "../x",   "a/../b",          "/abs",
                                      "a//b",  "a/",     ".hidden",         "a/.tmp",
                                      "a/./b", ".tmp/x", ".sluicefs-store", "sp ace"};
    struct objtest t;
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        cr_assert_eq(ot_put(t.os, bad[i], "x", 1, 0, NULL, NULL), -EINVAL, "%s", bad[i]);
        cr_assert_eq(ot_delete(t.os, bad[i], 0, NULL), -EINVAL, "%s", bad[i]);
        cr_assert_eq(ot_head(t.os, bad[i], NULL), -EINVAL, "%s", bad[i]);
    }
    ot_done(&t);
}

Test(dir, a_folder_is_no_object)
{
    struct objtest t;
    char c;
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "a/b", "x", 1, 0, NULL, NULL), 0);
    cr_assert_eq(ot_head(t.os, "a", NULL), -ENOENT);
    cr_assert_eq(ot_get(t.os, "a", 0, &c, 1, NULL), -ENOENT);
    cr_assert_eq(ot_delete(t.os, "a", 0, NULL), 0);
    cr_assert_eq(ot_head(t.os, "a/b", NULL), 0);
    cr_assert_eq(ot_head(t.os, "a/b/c", NULL), -ENOENT);
    cr_assert_eq(ot_put(t.os, "a/b/c", "x", 1, 0, NULL, NULL), -EOPNOTSUPP);
    ot_done(&t);
}

Test(dir, an_unmounted_disk_is_a_missing_bucket_and_nothing_is_made_in_its_place)
{
    struct objtest t;
    struct obj_req r;
    char away[600], why[300];
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "k", "x", 1, 0, NULL, NULL), 0);
    snprintf(away, sizeof away, "%s/away", t.dir);
    cr_assert_eq(rename(t.conf.url.path, away), 0);
    cr_assert_eq(ot_put(t.os, "k", "y", 1, 0, NULL, &r), -ENODEV, "the path is gone");
    cr_assert_str_eq(r.diag.code, "NoSuchBucket");
    cr_assert_neq(access(t.conf.url.path, F_OK), 0);

    cr_assert_eq(mkdir(t.conf.url.path, 0700), 0);
    cr_assert_eq(ot_put(t.os, "k", "y", 1, 0, NULL, &r), -ENODEV, "an empty mount point");
    cr_assert_str_eq(r.diag.code, "NoSuchBucket");
    cr_assert_not(exists(&t, ".tmp"));
    cr_assert_not(exists(&t, "k"));

    cr_assert_eq(rmdir(t.conf.url.path), 0);
    cr_assert_eq(rename(away, t.conf.url.path), 0);
    cr_assert_eq(ot_head(t.os, "k", NULL), 0, "mounted again");
    cr_assert_eq(try_open(&t, why, sizeof why), 0);
    ot_done(&t);
}

Test(dir, a_directory_with_other_files_is_not_taken)
{
    struct objtest t;
    char path[512], why[300] = "";
    ot_prepare(&t, STORE_DIR);
    cr_assert_eq(mkdir(t.conf.url.path, 0755), 0);
    path_of(&t, path, sizeof path, "precious");
    fclose(fopen(path, "w"));
    cr_assert_eq(try_open(&t, why, sizeof why), -ENOTEMPTY);
    cr_assert_not_null(strstr(why, "not empty"));
    unlink(path);
    path_of(&t, path, sizeof path,
            ".sluicefs-store.tmp89abcdef"); /* killed while it wrote the marker */
    fclose(fopen(path, "w"));
    cr_assert_eq(try_open(&t, why, sizeof why), 0, "%s", why);
    cr_assert(exists(&t, ".sluicefs-store"));
    ot_done(&t);
}

Test(dir, etag_survives_restart_and_changes_with_an_edit_in_place)
{
    struct objtest t;
    struct obj_info a, b;
    char path[512];
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "k", "content", 7, 0, NULL, NULL), 0);
    cr_assert_eq(ot_head(t.os, "k", &a), 0);
    ot_shut(&t);
    ot_open(&t);
    cr_assert_eq(ot_head(t.os, "k", &b), 0);
    cr_assert_str_eq(a.etag, b.etag);
    path_of(&t, path, sizeof path, "k");
    int fd = open(path, O_WRONLY);
    cr_assert_eq(pwrite(fd, "C", 1, 0), 1);
    close(fd);
    cr_assert_eq(ot_head(t.os, "k", &b), 0);
    cr_assert_str_neq(a.etag, b.etag, "an ETag never vouches for other bytes");
    ot_done(&t);
}

Test(dir, nothing_stays_in_the_page_cache)
{
    const size_t n = 9 * 1024 * 1024 + 777;
    struct objtest t;
    char path[512];
    uint8_t *p;
    if (posix_memalign((void **)&p, 4096, n))
        abort();
    memset(p, 'r', n);
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "big", p, n, 0, NULL, NULL), 0);
    path_of(&t, path, sizeof path, "big");
    cr_assert_eq(resident_pages(path), 0, "after PUT: %zu pages", resident_pages(path));
    cr_assert_eq(ot_get(t.os, "big", 0, p, n, NULL), 0);
    cr_assert_eq(ot_get(t.os, "big", 4097, p, n - 5000, NULL), 0);
    cr_assert_eq(resident_pages(path), 0, "after GET: %zu pages", resident_pages(path));

    char etag[2][OBJ_ETAG_MAX];
    const char *etags[2] = {etag[0], etag[1]};
    struct obj_req c = {.op = OBJ_MP_CREATE, .key = "mp"};
    cr_assert_eq(obj_run(t.os, &c), 0);
    for (unsigned i = 0; i < 2; i++) {
        struct obj_body b = {.mem = p, .fd = -1, .len = 5 * 1024 * 1024 + 99};
        struct obj_req r = {.op = OBJ_MP_PART,
                            .key = "mp",
                            .upload_id = c.new_upload_id,
                            .part_no = i + 1,
                            .body = &b,
                            .body_n = 1};
        cr_assert_eq(obj_run(t.os, &r), 0);
        memcpy(etag[i], r.info.etag, sizeof etag[i]);
    }
    struct obj_req f = {.op = OBJ_MP_COMPLETE,
                        .key = "mp",
                        .upload_id = c.new_upload_id,
                        .part_etags = etags,
                        .parts_n = 2};
    cr_assert_eq(obj_run(t.os, &f), 0);
    obj_req_done(&c);
    path_of(&t, path, sizeof path, "mp");
    cr_assert_eq(resident_pages(path), 0, "after multipart: %zu pages", resident_pages(path));
    free(p);
    ot_done(&t);
}

Test(dir, temporary_files_of_the_dead_are_swept_and_those_of_the_living_kept)
{
    struct objtest t;
    char path[512], why[300];
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "k", "x", 1, 0, NULL, NULL), 0);
    cr_assert_eq(count_tmp(&t, "put-"), 0);
    path_of(&t, path, sizeof path, ".tmp/put-dead");
    fclose(fopen(path, "w"));
    path_of(&t, path, sizeof path, ".tmp/put-upload"); /* of one that was being made */
    cr_assert_eq(mkdir(path, 0700), 0);
    path_of(&t, path, sizeof path, ".tmp/put-upload/key");
    fclose(fopen(path, "w"));
    path_of(&t, path, sizeof path, ".tmp/put-living");
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    cr_assert_eq(try_open(&t, why, sizeof why), 0);
    cr_assert_not(exists(&t, ".tmp/put-dead"));
    cr_assert_not(exists(&t, ".tmp/put-upload"));
    cr_assert(exists(&t, ".tmp/put-living"));
    close(fd);
    ot_done(&t);
}

Test(dir, refused_and_failed_puts_leave_no_file)
{
    struct objtest t;
    struct obj_req r = {.op = OBJ_PUT, .key = "k", .body_n = 1};
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "k", "x", 1, OBJ_IF_ABSENT, NULL, NULL), 0);
    cr_assert_eq(ot_put(t.os, "k", "x", 1, OBJ_IF_ABSENT, NULL, NULL), -EEXIST);
    cr_assert_eq(ot_put(t.os, "k", "x", 1, OBJ_IF_MATCH, "\"no\"", NULL), -EEXIST);
    struct obj_body b = {.mem = "x", .fd = -1, .len = 1};
    r.body = &b;
    r.flags = OBJ_HAS_SHA256;
    cr_assert_eq(obj_run(t.os, &r), -EBADMSG);
    int fd = open("/dev/null", O_RDONLY);
    b = (struct obj_body){.fd = fd, .len = 100};
    r = (struct obj_req){.op = OBJ_PUT, .key = "k2", .body = &b, .body_n = 1};
    cr_assert_lt(obj_run(t.os, &r), 0, "a body that ends early");
    close(fd);
    cr_assert_eq(count_tmp(&t, "put-"), 0);
    cr_assert_eq(ot_head(t.os, "k2", NULL), -ENOENT);
    ot_done(&t);
}

Test(dir, many_requests_at_once)
{
    enum { N = 64, LEN = 300000 };
    static struct ot_async a[N];
    static uint8_t *buf[N];
    struct objtest t;
    char key[N][32];
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    for (int round = 0; round < 3; round++) {
        memset(a, 0, sizeof a);
        for (int i = 0; i < N; i++) {
            if (!buf[i] && posix_memalign((void **)&buf[i], 4096, LEN))
                abort();
            if (round != 1)
                memset(buf[i], i + 1, LEN);
            else
                memset(buf[i], 0, LEN);
            snprintf(key[i], sizeof key[i], "d%d/e%d/f%d", i % 4, i % 8, i);
            if (round == 2)
                ot_start(t.os, &a[i], OBJ_DELETE, key[i], 0, NULL, 0);
            else
                ot_start(t.os, &a[i], round ? OBJ_GET : OBJ_PUT, key[i], 0, buf[i], LEN);
        }
        for (int i = 0; i < N; i++) {
            ot_until(atomic_load(&a[i].done));
            cr_assert_eq(a[i].r.err, 0);
            if (round == 1)
                for (size_t k = 0; k < LEN; k += 997)
                    cr_assert_eq(buf[i][k], (uint8_t)(i + 1));
        }
    }
    for (int i = 0; i < N; i++)
        free(buf[i]);
    cr_assert_not(exists(&t, "d0"));
    ot_done(&t);
}

/* Many writers, one key: exactly one If-None-Match wins; compare-and-set counts without loss, also
 * between processes, which the lock files make true. */
Test(dir, one_creator_wins)
{
    enum { N = 32 };
    static struct ot_async a[N];
    struct objtest t;
    int won = 0;
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    memset(a, 0, sizeof a);
    for (int i = 0; i < N; i++)
        ot_start(t.os, &a[i], OBJ_PUT, "deep/er/one", OBJ_IF_ABSENT, "x", 1);
    for (int i = 0; i < N; i++) {
        ot_until(atomic_load(&a[i].done));
        cr_assert(a[i].r.err == 0 || a[i].r.err == -EEXIST);
        won += a[i].r.err == 0;
    }
    cr_assert_eq(won, 1);
    ot_done(&t);
}

static void add_by_cas(struct objstore *os, int times)
{
    while (times > 0) {
        char text[16] = "", next[16];
        struct obj_req g;
        cr_assert_eq(ot_get(os, "counter", 0, text, 8, &g), 0);
        snprintf(next, sizeof next, "%08d", atoi(text) + 1);
        int e = ot_put(os, "counter", next, 8, OBJ_IF_MATCH, g.info.etag, NULL);
        cr_assert(e == 0 || e == -EEXIST, "%d", e);
        times -= e == 0;
    }
}

Test(dir, compare_and_set_loses_no_update_between_processes)
{
    enum { PROCS = 3, EACH = 15 };
    struct objtest t;
    char text[16] = "";
    pid_t kid[PROCS];
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    cr_assert_eq(ot_put(t.os, "counter", "00000000", 8, 0, NULL, NULL), 0);
    ot_shut(&t);
    timers_close(t.timers); /* no thread lives across fork */
    exec_close(t.pool);
    t.timers = NULL;
    t.pool = NULL;
    for (int i = 0; i < PROCS; i++) {
        kid[i] = fork();
        if (kid[i] == 0) {
            if (exec_open("pool", 2, 0, &t.pool) || timers_open(true, &t.timers))
                _exit(2);
            t.conf.device_pool = t.pool;
            t.conf.timers = t.timers;
            ot_open(&t);
            add_by_cas(t.os, EACH);
            ot_shut(&t);
            _exit(0);
        }
    }
    for (int i = 0; i < PROCS; i++) {
        int status;
        cr_assert_eq(waitpid(kid[i], &status, 0), kid[i]);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    cr_assert_eq(exec_open("pool", 2, 0, &t.pool), 0);
    cr_assert_eq(timers_open(true, &t.timers), 0);
    t.conf.device_pool = t.pool;
    t.conf.timers = t.timers;
    ot_open(&t);
    cr_assert_eq(ot_get(t.os, "counter", 0, text, 8, NULL), 0);
    cr_assert_eq(atoi(text), PROCS * EACH);
    ot_done(&t);
}

/* DELETE prunes folders that a PUT is just filling. */
Test(dir, pruning_never_fails_a_put)
{
    enum { N = 16, ROUNDS = 20 };
    static struct ot_async put[N], del[N];
    char key[N][32];
    struct objtest t;
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            snprintf(key[i], sizeof key[i], "p/q/r%d/x", i % 2);
            ot_start(t.os, &put[i], OBJ_PUT, key[i], 0, "x", 1);
            ot_start(t.os, &del[i], OBJ_DELETE, key[i], 0, NULL, 0);
        }
        for (int i = 0; i < N; i++) {
            ot_until(atomic_load(&put[i].done) && atomic_load(&del[i].done));
            cr_assert_eq(put[i].r.err, 0, "%s", put[i].r.diag.message);
            cr_assert_eq(del[i].r.err, 0, "%s", del[i].r.diag.message);
        }
    }
    ot_done(&t);
}

Test(dir, urgent_requests_overtake_and_close_ends_what_waits)
{
    enum { N = 20 };
    static struct ot_async a[N + 1];
    struct exec *stepped;
    struct objtest t;
    struct objstore *os;
    char why[300];
    memset(a, 0, sizeof a);
    ot_prepare(&t, STORE_DIR);
    cr_assert_eq(exec_open("step", 0, 0, &stepped), 0);
    t.conf.device_pool = stepped;
    cr_assert_eq(dir_open(&t.conf, &os, why, sizeof why), 0, "%s", why);
    for (int i = 0; i < N; i++)
        ot_start(os, &a[i], OBJ_PUT, "k", 0, "v", 1);
    ot_start(os, &a[N], OBJ_PUT, "u", OBJ_URGENT, "v", 1);
    cr_assert(exec_step(stepped));
    cr_assert(atomic_load(&a[N].done), "the urgent one went first");
    cr_assert_not(atomic_load(&a[0].done));
    obj_cancel(os, &a[5].r);
    cr_assert(exec_step(stepped));
    cr_assert_eq(a[5].r.err, -ECANCELED, "a cancelled one is answered next");
    obj_close(os);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(atomic_load(&a[i].done), 1);
        cr_assert_eq(a[i].r.err, -ECANCELED);
    }
    exec_close(stepped); /* turns that are left find nothing to do */
    ot_done(&t);
}

Test(dir, a_past_deadline_is_a_time_out)
{
    struct objtest t;
    ot_prepare(&t, STORE_DIR);
    ot_open(&t);
    struct obj_req r = {.op = OBJ_HEAD, .key = "k", .deadline_ns = clock_mono_ns() - 1};
    cr_assert_eq(obj_run(t.os, &r), -ETIMEDOUT);
    ot_done(&t);
}
