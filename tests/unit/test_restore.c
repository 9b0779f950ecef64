/* test_restore.c: a rebuild from buckets that no test could make through a mount: manifests of different
 * moments, entries that this program does not write, rings, rivals, gaps. The bucket is a directory whose
 * objects are written here; what comes out is read from the metadata store. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "fs/base/bytes.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/tier/manifest_fmt.h"
#include "fs/volume/restore.h"
#include "fs/volume/volobj.h"
#include "fs/volume/volume_int.h"

static char dir[64], why[1024];
static const uint8_t ID[16] = {1, 2, 3, 4, 5, 6, 0x47, 8, 0x89, 10, 11, 12, 13, 14, 15, 16};
static struct restore_report rep;
static struct kv *kv;
static int state_fd = -1;

static int rm_one(const char *p, const struct stat *st, int t, struct FTW *f)
{
    (void)st, (void)t, (void)f;
    return remove(p);
}

static void put_object(const char *key, const void *buf, size_t len)
{
    char path[512];
    snprintf(path, sizeof path, "%s/store/%s", dir, key);
    for (char *p = path + strlen(dir) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        (void)mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "we");
    cr_assert(f && fwrite(buf, 1, len, f) == len && fclose(f) == 0, "%s", path);
}

static void put_volume(uint64_t profile)
{
    uint8_t buf[VOLOBJ_BYTES];
    struct volobj v = {.node = 1, .epoch = 3, .created_ns = 1000, .profile = profile};
    memcpy(v.volume, ID, 16);
    volobj_encode(&v, buf);
    put_object(VOLOBJ_KEY, buf, sizeof buf);
    put_object("nodes/00000001", buf, sizeof buf);
}

static void begin(uint64_t profile)
{
    snprintf(dir, sizeof dir, "/tmp/sluice-restore-XXXXXX");
    cr_assert(mkdtemp(dir));
    put_object(".sluicefs-store", "test\n", 5); /* a directory that is a store */
    put_volume(profile);
}

/* ---- manifests under construction ---- */

struct man {
    uint64_t topic;
    uint8_t *buf;
    size_t len, cap;
    uint32_t n;
};

static void add(struct man *m, const struct key *k, const void *val, size_t len)
{
    struct manifest_entry e = {k->b, val, (uint16_t)k->len, (uint32_t)len};
    cr_assert_eq(manifest_entry_add(&m->buf, &m->len, &m->cap, &e), 0);
    m->n++;
}

static void add_inode(struct man *m, uint64_t ino, uint32_t mode, uint64_t parent, uint32_t nlink,
                      uint64_t size, int64_t ctime)
{
    uint8_t buf[REC_INODE_MAX];
    struct inode_rec r = {.mode = mode,
                          .nlink = nlink,
                          .parent = parent,
                          .size = size,
                          .mtime_ns = ctime,
                          .ctime_ns = ctime};
    struct key k = key_inode(ino);
    add(m, &k, buf, inode_rec_encode(&r, buf));
}

static void add_name(struct man *m, uint64_t parent, const char *name, uint64_t ino, uint8_t type)
{
    uint8_t buf[REC_NAME_MAX];
    static uint64_t cookie = 1ull << 61;
    struct name_rec r = {.ino = ino, .cookie = cookie--, .type = type};
    struct key k = key_name(parent, name, strlen(name));
    add(m, &k, buf, name_rec_encode(&r, buf));
}

static void add_seg(struct man *m, uint64_t ino, uint64_t base, uint64_t end, uint32_t version)
{
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec r = {
        .state = SEG_COMMITTED,
        .has_object = true,
        .end = end,
        .version = version,
        .object = {
            .topic = m->topic, .end = end, .epoch = 1, .attempt = version, .version = version}};
    struct key k = key_seg(ino, base);
    add(m, &k, buf, seg_rec_encode(&r, buf));
}

