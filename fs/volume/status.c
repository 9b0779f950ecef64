/* status.c: what a volume says about itself: two JSON documents and the metrics. Everything comes from
 * memory and the metadata store; nothing waits for a device or the object store, so that this works
 * while they hang. The store's URL cannot hold secrets: store_url_parse refuses those.
 *
 * Numbers that only a lock can give are printed here behind the registry's text: functions of the
 * registry may not take locks.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/cache.h"
#include "fs/base/bytes.h"
#include "fs/base/clock.h"
#include "fs/base/exec.h"
#include "fs/base/log.h"
#include "fs/base/stats.h"
#include "fs/data/data.h"
#include "fs/meta/kv.h"
#include "fs/meta/rec.h"
#include "fs/ns/ns.h"
#include "fs/policy/policy.h"
#include "fs/seg/dev.h"
#include "fs/tier/scrub.h"
#include "fs/tier/tier.h"
#include "fs/volume/json.h"
#include "fs/volume/volume.h"
#include "objstore/objstore.h"

#define LLU(v) ((unsigned long long)(v))

static const char *health_text(enum objstore_health h)
{
    return h == OBJ_HEALTH_OK ? "ok" : h == OBJ_HEALTH_DEGRADED ? "degraded" : "down";
}

static const char *device_text(const struct dev_info *i)
{
    return i->state == DEV_FAILED    ? "failed"
           : i->state == DEV_MISSING ? "missing"
           : i->drained              ? "drained"
           : i->draining             ? "draining"
                                     : "ok";
}

/* Seconds since this process began. */
static double uptime_seconds(void)
{
    char line[1024], *p = NULL;
    unsigned long long start = 0;
    FILE *f = fopen("/proc/self/stat", "re");
    if (!f)
        return NAN;
    if (fgets(line, sizeof(line), f))
        p = strrchr(line, ')'); /* the name before it may hold anything */
    (void)fclose(f);
    /* The 22nd field is the start, in ticks since boot; behind the name it is the 20th. */
    for (int k = 0; p && k < 20; k++)
        p = strchr(p + 1, ' ');
    if (!p)
        return NAN;
    start = strtoull(p, NULL, 10);
    return (double)clock_boot_ns() / NS_PER_SEC - (double)start / (double)sysconf(_SC_CLK_TCK);
}

static void json_time(FILE *f, int64_t wall_ns)
{
    time_t s = (time_t)(wall_ns / NS_PER_SEC);
    struct tm tm;
    char text[40];
    if (wall_ns <= 0 || !gmtime_r(&s, &tm) ||
        !strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm))
        (void)fputs("null", f);
    else
        json_string(f, text);
}

/* ---- the volume ---- */

static void print_drain(const struct dev_info *i, FILE *f)
{
    if (!i->draining) {
        (void)fputs("null", f);
        return;
    }
    uint64_t done = i->drain_total - i->drain_left;
    fprintf(f, "{\"percent\":%u,\"left\":%llu,\"total\":%llu,\"waits\":",
            i->drained       ? 100
            : i->drain_total ? (unsigned)((double)done / (double)i->drain_total * 100)
                             : 0,
            LLU(i->drain_left), LLU(i->drain_total));
    json_string(f, *i->drain_note ? i->drain_note : NULL);
    (void)fputc('}', f);
}

static void print_devices(struct volume *v, FILE *f)
{
    (void)fputs("\"devices\":[", f);
    const char *comma = "";
    for (unsigned k = 0; k < devs_count(v->devs); k++) {
        struct dev_info i;
        if (!devs_info(v->devs, k, &i))
            continue;
        fprintf(f, "%s{\"id\":%u,\"path\":", comma, i.id);
        comma = ",\n ";
        json_string(f, i.path);
        fprintf(f, ",\"budget\":%llu,\"used\":%llu,\"filesystem_free\":%llu,\"state\":\"%s\"",
                LLU(i.budget), LLU(i.used), LLU(i.fs_free), device_text(&i));
        (void)fputs(",\"error\":", f);
        json_string(f, i.state == DEV_OK ? NULL : i.error);
        (void)fputs(",\"drain\":", f);
        print_drain(&i, f);
        (void)fputc('}', f);
    }
    (void)fputs("],\n", f);
}

