/* Tiering in a small world: uploads and manifests when answers are lost, writers come in between, other
 * mounts appear, and pages grow many. After each, the bucket says what the metadata store says. */
#include "tests/unit/small_world.h"

static void topics(void)
{
    small_make(false);
    small_open();
}

static void broker(void)
{
    small_make(true);
    small_open();
}

TestSuite(tier, .init = topics, .fini = small_free, .timeout = 120);
TestSuite(tier_broker, .init = broker, .fini = small_free, .timeout = 120);

/* ---- the manifest in the bucket, replayed ---- */

struct row {
    uint8_t *key, *val; /* val NULL: tombstone */
    size_t klen, vlen;
};

static struct {
    struct row *r;
    size_t n, cap;
} map;

static void map_set(const struct manifest_entry *e)
{
    struct row *r = NULL;
    for (size_t i = 0; i < map.n && !r; i++)
        if (map.r[i].klen == e->klen && !memcmp(map.r[i].key, e->key, e->klen))
            r = &map.r[i];
    if (!r) {
        if (map.n == map.cap)
            map.r = realloc(map.r, (map.cap = map.cap * 2 + 64) * sizeof *map.r);
        r = &map.r[map.n++];
        *r = (struct row){.key = malloc(e->klen), .klen = e->klen};
        memcpy(r->key, e->key, e->klen);
    }
    free(r->val);
    r->val = e->val ? malloc(e->vlen + 1) : NULL;
    if (e->val)
        memcpy(r->val, e->val, e->vlen);
    r->vlen = e->vlen;
}

static void map_add(const uint8_t *buf, size_t len)
{
    struct manifest_entry e;
    size_t pos = 0;
    int r;
    while ((r = manifest_entry_next(buf, len, &pos, &e)) > 0)
        map_set(&e);
    cr_assert_eq(r, 0);
}

static struct manifest_root root_of(uint64_t topic)
{
    char key[OBJ_KEY_MAX];
    uint64_t len;
    struct manifest_root r;
    manifest_root_key(topic, key, sizeof key);
    const uint8_t *p = mem_object(W.look, key, &len);
    cr_assert(p, "no manifest of topic %llx", (unsigned long long)topic);
    cr_assert_eq(manifest_root_decode(p, len, &r), 0);
    return r;
}

/* Pages from the oldest to the newest, then the root's own entries. */
static void replay(uint64_t topic)
{
    struct manifest_root r = root_of(topic);
    for (size_t i = 0; i < map.n; i++) {
        free(map.r[i].key);
        free(map.r[i].val);
    }
    map.n = 0;
    for (uint32_t i = 0; i < r.pages_n; i++) {
        char key[OBJ_KEY_MAX];
        uint64_t len;
        const uint8_t *e;
        size_t e_len;
        uint32_t n;
        manifest_page_key(topic, r.pages[i].id, key, sizeof key);
        const uint8_t *p = mem_object(W.look, key, &len);
        cr_assert(p, "page %s is missing", key);
        cr_assert_eq(len, r.pages[i].bytes);
        cr_assert_eq(hash64(p, len), r.pages[i].hash);
        cr_assert_eq(manifest_page_decode(p, len, WORLD_ID, topic, r.pages[i].id, &e, &e_len, &n),
                     0);
        cr_assert_eq(n, r.pages[i].entries);
        map_add(e, e_len);
    }
    map_add(r.inline_buf, r.inline_len);
    manifest_root_done(&r);
}

struct compare {
    uint64_t topic;
    size_t seen;
};