static void put_manifest(struct man *m)
{
    struct manifest_root r = {.node = 1,
                              .topic = m->topic,
                              .epoch = 2,
                              .seq = 1,
                              .inline_buf = m->buf,
                              .inline_len = (uint32_t)m->len,
                              .inline_n = m->n};
    uint8_t *out;
    size_t len;
    char key[OBJ_KEY_MAX];
    memcpy(r.volume, ID, 16);
    cr_assert_eq(manifest_root_encode(&r, &out, &len), 0);
    manifest_root_key(m->topic, key, sizeof key);
    put_object(key, out, len);
    free(out);
    free(m->buf);
}

/* ---- the rebuild, and what came of it ---- */

static int restore(const struct restore_options *o)
{
    struct config c;
    char text[600];
    int code;
    config_init(&c);
    snprintf(text, sizeof text, "%s/state", dir);
    cr_assert_eq(config_set(&c, "state", text, "test", why, sizeof why), 0, "%s", why);
    snprintf(text, sizeof text, "%s/device", dir);
    cr_assert_eq(config_set(&c, "device", text, "test", why, sizeof why), 0, "%s", why);
    snprintf(text, sizeof text, "dir://%s/store", dir);
    cr_assert_eq(config_set(&c, "store", text, "test", why, sizeof why), 0, "%s", why);
    cr_assert_eq(config_finish(&c, why, sizeof why), 0, "%s", why);
    int r = volume_restore(&c, o, &rep, why, sizeof why, &code);
    cr_expect_eq(r == 0, code == 0);
    config_done(&c);
    return r;
}