static void print_store(struct volume *v, FILE *f)
{
    struct objstore_status s = {0};
    obj_status(v->store, &s);
    double wait = (double)(s.next_probe_ns - clock_mono_ns()) / NS_PER_SEC;
    wait = wait > 0 ? wait : 0;
    (void)fputs("\"store\":{\"url\":", f);
    json_string(f, v->conf->store);
    fprintf(f, ",\"state\":\"%s\",\"reason\":", health_text(s.health));
    json_string(f, s.health == OBJ_HEALTH_OK ? NULL : s.reason);
    (void)fputs(",\"since\":", f);
    json_time(f, s.since_ns ? clock_wall_ns() - (clock_mono_ns() - s.since_ns) : 0);
    fprintf(f, ",\"queued\":%llu,\"in_flight\":%llu,\"next_probe_seconds\":", LLU(s.queued),
            LLU(s.in_flight));
    json_double(f, s.next_probe_ns ? wait : NAN);
    (void)fputs("},\n", f);
}

static void print_usage(struct volume *v, const struct tier_usage *u, FILE *f)
{
    uint64_t pool_used, pool_size;
    struct kv_usage kv;
    cache_usage(v->cache, &pool_used, &pool_size);
    kv_usage(v->kv, &kv);
    fprintf(f,
            "\"bytes\":{\"logical\":%llu,\"local\":%llu,\"remote\":%llu,\"pending_upload\":%llu,"
            "\"kept\":%llu},\n"
            "\"segments\":{\"open\":%llu,\"sealed\":%llu,\"uploaded\":%llu,\"committed\":%llu,"
            "\"remote\":%llu},\n",
            LLU(u->logical), LLU(u->local), LLU(u->remote), LLU(u->pending), LLU(u->kept),
            LLU(u->segments_open), LLU(u->segments_sealed), LLU(u->segments_uploaded),
            LLU(u->segments_committed), LLU(u->segments_remote));
    (void)fputs("\"oldest_pending_seconds\":", f);
    json_double(f, u->oldest_pending_seconds);
    (void)fputs(",\n\"time_to_full_seconds\":", f);
    json_double(f, u->time_to_full_seconds < 0 ? NAN : u->time_to_full_seconds);
    fprintf(f,
            ",\n\"pool\":{\"size\":%llu,\"used\":%llu},\n"
            "\"queues\":{\"upload\":%llu,\"uploading\":%llu,\"manifest\":%llu,\"delete\":%llu,"
            "\"unlink\":%llu,\"device\":%llu},\n"
            "\"metadata\":{\"journal_bytes\":%llu,\"memory_bytes\":%llu,\"store_bytes\":%llu,"
            "\"full\":%s},\n"
            "\"inodes\":{\"used\":%llu,\"in_memory\":%llu},\n\"fenced\":%s,\n",
            LLU(pool_size), LLU(pool_used), LLU(u->queue_upload), LLU(u->uploading),
            LLU(u->queue_manifest), LLU(u->queue_delete), LLU(u->queue_unlink),
            LLU(v->pool ? exec_queued(v->pool) : 0), LLU(kv.journal_bytes), LLU(kv.overlay_bytes),
            LLU(kv.lmdb_bytes), kv.full ? "true" : "false", LLU(ns_inodes_used(v->ns)),
            LLU(inodes_in_memory(v->ns)), u->fenced ? "true" : "false");
}