/* Every row of the topic in the store is in the manifest with the same value. */
static int compare_row(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct compare *c = arg;
    const uint8_t *k = key;
    uint64_t ino = 0, parent, of;
    struct name_rec n;
    if (k[0] == 'N') {
        cr_assert(key_parse_name(key, klen, &parent, NULL, NULL));
        cr_assert_eq(name_rec_decode(val, vlen, &n), 0);
        ino = parent == ROOT_INO ? n.ino : parent;
    } else if (k[0] == 'S') {
        cr_assert(key_parse_seg(key, klen, &ino, NULL));
    } else if (k[0] == 'X') {
        cr_assert(key_parse_name(key, klen, &ino, NULL, NULL));
    } else {
        cr_assert(key_parse_ino(key, klen, &ino));
    }
    if (topic_of(W.v->ns, ino, &of) < 0 || of != c->topic)
        return 0;
    struct row *r = NULL;
    for (size_t i = 0; i < map.n && !r; i++)
        if (map.r[i].klen == klen && !memcmp(map.r[i].key, key, klen))
            r = &map.r[i];
    if (k[0] == 'S') {
        struct seg_rec here, there;
        cr_assert_eq(seg_rec_decode(val, vlen, &here), 0);
        if (!here.has_object)
            return 0; /* nothing of it is in the bucket yet */
        c->seen++;
        cr_assert(r && r->val, "a committed segment is not in the manifest");
        cr_assert_eq(seg_rec_decode(r->val, r->vlen, &there), 0);
        cr_assert(there.object.attempt == here.object.attempt && there.end == here.object.end &&
                  there.object.version == here.object.version && there.state == SEG_COMMITTED);
        return 0;
    }
    c->seen++;
    cr_assert(r && r->val, "a row of table %c is not in the manifest", k[0]);
    cr_assert(r->vlen == vlen && !memcmp(r->val, val, vlen), "table %c: another value", k[0]);
    return 0;
}

static void bucket_says_the_same(uint64_t topic)
{
    struct compare c = {.topic = topic};
    size_t live = 0;
    replay(topic);
    for (const char *t = "INYXS"; *t; t++)
        cr_assert_eq(kv_walk(W.v->kv, t, 1, t, 1, compare_row, &c), 0);
    for (size_t i = 0; i < map.n; i++)
        live += map.r[i].val != NULL;
    cr_assert_eq(live, c.seen, "%zu rows in the manifest, %zu in the store", live, c.seen);
}

static unsigned pages_in_bucket(uint64_t topic)
{
    char prefix[64];
    snprintf(prefix, sizeof prefix, "topics/%016llx/pages/", (unsigned long long)topic);
    return small_objects(prefix);
}

static unsigned root_puts(uint64_t topic)
{
    char key[OBJ_KEY_MAX];
    manifest_root_key(topic, key, sizeof key);
    return mem_puts(W.look, key);
}

static const char *only_segment_object(void)
{
    static char found[OBJ_KEY_MAX];
    const char *k;
    cr_assert_eq(small_objects("segments/"), 1, "%u objects", small_objects("segments/"));
    for (unsigned i = 0; (k = mem_key(W.look, i)); i++)
        if (!strncmp(k, "segments/", 9))
            snprintf(found, sizeof found, "%s", k);
    return found;
}

/* By hand without a command: those end when the store seems to be down. */
static void seal(uint64_t ino)
{
    struct inode *i;
    cr_assert_eq(inode_get(W.v->ns, ino, &i), 0);
    cr_assert_geq(data_seal(W.v->data, i), 0);
    inode_put(W.v->ns, i);
}

/* ---- manifests ---- */

Test(tier, a_commit_puts_segments_and_names_into_the_manifest)
{
    uint64_t d = small_create(ROOT_INO, "t", S_IFDIR), f = small_create(d, "f", S_IFREG);
    (void)small_create(d, "link", S_IFLNK);
    small_append(f, 600 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, d), 0);
    small_settle();
    bucket_says_the_same(d);
    cr_assert_eq(small_seg(f, 0).state, SEG_COMMITTED);
    struct manifest_root r = root_of(d);
    cr_assert(r.node == 1 && r.epoch == W.v->tier->epoch && !memcmp(r.volume, WORLD_ID, 16));
    manifest_root_done(&r);
    cr_assert_eq(ns_unlink(W.v->ns, d, "f", false, NULL), 0);
    small_settle();
    bucket_says_the_same(d);
    cr_assert_eq(small_objects("segments/"), 0, "its objects are deleted later");
}

static void set(uint64_t ino, const char *name, size_t len, unsigned salt)
{
    uint8_t *buf = malloc(len);
    small_fill(buf, ino, 0, len, salt);
    cr_assert_eq(ns_setxattr(W.v->ns, ino, name, buf, len, 0, NULL), 0);
    free(buf);
}