static void open_result(void)
{
    static char state[128];
    snprintf(state, sizeof state, "%s/state", dir);
    state_fd = open(state, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct kv_conf kc = {
        .dirfd = state_fd, .dir = state, .checkpoint_ms = 1000, .lmdb_nosync = true};
    cr_assert_eq(kv_open(&kc, &kv, why, sizeof why), 0, "%s", why);
}

static void must_restore(void)
{
    struct restore_options o = {0};
    cr_assert_eq(restore(&o), 0, "%s", why);
    open_result();
}

static void end(void)
{
    if (kv)
        kv_close(kv);
    kv = NULL;
    if (state_fd >= 0)
        close(state_fd);
    state_fd = -1;
    restore_report_done(&rep);
    if (*dir)
        nftw(dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

static uint64_t lookup(uint64_t parent, const char *name)
{
    uint8_t buf[REC_NAME_MAX], db[REC_DIRENT_MAX];
    struct name_rec n;
    struct dirent_rec d;
    struct key k = key_name(parent, name, strlen(name));
    ssize_t len = kv_get(kv, k.b, k.len, buf, sizeof buf);
    if (len < 0)
        return 0;
    cr_assert_eq(name_rec_decode(buf, (size_t)len, &n), 0);
    /* Whatever has a name is listed, under that name. */
    k = key_dirent(parent, n.cookie);
    len = kv_get(kv, k.b, k.len, db, sizeof db);
    cr_assert_gt(len, 0, "%s is not listed", name);
    cr_assert_eq(dirent_rec_decode(db, (size_t)len, &d), 0);
    cr_expect(d.ino == n.ino && d.type == n.type && d.name_len == strlen(name) &&
              !memcmp(d.name, name, d.name_len));
    return n.ino;
}

static struct inode_rec inode(uint64_t ino)
{
    uint8_t buf[REC_INODE_MAX];
    struct inode_rec r = {0};
    struct key k = key_inode(ino);
    ssize_t n = kv_get(kv, k.b, k.len, buf, sizeof buf);
    if (n > 0)
        cr_assert_eq(inode_rec_decode(buf, (size_t)n, &r), 0);
    return r;
}

static unsigned found(const char *kind)
{
    unsigned n = 0;
    for (size_t i = 0; i < rep.found.n; i++)
        n += !strcmp(rep.found.row[i].kind, kind);
    return n;
}

static bool owes(uint64_t topic, struct key k)
{
    uint8_t b[8];
    struct key m = key_dirty(topic, k.b, k.len);
    return kv_get(kv, m.b, m.len, b, sizeof b) >= 0;
}

enum { DIR_A = 100, DIR_B = 200, FILE_A = 101, FILE_B = 201 };

static void put_root(void)
{
    struct man m = {.topic = ROOT_INO};
    add_inode(&m, ROOT_INO, S_IFDIR | 0711, ROOT_INO, 4, 0, 5);
    put_manifest(&m);
}

TestSuite(restore, .fini = end);

Test(restore, of_a_volume_with_nothing_in_it)
{
    begin(0);
    must_restore();
    cr_expect_eq(inode(ROOT_INO).mode, S_IFDIR | 0755);
    cr_expect_eq(rep.node, 2);
    cr_expect_eq(rep.epoch, 4);
}

Test(restore, counts_links_and_keeps_the_newest_of_an_entry)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 9, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, 1, 1); /* superseded below */
    add_name(&m, DIR_A, "x", FILE_A, DT_REG);
    add_name(&m, DIR_A, "y", FILE_A, DT_REG);
    add_inode(&m, FILE_A, S_IFREG | 0640, DIR_A, 2, 1000, 20);
    add_seg(&m, FILE_A, 0, 1000, 1);
    put_manifest(&m);
    must_restore();
    cr_expect_eq(inode(ROOT_INO).nlink, 3);
    cr_expect_eq(inode(DIR_A).nlink, 2);
    cr_expect_eq(inode(FILE_A).nlink, 2);
    cr_expect_eq(inode(FILE_A).mode, S_IFREG | 0640);
    cr_expect_eq(lookup(DIR_A, "x"), FILE_A);
    cr_expect_eq(lookup(DIR_A, "y"), FILE_A);
    cr_expect(owes(DIR_A, key_inode(DIR_A)), "the manifest counts 9");
    cr_expect_not(owes(DIR_A, key_inode(FILE_A)));
    cr_expect_eq(rep.found.n, 0);
}

Test(restore, tombstones_remove_what_is_older_in_the_same_topic_only)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    struct key gone = key_inode(FILE_B);
    add(&m, &gone, NULL, 0); /* moved away to the other topic */
    put_manifest(&m);
    struct man n = {.topic = DIR_B};
    add_inode(&n, DIR_B, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&n, ROOT_INO, "b", DIR_B, DT_DIR);
    add_inode(&n, FILE_B, S_IFREG | 0600, DIR_B, 1, 0, 10);
    add_name(&n, DIR_B, "f", FILE_B, DT_REG);
    put_manifest(&n);
    must_restore();
    cr_expect_eq(lookup(DIR_B, "f"), FILE_B);
    cr_expect_eq(inode(FILE_B).nlink, 1);
}

Test(restore, a_file_that_two_manifests_hold_is_where_its_record_says)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A}, n = {.topic = DIR_B};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, 0, 10);
    add_name(&m, DIR_A, "old", FILE_A, DT_REG);
    put_manifest(&m);
    add_inode(&n, DIR_B, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&n, ROOT_INO, "b", DIR_B, DT_DIR);
    add_inode(&n, FILE_A, S_IFREG | 0600, DIR_B, 1, 0, 30);
    add_name(&n, DIR_B, "new", FILE_A, DT_REG);
    put_manifest(&n);
    must_restore();
    cr_expect_eq(lookup(DIR_A, "old"), 0);
    cr_expect_eq(lookup(DIR_B, "new"), FILE_A);
    cr_expect_eq(inode(FILE_A).nlink, 1);
    cr_expect_eq(found("dropped-name"), 1);
    cr_expect(owes(DIR_A, key_name(DIR_A, "old", 3)), "its manifest still has it");
}