static void print_scrub(struct volume *v, FILE *f)
{
    static const char *const states[] = {[SCRUB_OFF] = "off",
                                         [SCRUB_WAITING] = "waiting",
                                         [SCRUB_PARTIAL] = "partial",
                                         [SCRUB_FULL] = "full",
                                         [SCRUB_PAUSED] = "paused"};
    struct scrub_status s;
    tier_scrub_status(v->tier, &s);
    fprintf(f, "\"scrub\":{\"state\":\"%s\",\"last_partial\":", states[s.state]);
    json_time(f, s.last_partial_ns);
    (void)fputs(",\"last_full\":", f);
    json_time(f, s.last_full_ns);
    fprintf(f,
            ",\"segments\":%llu,\"bytes\":%llu,\"objects\":%llu,\"healed\":%llu,\"left\":%llu,"
            "\"last_damage\":",
            LLU(s.segments), LLU(s.bytes), LLU(s.objects), LLU(s.healed), LLU(s.left));
    json_string(f, *s.last_damage ? s.last_damage : NULL);
    (void)fputs("},\n", f);
}

int volume_status_json(struct volume *v, FILE *f)
{
    struct tier_usage u = {0};
    const struct config *c = v->conf;
    tier_usage(v->tier, &u);
    (void)fputs("{\"volume_id\":", f);
    json_string(f, v->id_text);
    fprintf(f, ",\n\"node_id\":%u,\n\"profile\":\"%s\",\n\"version\":\"%s\",\n\"mountpoint\":",
            v->node, v->topics_profile ? "topics" : "broker", SLUICE_VERSION);
    json_string(f, c->mountpoint);
    fprintf(f,
            ",\n\"read_only\":%s,\n\"pid\":%d,\n\"supervised\":%s,\n\"supervisor\":%d,\n"
            "\"restarts\":%u,\n\"uptime\":",
            c->read_only ? "true" : "false", (int)getpid(), c->supervised ? "true" : "false",
            c->supervisor, c->takeovers);
    json_double(f, uptime_seconds());
    (void)fputs(",\n\"state_directory\":", f);
    json_string(f, c->state);
    if (c->state) {
        char *path;
        if (asprintf(&path, "%s/control.sock", c->state) < 0)
            return -ENOMEM;
        (void)fputs(",\n\"control\":", f);
        json_string(f, path);
        free(path);
    }
    (void)fputs(",\n\"policy\":", f);
    policy_status_json(v->policy, f);
    (void)fputs(",\n", f);
    print_devices(v, f);
    print_store(v, f);
    print_usage(v, &u, f);
    print_scrub(v, f);
    (void)fputs("\"format\":1}\n", f);
    return ferror(f) ? -EIO : 0;
}

/* ---- one file ---- */

struct seg_printer {
    struct volume *v;
    FILE *f;
    uint64_t ino, size, n;
    bool open, sealed,
        cold;  /* some segment is appended to; is closed on a device; is in the store only */
    bool have; /* a record waits for its successor: an open one ends there or at the file's end */
    uint64_t base;
    struct seg_rec rec;
    int err;
};

static const char *segment_text(const struct seg_rec *r)
{
    switch (r->state) {
    case SEG_OPEN:
        return "open";
    case SEG_SEALED:
        return "sealed";
    case SEG_UPLOADED:
        return "uploaded";
    default:
        return r->local ? "committed" : "remote";
    }
}