Test(tier, many_small_pages_become_few_and_the_replaced_ones_are_deleted)
{
    uint64_t d = small_create(ROOT_INO, "t", S_IFDIR), f[10];
    unsigned most = 0;
    for (unsigned i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%u", i);
        f[i] = small_create(d, name, S_IFREG);
    }
    for (unsigned round = 0; round < 90; round++) {
        char name[32];
        for (unsigned i = 0; i < 10; i++)
            set(f[i], "user.same", 3000, round * 10 + i);
        snprintf(name, sizeof name, "user.r%u", round);
        set(f[round % 10], name, 25000, round);
        if (round >= 5) { /* tombstones */
            snprintf(name, sizeof name, "user.r%u", round - 5);
            cr_assert_eq(ns_removexattr(W.v->ns, f[(round - 5) % 10], name, NULL), 0);
        }
        small_run(6 * NS_PER_SEC);
        struct manifest_root r = root_of(d);
        most = r.pages_n > most ? r.pages_n : most;
        manifest_root_done(&r);
        if (round % 9 == 0)
            bucket_says_the_same(d);
    }
    small_settle();
    bucket_says_the_same(d);
    struct manifest_root r = root_of(d);
    cr_assert(most >= 7 && most <= 16, "at most %u pages at a time", most);
    cr_assert_eq(pages_in_bucket(d), r.pages_n, "pages that no root names are gone");
    manifest_root_done(&r);
}

/* More than an object of the manifest may hold, in one go. */
Test(tier, a_burst_of_large_values_is_spread_over_several_pages)
{
    uint64_t d = small_create(ROOT_INO, "t", S_IFDIR), f = small_create(d, "f", S_IFREG);
    for (unsigned i = 0; i < 160; i++) {
        char name[32];
        snprintf(name, sizeof name, "user.big%u", i);
        set(f, name, 60000, i);
    }
    small_settle();
    bucket_says_the_same(d);
}

Test(tier, a_burst_of_long_symbolic_links_is_spread_over_several_pages)
{
    char target[SYMLINK_BYTES_MAX + 1];
    memset(target, 't', sizeof target - 1);
    target[sizeof target - 1] = 0;
    uint64_t d = small_create(ROOT_INO, "t", S_IFDIR);
    for (unsigned i = 0; i < 2500; i++) {
        char name[16];
        struct inode *ino;
        snprintf(name, sizeof name, "l%u", i);
        struct ns_create c = {.parent = d, .name = name, .mode = S_IFLNK | 0777, .target = target};
        cr_assert_eq(ns_create(W.v->ns, &c, NULL, &ino), 0);
        inode_put(W.v->ns, ino);
    }
    small_settle();
    struct manifest_root r = root_of(d);
    cr_assert_gt(r.pages_n, 0);
    manifest_root_done(&r);
}

static void put_root(const struct manifest_root *r)
{
    uint8_t *buf;
    size_t len;
    char key[OBJ_KEY_MAX];
    cr_assert_eq(manifest_root_encode(r, &buf, &len), 0);
    manifest_root_key(r->topic, key, sizeof key);
    struct obj_body body = {.mem = buf, .fd = -1, .len = len};
    struct obj_req req = {.op = OBJ_PUT, .key = key, .body = &body, .body_n = 1};
    req.done = obj_req_done;
    obj_submit(W.look, &req);
    while (mem_step(W.look))
        ;
    cr_assert_eq(req.err, 0);
    free(buf);
}

static uint64_t committed_file(void)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 100 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    small_settle();
    bucket_says_the_same(f);
    return f;
}