Test(restore, of_two_topics_with_one_name_the_one_changed_last_has_it)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A}, n = {.topic = DIR_B};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "t", DIR_A, DT_DIR);
    put_manifest(&m);
    add_inode(&n, DIR_B, S_IFDIR | 0700, ROOT_INO, 2, 0, 20);
    add_name(&n, ROOT_INO, "t", DIR_B, DT_DIR);
    put_manifest(&n);
    must_restore();
    cr_expect_eq(lookup(ROOT_INO, "t"), DIR_B);
    cr_expect_eq(lookup(ROOT_INO, "t.restored-64"), DIR_A);
    cr_expect_eq(inode(ROOT_INO).nlink, 4);
    cr_expect_eq(found("renamed"), 1);
}

Test(restore, what_has_no_name_is_in_lost_and_found)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10); /* no name either */
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, 500, 10);
    add_seg(&m, FILE_A, 0, 500, 1);
    add_name(&m, DIR_A, "gone", 999, DT_REG); /* leads to nothing */
    put_manifest(&m);
    must_restore();
    uint64_t lf = lookup(ROOT_INO, "lost+found");
    cr_assert_neq(lf, 0);
    cr_expect_eq(lf >> 40, 2, "a number of the new node");
    cr_expect_eq(lookup(lf, "#64"), DIR_A);
    cr_expect_eq(lookup(lf, "#65"), FILE_A);
    cr_expect_eq(lookup(DIR_A, "gone"), 0);
    cr_expect_eq(inode(FILE_A).size, 500);
    cr_expect_eq(inode(lf).nlink, 3);
    cr_expect_eq(inode(DIR_A).parent, lf);
}

Test(restore, a_ring_of_directories_is_opened)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, DIR_B, 3, 0, 10);
    add_inode(&m, DIR_B, S_IFDIR | 0700, DIR_A, 3, 0, 10);
    add_name(&m, DIR_A, "b", DIR_B, DT_DIR);
    add_name(&m, DIR_B, "a", DIR_A, DT_DIR);
    put_manifest(&m);
    must_restore();
    uint64_t lf = lookup(ROOT_INO, "lost+found"), top = lookup(lf, "#64");
    cr_assert(lf && top == DIR_A);
    cr_expect_eq(lookup(DIR_A, "b"), DIR_B);
    cr_expect_eq(lookup(DIR_B, "a"), 0);
    cr_expect_eq(inode(DIR_A).nlink, 3);
    cr_expect_eq(inode(DIR_B).nlink, 2);
}

Test(restore, hostile_entries_are_left_out)
{
    begin(0);
    put_root();
    struct man m = {.topic = DIR_A};
    uint8_t buf[512];
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, 0, 10);
    add_name(&m, DIR_A, "good", FILE_A, DT_REG);
    add_name(&m, DIR_A, "..", FILE_A, DT_REG);
    add_name(&m, DIR_A, ".", FILE_A, DT_REG);
    add_name(&m, DIR_A, "../../etc/passwd", FILE_A, DT_REG);
    add_name(&m, DIR_A, "root", ROOT_INO, DT_DIR);
    add_inode(&m, 300, 0, DIR_A, 1, 0, 10);               /* of no type */
    add_inode(&m, ROOT_INO, S_IFREG | 0777, 0, 1, 0, 99); /* the root as a file */
    struct key k = key_setting("epoch");                  /* tables that no manifest has */
    add(&m, &k, "x", 1);
    k = key_unlink(1);
    memset(buf, 1, sizeof buf);
    add(&m, &k, buf, 25);
    k = key_symlink(FILE_A);
    add(&m, &k, buf, 0);
    add_seg(&m, FILE_A, INT64_MAX - 10, INT64_MAX, 1);
    add_seg(&m, 12345, 0, 10, 1); /* of no inode */
    put_manifest(&m);
    must_restore();
    cr_expect_eq(lookup(DIR_A, "good"), FILE_A);
    cr_expect_eq(lookup(DIR_A, ".."), 0);
    cr_expect_eq(lookup(DIR_A, "../../etc/passwd"), 0);
    cr_expect_eq(lookup(DIR_A, "root"), 0);
    cr_expect_eq(inode(300).mode, 0);
    cr_expect_eq(inode(ROOT_INO).mode, S_IFDIR | 0711);
    cr_expect_geq(found("bad-entry"), 7);
    cr_expect_eq(found("stray-rows"), 1);
}