static void print_segment(struct seg_printer *p, uint64_t next_base)
{
    const struct seg_rec *r = &p->rec;
    uint64_t end = r->state == SEG_OPEN ? max_u64(r->end, min_u64(next_base, p->size)) : r->end;
    char key[OBJ_KEY_MAX];
    const struct seg_object *o = r->has_object ? &r->object : r->has_pending ? &r->pending : NULL;
    p->open |= r->state == SEG_OPEN;
    p->sealed |= r->state != SEG_OPEN && r->local;
    p->cold |= !r->local;
    fprintf(p->f, "%s\n {\"base\":%llu,\"end\":%llu,\"state\":\"%s\",\"local\":%s,\"remote\":%s",
            p->n++ ? "," : "", LLU(p->base), LLU(end), segment_text(r), r->local ? "true" : "false",
            r->has_object ? "true" : "false");
    const char *path = NULL;
    struct dev_info i;
    for (unsigned k = 0; r->local && !path && k < devs_count(p->v->devs); k++) {
        if (devs_info(p->v->devs, k, &i) && i.id == r->device)
            path = i.path;
    }
    (void)fputs(",\"device\":", p->f);
    json_string(p->f, path);
    (void)fputs(",\"key\":", p->f);
    json_string(p->f, o && !seg_object_key(o, p->ino, p->base, key, sizeof(key)) ? key : NULL);
    fprintf(p->f, ",\"object_end\":%llu,\"version\":%u}", LLU(o ? o->end : p->base), r->version);
}

static int each_segment(void *arg, const void *key, size_t klen, const void *val, size_t vlen)
{
    struct seg_printer *p = arg;
    uint64_t ino, base;
    struct seg_rec rec;
    if (!key_parse_seg(key, klen, &ino, &base)) {
        p->err = -EBADMSG;
        return 1;
    }
    p->err = seg_rec_decode(val, vlen, &rec);
    if (p->err)
        return 1;
    if (p->have)
        print_segment(p, base);
    p->have = true;
    p->base = base;
    p->rec = rec;
    return 0;
}

/* hot: no byte is anywhere else than where it was written. */
static const char *tier_text(const struct seg_printer *p)
{
    return !p->cold ? (p->sealed ? "warm" : "hot") : p->open || p->sealed ? "mixed" : "cold";
}

static const char *type_text(mode_t mode)
{
    return S_ISREG(mode)    ? "file"
           : S_ISDIR(mode)  ? "directory"
           : S_ISLNK(mode)  ? "link"
           : S_ISFIFO(mode) ? "fifo"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

int volume_inode_json(struct volume *v, uint64_t ino, FILE *f)
{
    struct inode *i;
    struct stat st;
    int err = inode_get(v->ns, ino, &i);
    if (err)
        return err;
    data_stat(v->data, i, &st);
    inode_put(v->ns, i);
    fprintf(f, "{\"inode\":%llu,\"type\":\"%s\",\"size\":%llu,\"stored_bytes\":%llu,", LLU(ino),
            type_text(st.st_mode), LLU(st.st_size), LLU(st.st_blocks) * 512);
    if (S_ISREG(st.st_mode)) {
        policy_rule_json(v->policy, ino, f);
        (void)fputc(',', f);
    }
    (void)fputs("\"segments\":[", f);
    struct seg_printer p = {.v = v, .f = f, .ino = ino, .size = (uint64_t)st.st_size};
    struct key k = key_seg(ino, 0);
    enum { PREFIX = 1 + 8 }; /* table, inode */
    int r = kv_walk(v->kv, k.b, PREFIX, k.b, PREFIX, each_segment, &p);
    if (p.have && !p.err)
        print_segment(&p, UINT64_MAX);
    fprintf(f, "],\"tier\":\"%s\"}\n", tier_text(&p));
    return p.err ? p.err : r < 0 ? r : ferror(f) ? -EIO : 0;
}

/* ---- metrics ---- */

static void gauge(FILE *f, const char *name, const char *help)
{
    fprintf(f, "# HELP sluicefs_%s %s\n# TYPE sluicefs_%s gauge\n", name, help, name);
}

/* A label's value: backslash, quote and newline are escaped. */
static void label(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '\n') {
            (void)fputs("\\n", f);
            continue;
        }
        if (*s == '\\' || *s == '"')
            (void)fputc('\\', f);
        (void)fputc(*s, f);
    }
}

enum device_gauge { DEVICE_USED, DEVICE_BUDGET, DEVICE_FILL, DEVICE_OK };