Test(tier, an_earlier_write_of_our_own_is_adopted_and_written_over)
{
    uint64_t f = committed_file();
    struct manifest_root r = root_of(f);
    r.nonce[0] ^= 1; /* as if a PUT whose answer never came had taken effect late */
    r.seq++;
    put_root(&r);
    manifest_root_done(&r);
    small_append(f, 300 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    small_settle();
    bucket_says_the_same(f);
    cr_assert_not(atomic_load(&W.v->tier->fenced));
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_check(f, 0, 400 * KiB, 1);
}

Test(tier, a_manifest_with_a_newer_epoch_fences_this_mount)
{
    uint64_t f = committed_file();
    struct manifest_root r = root_of(f);
    r.nonce[0] ^= 1;
    r.epoch = W.v->tier->epoch + 1;
    put_root(&r);
    unsigned puts = root_puts(f);
    small_append(f, 300 * KiB, 1);
    cr_assert_lt(small_command(TIER_UPLOAD, f), 0, "the command ends with an error");
    small_run(60 * NS_PER_SEC);
    cr_assert(atomic_load(&W.v->tier->fenced));
    cr_assert_eq(root_puts(f), puts, "the newer manifest stays");
    unsigned objects = mem_count(W.look);
    small_append(f, 300 * KiB, 1);
    small_run(60 * NS_PER_SEC);
    cr_assert_eq(mem_count(W.look), objects, "nothing is uploaded or deleted any more");
    small_check(f, 0, 700 * KiB, 1); /* and everything is still readable here */
    manifest_root_done(&r);
}

Test(tier, a_manifest_of_another_volume_fences_as_well)
{
    uint64_t f = committed_file();
    struct manifest_root r = root_of(f);
    r.nonce[0] ^= 1;
    r.volume[3] ^= 1;
    put_root(&r);
    small_append(f, 300 * KiB, 1);
    (void)small_command(TIER_UPLOAD, f);
    small_run(60 * NS_PER_SEC);
    cr_assert(atomic_load(&W.v->tier->fenced));
    manifest_root_done(&r);
}

Test(tier, a_lost_answer_to_a_manifest_is_recognised_by_its_nonce)
{
    uint64_t f = committed_file();
    struct manifest_root r = root_of(f), now;
    unsigned puts = root_puts(f);
    small_plan("fail op=put key=topics/* lost-reply");
    small_append(f, 300 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    cr_assert_eq(fault_hits(W.v->store), 1);
    small_settle();
    bucket_says_the_same(f);
    now = root_of(f);
    cr_assert_eq(now.seq - r.seq, root_puts(f) - puts, "each was stored once");
    manifest_root_done(&r);
    manifest_root_done(&now);
}

Test(tier, a_manifest_that_fails_in_every_way_is_written_in_the_end)
{
    static const char *const how[] = {"err=503",    "err=500", "err=timeout", "err=reset",
                                      "lost-reply", "err=403", "delay=5000"};
    uint64_t f = committed_file();
    for (unsigned i = 0; i < sizeof how / sizeof *how; i++) {
        char plan[200];
        snprintf(plan, sizeof plan, "fail op=put key=topics/* count=3 %s", how[i]);
        small_plan(plan);
        small_append(f, 100 * KiB, 1);
        seal(f);
        small_settle();
        cr_assert_gt(fault_hits(W.v->store), 0, "%s", how[i]);
        small_plan("");
        bucket_says_the_same(f);
    }
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_check(f, 0, (100 + 700) * KiB, 1);
}

/* ---- uploads ---- */

Test(tier, a_lost_answer_to_a_segment_is_read_back_and_accepted)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_plan("fail op=put key=segments/* count=all lost-reply");
    small_append(f, 200 * KiB, 1);
    seal(f);
    small_settle();
    cr_assert_gt(fault_hits(W.v->store), 0);
    cr_assert_eq(mem_puts(W.look, only_segment_object()), 1, "not sent again under another key");
    cr_assert_eq(small_seg(f, 0).state, SEG_COMMITTED);
    small_settle();
    bucket_says_the_same(f);
}

Test(tier, a_segment_that_never_arrived_is_sent_again_under_a_new_key)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_plan("fail op=put key=segments/* count=12 err=timeout");
    small_append(f, 200 * KiB, 1);
    seal(f);
    small_settle();
    cr_assert_geq(fault_hits(W.v->store), 12);
    cr_assert_eq(mem_puts(W.look, only_segment_object()), 1);
    bucket_says_the_same(f);
}