static struct seg_rec seg(uint64_t ino, uint64_t base)
{
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec r = {0};
    struct key k = key_seg(ino, base);
    ssize_t n = kv_get(kv, k.b, k.len, buf, sizeof buf);
    if (n > 0)
        cr_assert_eq(seg_rec_decode(buf, (size_t)n, &r), 0);
    return r;
}

static void put_gappy(uint64_t profile)
{
    begin(profile);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, 5000, 10);
    add_name(&m, DIR_A, "f", FILE_A, DT_REG);
    add_seg(&m, FILE_A, 0, 1000, 1);
    add_seg(&m, FILE_A, 2000, 3000, 1);
    put_manifest(&m);
    must_restore();
}

Test(restore, a_gap_in_an_append_only_file_is_a_segment_without_object)
{
    put_gappy(0);
    struct seg_rec gap = seg(FILE_A, 1000);
    cr_expect_eq(gap.state, SEG_COMMITTED);
    cr_expect_eq(gap.end, 2000);
    cr_expect(!gap.local && gap.has_object && gap.object.version != gap.version,
              "no reader may take it for bytes");
    cr_expect_eq(inode(FILE_A).size, 3000);
    cr_expect_eq(found("gap"), 1);
    cr_expect_eq(found("never-uploaded"), 1);
    cr_expect_eq(rep.lost_bytes, 3000);
    bool named = false;
    for (size_t i = 0; i < rep.found.n; i++)
        named |= rep.found.row[i].path && !strcmp(rep.found.row[i].path, "a/f") &&
                 rep.found.row[i].off == 3000 && rep.found.row[i].len == 2000;
    cr_expect(named);
}

Test(restore, in_the_broker_profile_a_gap_is_a_hole)
{
    put_gappy(1);
    cr_expect_eq(seg(FILE_A, 1000).state, 0);
    cr_expect_eq(inode(FILE_A).size, 5000, "at the end, too");
    cr_expect_eq(found("gap") + found("never-uploaded"), 0);
    cr_expect_str_eq(rep.profile, "broker");
}

static void add_missing(struct man *m, uint64_t ino, uint64_t base, uint64_t end)
{
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec r = {.state = SEG_SEALED, .end = end, .version = 1};
    struct key k = key_seg(ino, base);
    add(m, &k, buf, seg_rec_encode(&r, buf));
}

/* Segments that were never uploaded: one between others, two at the end with a hole between them. */
static void put_missing(uint64_t profile, uint64_t size)
{
    begin(profile);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, size, 10);
    add_name(&m, DIR_A, "f", FILE_A, DT_REG);
    add_seg(&m, FILE_A, 0, 1000, 1);
    add_missing(&m, FILE_A, 900, 2500); /* its capacity reaches into the next */
    add_seg(&m, FILE_A, 2000, 3000, 1);
    add_missing(&m, FILE_A, 3000, 3500);
    add_missing(&m, FILE_A, 4000, 4500);
    put_manifest(&m);
    must_restore();
}

/* A committed segment that was appended to and sealed again, and whose new object never came. */
static void put_grown(uint64_t size, bool followed)
{
    begin(1);
    put_root();
    struct man m = {.topic = DIR_A};
    add_inode(&m, DIR_A, S_IFDIR | 0700, ROOT_INO, 2, 0, 10);
    add_name(&m, ROOT_INO, "a", DIR_A, DT_DIR);
    add_inode(&m, FILE_A, S_IFREG | 0600, DIR_A, 1, size, 10);
    add_name(&m, DIR_A, "f", FILE_A, DT_REG);
    if (followed)
        add_seg(&m, FILE_A, 1000, 2000, 1);
    uint8_t buf[REC_SEG_MAX];
    struct seg_rec r = {
        .state = SEG_COMMITTED,
        .has_object = true,
        .end = 1800,
        .version = 1,
        .object = {.topic = m.topic, .end = 1000, .epoch = 1, .attempt = 1, .version = 1}};
    struct key k = key_seg(FILE_A, 0);
    add(&m, &k, buf, seg_rec_encode(&r, buf));
    put_manifest(&m);
    must_restore();
    cr_expect_eq(seg(FILE_A, 0).end, 1000, "as its object");
}