static void device_gauges(struct volume *v, FILE *f)
{
    static const char *const names[][2] = {
        [DEVICE_USED] = {"device_used_bytes", "Bytes of segment files on a device"},
        [DEVICE_BUDGET] = {"device_budget_bytes", "Bytes that segment files may take on a device"},
        [DEVICE_FILL] = {"device_fill_ratio", "Share of the budget in use"},
        [DEVICE_OK] = {"device_ok", "1: takes new segments; 0: draining, failed or missing"},
    };
    for (unsigned g = DEVICE_USED; g <= DEVICE_OK; g++) {
        gauge(f, names[g][0], names[g][1]);
        for (unsigned k = 0; k < devs_count(v->devs); k++) {
            struct dev_info i;
            if (!devs_info(v->devs, k, &i))
                continue;
            fprintf(f, "sluicefs_%s{device=\"", names[g][0]);
            label(f, i.path);
            (void)fputs("\"} ", f);
            if (g == DEVICE_FILL)
                fprintf(f, "%.6f\n", i.budget ? (double)i.used / (double)i.budget : 0);
            else
                fprintf(f, "%llu\n",
                        g == DEVICE_USED     ? LLU(i.used)
                        : g == DEVICE_BUDGET ? LLU(i.budget)
                                             : LLU(i.state == DEV_OK && !i.draining));
        }
    }
}

void volume_metrics(struct volume *v, FILE *f)
{
    struct tier_usage u = {0};
    struct objstore_status s = {0};
    uint64_t pool_used, pool_size;
    stats_print(v->stats, f);
    tier_usage(v->tier, &u);
    obj_status(v->store, &s);
    cache_usage(v->cache, &pool_used, &pool_size);

    device_gauges(v, f);
    gauge(f, "pool_bytes", "Size of the pool of slices");
    fprintf(f, "sluicefs_pool_bytes %llu\n", LLU(pool_size));
    gauge(f, "queue_length", "Entries waiting, by queue");
    fprintf(f,
            "sluicefs_queue_length{queue=\"upload\"} %llu\n"
            "sluicefs_queue_length{queue=\"manifest\"} %llu\n"
            "sluicefs_queue_length{queue=\"delete\"} %llu\n"
            "sluicefs_queue_length{queue=\"unlink\"} %llu\n"
            "sluicefs_queue_length{queue=\"store\"} %llu\n",
            LLU(u.queue_upload), LLU(u.queue_manifest), LLU(u.queue_delete), LLU(u.queue_unlink),
            LLU(s.queued));
    gauge(f, "uploading", "Segments being uploaded");
    fprintf(f, "sluicefs_uploading %llu\n", LLU(u.uploading));
    gauge(f, "store_in_flight", "Requests to the store under way");
    fprintf(f, "sluicefs_store_in_flight %llu\n", LLU(s.in_flight));
    gauge(f, "store_state", "1 for the state that the store is in");
    for (enum objstore_health h = OBJ_HEALTH_OK; h <= OBJ_HEALTH_DOWN; h++)
        fprintf(f, "sluicefs_store_state{state=\"%s\"} %d\n", health_text(h), s.health == h);
    gauge(f, "time_to_full_seconds", "Until the devices are full at the present rate; +Inf: never");
    if (u.time_to_full_seconds < 0)
        (void)fputs("sluicefs_time_to_full_seconds +Inf\n", f);
    else
        fprintf(f, "sluicefs_time_to_full_seconds %.3f\n", u.time_to_full_seconds);
    gauge(f, "fenced", "1: another mount took this volume over, nothing is uploaded any more");
    fprintf(f, "sluicefs_fenced %d\n", u.fenced);
    gauge(f, "build_info", "1, with the version");
    fprintf(f, "sluicefs_build_info{version=\"%s\",profile=\"%s\"} 1\n", SLUICE_VERSION,
            v->topics_profile ? "topics" : "broker");
}