Test(tier, an_object_that_arrived_damaged_is_found_before_anything_goes)
{
    W.v->tier->caps.checksum = false; /* a store that does not look at checksums */
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_plan("fail op=put key=segments/* corrupt=1000 silent");
    small_append(f, 200 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    cr_assert_eq(fault_hits(W.v->store), 1);
    small_settle();
    small_check(f, 0, 200 * KiB, 1);
    (void)only_segment_object(); /* the damaged one is deleted */
}

static bool stalled(void)
{
    return fault_stalled(W.v->store) > 0;
}

Test(tier_broker, a_segment_opened_again_during_its_upload_is_stale)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_write(f, 0, 200 * KiB, 1);
    small_plan("fail op=put key=segments/* stall");
    seal(f);
    cr_assert(small_until(stalled));
    uint32_t version = small_seg(f, 0).version;
    uint64_t stale = counter_get(W.v->tier->stale);
    small_write(f, 50 * KiB, 10 * KiB, 2);
    struct seg_rec r = small_seg(f, 0);
    cr_assert(r.state == SEG_OPEN && r.version == version + 1 && !r.has_pending);
    cr_assert_eq(small_rows('D'), 1, "the key of the upload is to be deleted");
    fault_release(W.v->store);
    small_run(5 * NS_PER_SEC);
    cr_assert_gt(counter_get(W.v->tier->stale), stale);
    cr_assert_eq(small_seg(f, 0).state, SEG_OPEN, "what was sent is not what is here");
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    (void)only_segment_object();
    small_check(f, 50 * KiB, 10 * KiB, 2);
    small_check(f, 60 * KiB, 140 * KiB, 1);
}

/* A file of one segment, whose manifest is with the store and names its first object. */
static uint64_t file_being_committed(void)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_write(f, 0, 200 * KiB, 1);
    small_plan("fail op=put key=topics/* stall");
    seal(f);
    for (unsigned n = 0; n < 600; n++) {
        small_run(100 * NS_PER_MS);
        if (small_seg(f, 0).state == SEG_UPLOADED && stalled())
            break;
        if (stalled()) /* it was names only: the next one has the segment */
            small_plan("fail op=put key=topics/* stall");
    }
    cr_assert(small_seg(f, 0).state == SEG_UPLOADED && stalled());
    return f;
}

Test(tier_broker, a_commit_of_an_older_version_commits_nothing)
{
    uint64_t f = file_being_committed();
    small_write(f, 0, 10 * KiB, 2); /* while the manifest that names it is under way */
    cr_assert_eq(small_seg(f, 0).state, SEG_OPEN);
    fault_release(W.v->store);
    small_run(3 * NS_PER_SEC);
    struct seg_rec r = small_seg(f, 0);
    cr_assert(r.state == SEG_OPEN && !r.has_object && r.local);
    small_plan("");
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    small_settle();
    (void)only_segment_object();
    small_check(f, 0, 10 * KiB, 2);
    small_check(f, 10 * KiB, 190 * KiB, 1);
    bucket_says_the_same(ROOT_INO);
}

Test(tier_broker, what_was_opened_again_and_cut_away_during_its_commit_is_taken_back)
{
    uint64_t f = file_being_committed();
    struct inode *i;
    small_write(f, 0, 10 * KiB, 2);
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    cr_assert_eq(data_truncate(W.v->data, i, 0, NULL), 0);
    inode_put(W.v->ns, i);
    fault_release(W.v->store);
    small_settle();
    cr_assert_eq(small_objects("segments/"), 0);
    bucket_says_the_same(ROOT_INO); /* a restore would look for that object */
}