static void expect_gap(uint64_t base, uint64_t end)
{
    struct seg_rec gap = seg(FILE_A, base);
    cr_expect(gap.state == SEG_COMMITTED && gap.end == end && gap.object.version != gap.version,
              "EIO from %llu to %llu, and no zeros", (unsigned long long)base,
              (unsigned long long)end);
    cr_expect(owes(DIR_A, key_seg(FILE_A, base)), "the manifest is told");
}

Test(restore, bytes_that_were_never_uploaded_are_no_hole)
{
    put_missing(1, 4500);
    expect_gap(1000, 2000);
    cr_expect_eq(inode(FILE_A).size, 3000, "cut where only missing ones follow");
    cr_expect(seg(FILE_A, 900).state == 0 && seg(FILE_A, 3000).state == 0 &&
              seg(FILE_A, 4000).state == 0);
    cr_expect_eq(rep.lost_bytes, 1000 + 1500);
    cr_expect(found("gap") == 1 && found("never-uploaded") == 1);
}

Test(restore, nor_before_a_hole_at_the_end)
{
    put_missing(1, 9000);
    expect_gap(1000, 2000);
    expect_gap(3000, 4500);
    cr_expect_eq(inode(FILE_A).size, 9000);
    cr_expect_eq(rep.lost_bytes, 1000 + 1500);
}

Test(restore, nor_what_a_segment_has_grown_by)
{
    put_grown(1800, false);
    cr_expect_eq(inode(FILE_A).size, 1000);
    cr_expect_eq(rep.lost_bytes, 800);
}

Test(restore, nor_that_before_a_hole)
{
    put_grown(5000, false);
    expect_gap(1000, 1800);
    cr_expect_eq(inode(FILE_A).size, 5000);
}

Test(restore, where_another_segment_begins_that_counts)
{
    put_grown(2000, true);
    cr_expect_eq(seg(FILE_A, 1000).end, 2000);
    cr_expect_eq(inode(FILE_A).size, 2000);
    cr_expect_eq(rep.lost_bytes, 0);
}

Test(restore, nor_in_an_append_only_file)
{
    put_missing(0, 4500);
    expect_gap(1000, 2000);
    cr_expect_eq(inode(FILE_A).size, 3000);
    cr_expect_eq(rep.lost_bytes, 1000 + 1500);
}

Test(restore, a_manifest_of_another_volume_or_of_a_newer_epoch_is_refused)
{
    struct restore_options o = {0};
    begin(0);
    struct manifest_root r = {.node = 1, .topic = DIR_A, .epoch = 99, .seq = 1};
    uint8_t *out;
    size_t len;
    char key[OBJ_KEY_MAX];
    manifest_root_key(DIR_A, key, sizeof key);
    memcpy(r.volume, ID, 16);
    cr_assert_eq(manifest_root_encode(&r, &out, &len), 0);
    put_object(key, out, len);
    free(out);
    cr_expect_eq(restore(&o), -EBUSY);
    cr_expect(strstr(why, "newer epoch"), "%s", why);
    restore_report_done(&rep);

    r.epoch = 1;
    r.volume[0] ^= 1;
    cr_assert_eq(manifest_root_encode(&r, &out, &len), 0);
    put_object(key, out, len);
    free(out);
    cr_expect_lt(restore(&o), 0);
    cr_expect(strstr(why, key), "%s", why);
}