/* Born in a, moved to b, whose manifest names it, and on to c: that of b is the last to know. */
Test(tier, an_object_stays_while_the_manifest_of_a_topic_in_between_names_it)
{
    uint64_t a = small_create(ROOT_INO, "a", S_IFDIR), b = small_create(ROOT_INO, "b", S_IFDIR);
    uint64_t c = small_create(ROOT_INO, "c", S_IFDIR), f = small_create(a, "f", S_IFREG);
    char old[OBJ_KEY_MAX], plan[120];
    uint64_t len;
    small_append(f, 100 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    snprintf(old, sizeof old, "%s", only_segment_object());
    cr_assert_eq(ns_rename(W.v->ns, a, "f", b, "f", 0, NULL), 0);
    small_settle();
    bucket_says_the_same(b);
    snprintf(plan, sizeof plan, "fail op=put key=topics/%016llx* count=all stall",
             (unsigned long long)b);
    small_plan(plan);
    cr_assert_eq(ns_rename(W.v->ns, b, "f", c, "f", 0, NULL), 0);
    small_append(f, 50 * KiB, 1);
    seal(f);
    for (unsigned n = 0; n < 60 && small_seg(f, 0).object.end != 150 * KiB; n++)
        small_run(NS_PER_SEC);
    cr_assert_eq(small_seg(f, 0).object.end, 150 * KiB, "committed anew in c");
    small_run(20 * NS_PER_SEC); /* the delete delay is over by far */
    cr_assert(mem_object(W.look, old, &len), "b's manifest names it");
    small_plan("");
    fault_release(W.v->store);
    small_settle();
    cr_assert_not(mem_object(W.look, old, &len));
    bucket_says_the_same(b);
    bucket_says_the_same(c);
    small_check(f, 0, 150 * KiB, 1);
}

Test(tier, a_file_removed_during_its_upload_leaves_no_object)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 200 * KiB, 1);
    small_plan("fail op=put key=segments/* stall");
    seal(f);
    cr_assert(small_until(stalled));
    cr_assert_eq(ns_unlink(W.v->ns, ROOT_INO, "f", false, NULL), 0);
    small_run(NS_PER_SEC);
    fault_release(W.v->store);
    small_settle();
    cr_assert_eq(small_objects("segments/"), 0);
    cr_assert_eq(small_rows('S'), 0);
}

/* What is older goes its way; a younger segment of the same file takes more. */
Test(tier_broker, by_age_just_the_old_segments_of_a_file_are_sealed)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    int64_t age = (int64_t)W.conf.seal_age * NS_PER_MS;
    small_write(f, 0, 4096, 1);
    small_run(age * 3 / 4);
    small_write(f, 1 * MiB, 4096, 1);
    cr_assert_eq(small_seg(f, 0).state, SEG_OPEN);
    small_run(age / 2);
    cr_assert_neq(small_seg(f, 0).state, SEG_OPEN);
    cr_assert_eq(small_seg(f, 1 * MiB).state, SEG_OPEN);
    small_run(age / 2);
    cr_assert_neq(small_seg(f, 1 * MiB).state, SEG_OPEN);
}

/* A loss of power could take the record back that says the object is not needed. */
Test(tier_broker, nothing_is_deleted_before_that_is_durable)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    int64_t next;
    unsigned quiet = 0;
    W.conf.delete_delay = 0;
    small_write(f, 0, 100 * KiB, 1);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    small_settle();
    small_write(f, 0, 100, 2);
    seal(f);
    uint32_t version = small_seg(f, 0).version;
    while (quiet < 100) { /* the journal is flushed only while the new object is not committed */
        while (exec_step(W.v->pool) || exec_step(W.v->store_pool) || exec_step(W.v->tier->actor) ||
               timers_step(W.v->timers, &next) || mem_step(W.v->store))
            ;
        struct seg_rec rec = small_seg(f, 0);
        if (rec.state == SEG_COMMITTED && rec.object.version >= version)
            quiet++;
        else if (!kv_step(W.v->kv))
            (void)exec_step(W.v->tier->blocking);
        clock_virtual_advance(100 * NS_PER_MS);
    }
    cr_assert_eq(small_rows('D'), 1);
    cr_assert_eq(small_objects("segments/"), 2, "that it was replaced is not durable");
    small_settle();
    cr_assert_eq(small_objects("segments/"), 1);
}

Test(tier, a_command_does_not_wait_for_an_open_file_without_a_name)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    struct inode *i;
    small_append(f, 100 * KiB, 1);
    cr_assert_eq(inode_get(W.v->ns, f, &i), 0);
    cr_assert_eq(ns_unlink(W.v->ns, ROOT_INO, "f", false, NULL), 0);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    cr_assert_eq(small_command(TIER_UPLOAD, f), 0);
    small_check(f, 0, 100 * KiB, 1);
    inode_put(W.v->ns, i);
    small_settle();
    cr_assert_eq(small_objects("segments/"), 0);
}

/* A writer's WARM, then EVICT by hand before the writer comes back to it. */
Test(tier_broker, what_a_writer_waits_for_is_not_evicted_before_he_has_it)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    size_t done;
    small_write(f, 0, 200 * KiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    cr_assert_eq(small_write_some(f, 0, 4096, 2, &done, NULL), -EAGAIN);
    struct small_cmd warm = {.c = {.kind = TIER_WARM, .ino = f, .len = 1, .done = small_cmd_done}};
    struct small_cmd evict = {.c = {.kind = TIER_EVICT, .ino = f, .done = small_cmd_done}};
    warm.c.arg = &warm;
    evict.c.arg = &evict;
    tier_command(W.v->tier, &warm.c);
    small_wait(&warm.done);
    cr_assert_eq(warm.err, 0);
    tier_command(W.v->tier, &evict.c);
    small_run(500 * NS_PER_MS);
    cr_assert(small_seg(f, 0).local);
    cr_assert_eq(small_write_some(f, 0, 4096, 2, &done, NULL), 0);
    small_check(f, 0, 4096, 2);
    small_check(f, 4096, 196 * KiB, 1);
    /* And one that nobody comes for does not stay for ever. */
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    warm.done = false;
    tier_command(W.v->tier, &warm.c);
    small_wait(&warm.done);
    cr_assert(small_seg(f, 0).local);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    cr_assert_not(small_seg(f, 0).local);
    for (unsigned n = 0; n < 300 && !evict.done; n++)
        small_run(NS_PER_SEC);
    cr_assert(evict.done);
}

/* ---- parts ---- */

static unsigned uploads_seen;

static void see_upload(struct obj_req *r, const struct obj_entry *e)
{
    (void)r, (void)e;
    uploads_seen++;
}

static unsigned unfinished_uploads(void)
{
    struct obj_req req = {.op = OBJ_MP_LIST, .key = "", .each = see_upload, .done = obj_req_done};
    uploads_seen = 0;
    obj_submit(W.look, &req);
    while (mem_step(W.look))
        ;
    cr_assert_eq(req.err, 0);
    return uploads_seen;
}

static void large(void)
{
    small_make(false);
    W.conf.segment_bytes = 50 * MiB;
    W.conf.multipart_above = 16 * MiB;
    W.conf.device[0].budget = 1 * GiB;
    W.conf.pool = 16 * MiB;
    small_open();
}

TestSuite(tier_parts, .init = large, .fini = small_free, .timeout = 120);

Test(tier_parts, a_large_segment_is_sent_in_parts)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 40 * MiB, 1);
    cr_assert_eq(small_command(TIER_EVICT, f), 0);
    uint64_t len;
    const char *key = only_segment_object();
    cr_assert(mem_object(W.look, key, &len) && len > 40 * MiB);
    cr_assert_eq(unfinished_uploads(), 0);
    small_check(f, 32 * MiB - 100 * KiB, 200 * KiB, 1);
    small_check(f, 0, 100 * KiB, 1);
    small_check(f, 40 * MiB - 100 * KiB, 100 * KiB, 1);
}

static void part_fails(const char *how, unsigned hits)
{
    char plan[80];
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 40 * MiB, 1);
    snprintf(plan, sizeof plan, "fail op=mp-part nth=2 %s", how);
    small_plan(plan);
    seal(f);
    small_settle();
    cr_assert_eq(fault_hits(W.v->store), hits);
    cr_assert_eq(unfinished_uploads(), 0, "the failed one was aborted");
    cr_assert_eq(small_seg(f, 0).state, SEG_COMMITTED, "and it was tried again under a new key");
    (void)only_segment_object();
    small_check(f, 39 * MiB, 1 * MiB, 1);
}

Test(tier_parts, a_part_that_fails_ends_the_whole_and_leaves_nothing_behind)
{
    part_fails("err=403", 1);
}

Test(tier_parts, so_does_one_that_is_refused_until_nobody_repeats_it)
{
    part_fails("count=10 err=503", 10);
}

Test(tier_parts, a_lost_answer_to_the_completion_is_read_back)
{
    uint64_t f = small_create(ROOT_INO, "f", S_IFREG);
    small_append(f, 40 * MiB, 1);
    small_plan("fail op=mp-complete count=all lost-reply");
    seal(f);
    small_settle();
    cr_assert_gt(fault_hits(W.v->store), 0);
    cr_assert_eq(mem_puts(W.look, only_segment_object()), 1);
    cr_assert_eq(unfinished_uploads(), 0);
}

/* ---- epochs ---- */

static void shell(const char *what, const char *a, const char *b)
{
    char cmd[300];
    snprintf(cmd, sizeof cmd, "%s '%s' '%s'", what, a, b);
    cr_assert_eq(system(cmd), 0);
}

/* The journal, on the simulated disk: set aside, and exchanged with the present one. */
static struct {
    char name[16][64], *data[16];
    size_t len[16];
    unsigned n;
} aside;

static int journal_dir(void)
{
    int dir = io_open(AT_FDCWD, "/state/journal", O_RDONLY | O_DIRECTORY, 0);
    cr_assert_geq(dir, 0);
    return dir;
}

static int note_file(void *arg, const char *name)
{
    (void)arg;
    cr_assert(aside.n < 16 && strlen(name) < 64);
    strcpy(aside.name[aside.n++], name);
    return 0;
}

static void journal_save(void)
{
    int dir = journal_dir();
    aside.n = 0;
    cr_assert_eq(io_scan(dir, ".", note_file, NULL), 0);
    for (unsigned i = 0; i < aside.n; i++)
        cr_assert_eq(io_read_file(dir, aside.name[i], 64 * MiB, &aside.data[i], &aside.len[i]), 0);
    io_close(dir);
}

static void journal_swap(void)
{
    __typeof__(aside) was = aside;
    journal_save();
    int dir = journal_dir();
    for (unsigned i = 0; i < aside.n; i++)
        cr_assert_eq(io_unlink(dir, aside.name[i], 0), 0);
    for (unsigned i = 0; i < was.n; i++) {
        cr_assert_eq(io_replace_file(dir, was.name[i], was.data[i], was.len[i], 0600), 0);
        free(was.data[i]);
    }
    io_close(dir);
}

Test(tier, a_mount_of_an_older_copy_of_the_state_is_fenced)
{
    char copy[80], newer[80];
    uint64_t f = committed_file();
    snprintf(copy, sizeof copy, "%s.copy", W.dir);
    snprintf(newer, sizeof newer, "%s.newer", W.dir);
    small_stop();
    shell("cp -a", W.dir, copy);
    journal_save();
    small_open(); /* raises the epoch, of which the copy does not know */
    small_run(5 * NS_PER_SEC);
    cr_assert_eq(W.v->tier->epoch_state, EPOCH_MINE);
    uint64_t epoch = W.v->tier->epoch;
    small_stop();
    shell("mv", W.dir, newer);
    shell("mv", copy, W.dir);
    journal_swap();
    small_open();
    unsigned objects = mem_count(W.look);
    small_append(f, 300 * KiB, 1);
    small_run(60 * NS_PER_SEC);
    cr_assert(atomic_load(&W.v->tier->fenced));
    cr_assert_eq(mem_count(W.look), objects, "it uploads nothing");
    small_check(f, 0, 400 * KiB, 1);
    small_stop();
    shell("rm -rf", W.dir, W.dir);
    shell("mv", newer, W.dir);
    journal_swap();
    small_open(); /* the rightful one goes on */
    small_run(5 * NS_PER_SEC);
    cr_assert_eq(W.v->tier->epoch_state, EPOCH_MINE);
    cr_assert_eq(W.v->tier->epoch, epoch + 1);
}

Test(tier, a_lost_answer_to_raising_the_epoch_does_not_fence_ourselves)
{
    small_stop();
    small_open();
    small_plan("fail op=put key=volume count=2 lost-reply");
    small_run(60 * NS_PER_SEC);
    cr_assert_eq(W.v->tier->epoch_state, EPOCH_MINE);
    (void)committed_file();
}

Test(tier, a_volume_object_of_somebody_else_fences)
{
    small_stop();
    small_claim(99); /* another nonce and epoch than those we remember */
    small_open();
    small_run(60 * NS_PER_SEC);
    cr_assert(atomic_load(&W.v->tier->fenced));
}
