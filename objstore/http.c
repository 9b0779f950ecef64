/* http.c: the event loop over libcurl's multi interface.
 *
 * A request moves: incoming (lock) -> queue of its class -> running (has a slot) -> done.
 *   incoming   any thread adds under `lock`; the loop empties it
 *   queues, running, slots, held, counters: the loop thread only
 *   cancelled  atomic flag of a request; `cancels` tells the loop to look for flags
 * No lock is held while a callback runs or while curl is called. We never give curl more transfers
 * than there are connections, so curl's own queue stays empty and ours decides the order.
 *
 * Connections live in the multi handle and stay warm between transfers. A request that ends early
 * (time-out, cancel) costs its connection. One transfer as curl sees it is http_slot.c.
 */
#include "objstore/http_priv.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include "fs/base/clock.h"
#include "fs/base/lock.h"
#include "fs/base/log.h"

enum {
    INTERNAL_CONNECTIONS = 2,
    LOOK_MS = 1000 /* longest sleep: bounds the effect of a lost wake-up */
};

/* ---- life of a request ---- */

static struct list *queue_of(struct http *h, const struct http_req *q)
{
    switch (q->class) {
    case HTTP_NORMAL:
        return &h->normal;
    case HTTP_UPLOAD:
        return &h->upload;
    default:
        return &h->urgent;
    }
}

static void look_by(struct http *h, int64_t ns)
{
    if (ns < h->look_ns)
        h->look_ns = ns;
}

static void count(struct http *h, const struct http_req *q, unsigned d)
{
    if (q->class == HTTP_INTERNAL)
        return;
    h->busy += d;
    h->busy_background += q->class != HTTP_URGENT ? d : 0;
    h->busy_upload += q->class == HTTP_UPLOAD ? d : 0;
}

/* A handle is used again only after a transfer that came to its end: one whose host name could not be
 * resolved keeps its buffer and refuses every further setting. Kept connections are not the handle's. */
static void slot_give_back(struct http *h, struct http_slot *s, bool again)
{
    http_slot_put(h, s);
    if (!again) {
        list_del(&s->node);
        http_slot_free(s);
    }
}

/* Ends a request that is on a queue or running. `text` may be the slot's. */
static void finish(struct http *h, struct http_req *q, enum http_end end, const char *text)
{
    list_del(&q->node);
    q->end = end;
    snprintf(q->text, sizeof(q->text), "%s", text);
    if (q->slot) {
        curl_multi_remove_handle(h->multi, q->slot->easy);
        slot_give_back(h, q->slot, end == HTTP_DONE);
        q->slot = NULL;
        count(h, q, (unsigned)-1);
        atomic_fetch_sub(&h->running_n, 1);
    } else {
        atomic_fetch_sub(&h->queued_n, 1);
    }
    q->done(q);
}

static bool may_start(const struct http *h, enum http_class class)
{
    unsigned n = h->conf.connections;
    unsigned reserve = n > 1 ? (n + 7) / 8 : 0;
    unsigned uploads = n * 3 / 4 ? n * 3 / 4 : 1;

    switch (class) {
    case HTTP_INTERNAL:
        return true;
    case HTTP_URGENT:
        return h->busy < n;
    case HTTP_NORMAL:
        return h->busy < n && h->busy_background < n - reserve;
    default:
        return h->busy < n && h->busy_background < n - reserve && h->busy_upload < uploads;
    }
}

static struct http_req *first(struct list *l)
{
    return list_empty(l) ? NULL : list_entry(l->next, struct http_req, node);
}

/* The request that shall start next, or NULL: none, or no room. */
static struct http_req *next_to_start(struct http *h)
{
    struct http_req *q = first(&h->urgent);
    struct http_req *normal = first(&h->normal);
    struct http_req *upload = first(&h->upload);

    if (h->held)
        return NULL;
    if (q && may_start(h, HTTP_URGENT))
        return q;
    if (normal && !may_start(h, HTTP_NORMAL))
        normal = NULL;
    if (upload && !may_start(h, HTTP_UPLOAD))
        upload = NULL;
    return (h->upload_turn && upload) || !normal ? upload : normal;
}

/* False: it must wait (HTTP_HOLD). Otherwise it runs, or has ended. */
static bool start_one(struct http *h, struct http_req *q)
{
    struct http_slot *slot;
    int r = q->prepare(q);

    if (r == HTTP_HOLD)
        return false;
    if (r < 0) {
        q->err = r;
        finish(h, q, HTTP_REFUSED, "");
        return true;
    }
    slot = http_slot_get(h);
    if (slot && !http_slot_setup(h, slot, q)) {
        slot_give_back(h, slot, false);
        slot = NULL;
    }
    if (!slot) {
        finish(h, q, HTTP_FAILED, "out of memory");
        return true;
    }
    q->slot = slot;
    q->body_off = 0;
    q->unsent = 0;
    q->progress_ns = clock_mono_ns();
    list_del(&q->node);
    list_add_tail(&h->running, &q->node);
    atomic_fetch_sub(&h->queued_n, 1);
    atomic_fetch_add(&h->running_n, 1);
    count(h, q, 1);
    look_by(h, q->progress_ns + (int64_t)q->idle_ms * NS_PER_MS);
    if (curl_multi_add_handle(h->multi, slot->easy) != CURLM_OK)
        finish(h, q, HTTP_FAILED, "out of memory");
    return true;
}

static void start(struct http *h)
{
    struct http_req *q;

    while ((q = next_to_start(h)) != NULL) {
        h->upload_turn = q->class != HTTP_UPLOAD;
        if (!start_one(h, q))
            h->held = true;
    }
}

static enum http_end end_of(CURLcode code, const struct http_req *q)
{
    switch (code) {
    case CURLE_OK:
        return q->status ? HTTP_DONE : HTTP_BROKEN;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT: /* of connecting: we set no other */
        return HTTP_UNREACHED;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
        return HTTP_UNTRUSTED;
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SEND_FAIL_REWIND:
        return q->status >= 300 ? HTTP_DONE : HTTP_BROKEN;
    default:
        return HTTP_FAILED;
    }
}

static bool reap(struct http *h)
{
    CURLMsg *m;
    int left;
    bool any = false;

    while ((m = curl_multi_info_read(h->multi, &left)) != NULL) {
        struct http_req *q = NULL;
        long request_bytes = 0;
        char text[CURL_ERROR_SIZE] = "";

        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &q);
        curl_easy_getinfo(m->easy_handle, CURLINFO_REQUEST_SIZE, &request_bytes);
        q->sent = request_bytes > 0;
        if (code == CURLE_SEND_ERROR && !q->status && !q->err)
            http_slot_last_words(h, q->slot, q);
        enum http_end end = q->err ? HTTP_REFUSED : end_of(code, q);
        if (end != HTTP_DONE)
            snprintf(text, sizeof(text), "%s",
                     q->slot->error[0] ? q->slot->error : curl_easy_strerror(code));
        finish(h, q, end, text);
        any = true;
    }
    h->words_n = 0;
    return any;
}

/* ---- waits ---- */

/* Bytes that still leave the socket's send queue are progress that curl does not see. */
static bool still_sending(struct http_req *q)
{
    curl_socket_t fd = CURL_SOCKET_BAD;
    int unsent = 0;

    if (!q->has_body || curl_easy_getinfo(q->slot->easy, CURLINFO_ACTIVESOCKET, &fd) != CURLE_OK ||
        fd == CURL_SOCKET_BAD || ioctl(fd, SIOCOUTQ, &unsent) < 0)
        return false;
    bool moved = unsent > 0 && unsent != q->unsent;
    q->unsent = unsent;
    return moved;
}

static void mark_sent(struct http_req *q)
{
    long n = 0;

    curl_easy_getinfo(q->slot->easy, CURLINFO_REQUEST_SIZE, &n);
    q->sent = n > 0;
}

static void look_queue(struct http *h, struct list *l, int64_t now, bool stop)
{
    list_each_safe(l, it, tmp)
    {
        struct http_req *q = list_entry(it, struct http_req, node);
        if (stop || atomic_load(&q->cancelled))
            finish(h, q, HTTP_CANCELLED, "");
        else if (q->deadline_ns && now >= q->deadline_ns)
            finish(h, q, HTTP_EXPIRED, "the deadline came before the request could start");
        else if (q->deadline_ns)
            look_by(h, q->deadline_ns);
    }
}

static void look_running(struct http *h, int64_t now, bool stop)
{
    list_each_safe(&h->running, it, tmp)
    {
        struct http_req *q = list_entry(it, struct http_req, node);
        int64_t due = q->progress_ns + (int64_t)q->idle_ms * NS_PER_MS;
        char text[HTTP_TEXT_MAX] = "";
        enum http_end end = HTTP_DONE;

        if (stop || atomic_load(&q->cancelled)) {
            end = HTTP_CANCELLED;
        } else if (q->deadline_ns && now >= q->deadline_ns) {
            end = HTTP_EXPIRED;
            snprintf(text, sizeof(text), "the deadline came before the answer");
        } else if (now >= due) {
            if (still_sending(q)) {
                q->progress_ns = now;
                due = now + (int64_t)q->idle_ms * NS_PER_MS;
            } else {
                end = HTTP_STALLED;
                snprintf(text, sizeof(text), "no byte moved for %u ms", q->idle_ms);
            }
        }
        if (end != HTTP_DONE) {
            mark_sent(q);
            finish(h, q, end, text);
        } else {
            look_by(h, q->deadline_ns && q->deadline_ns < due ? q->deadline_ns : due);
        }
    }
}

/* Ends what has been cancelled, has expired or stands still; sets the time of the next look. */
static void look(struct http *h, int64_t now, bool stop)
{
    h->look_ns = INT64_MAX;
    look_queue(h, &h->urgent, now, stop);
    look_queue(h, &h->normal, now, stop);
    look_queue(h, &h->upload, now, stop);
    look_running(h, now, stop);
}

/* True: the loop shall stop. */
static bool take_incoming(struct http *h)
{
    struct list taken;
    bool stop;

    list_init(&taken);
    lock_acquire(&h->lock);
    while (!list_empty(&h->incoming)) {
        struct list *n = h->incoming.next;
        list_del(n);
        list_add_tail(&taken, n);
    }
    stop = h->stop;
    lock_release(&h->lock);

    list_each_safe(&taken, it, tmp)
    {
        struct http_req *q = list_entry(it, struct http_req, node);
        list_del(it);
        list_add_tail(queue_of(h, q), it);
        if (q->deadline_ns)
            look_by(h, q->deadline_ns);
        if (q->class == HTTP_INTERNAL && !stop && !atomic_load(&q->cancelled))
            start_one(h, q); /* its prepare never holds */
    }
    return stop;
}

static void note_silence(struct http *h)
{
    int64_t since = INT64_MAX;
    list_each(&h->running, it)
    {
        const struct http_req *q = list_entry(it, struct http_req, node);
        if (q->progress_ns < since)
            since = q->progress_ns;
    }
    atomic_store(&h->still_since_ns, since);
}

static bool idle(struct http *h)
{
    lock_acquire(&h->lock);
    bool none = list_empty(&h->incoming);
    lock_release(&h->lock);
    return none && list_empty(&h->urgent) && list_empty(&h->normal) && list_empty(&h->upload) &&
           list_empty(&h->running);
}

static void *loop(void *arg)
{
    struct http *h = arg;
    int running;

    for (;;) {
        bool stop = take_incoming(h);
        int64_t now = clock_mono_ns();
        bool cancels = atomic_exchange(&h->cancels, false);
        if (stop || cancels || now >= h->look_ns)
            look(h, now, stop);
        if (stop) {
            if (idle(h))
                return NULL;
            continue;
        }
        start(h);
        curl_multi_perform(h->multi, &running);
        if (reap(h))
            continue; /* room has become free */
        note_silence(h);
        int64_t sleep_ms = LOOK_MS;
        now = clock_mono_ns();
        if (h->look_ns - now < sleep_ms * NS_PER_MS)
            sleep_ms = h->look_ns <= now ? 0 : (h->look_ns - now) / NS_PER_MS + 1;
        curl_multi_poll(h->multi, NULL, 0, (int)sleep_ms, NULL);
    }
}

/* ---- any thread ---- */

void http_submit(struct http *h, struct http_req *q)
{
    q->slot = NULL;
    q->end = HTTP_DONE;
    q->status = 0;
    q->err = 0;
    q->sent = q->started = q->resent = false;
    q->text[0] = '\0';
    atomic_store(&q->cancelled, false);
    atomic_fetch_add(&h->queued_n, 1);
    lock_acquire(&h->lock);
    bool wake = list_empty(&h->incoming);
    list_add_tail(&h->incoming, &q->node);
    lock_release(&h->lock);
    if (wake)
        curl_multi_wakeup(h->multi);
}

void http_cancel(struct http *h, struct http_req *q)
{
    atomic_store(&q->cancelled, true);
    atomic_store(&h->cancels, true);
    curl_multi_wakeup(h->multi);
}

void http_resume(struct http *h)
{
    h->held = false;
    curl_multi_wakeup(h->multi);
}

void http_counts(struct http *h, uint64_t *queued, uint64_t *in_flight, int64_t *silent_ns)
{
    int64_t since = atomic_load(&h->still_since_ns), now = clock_mono_ns();
    *queued = atomic_load(&h->queued_n);
    *in_flight = atomic_load(&h->running_n);
    *silent_ns = since < now ? now - since : 0;
}

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void curl_init(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static void release(struct http *h)
{
    list_each_safe(&h->free_slots, it, tmp) http_slot_free(list_entry(it, struct http_slot, node));
    if (h->multi)
        curl_multi_cleanup(h->multi);
    lock_destroy(&h->lock);
    free(h->ca_bundle);
    free(h->user_agent);
    free(h);
}

int http_open(const struct http_conf *conf, struct http **ret)
{
    sigset_t all, before;
    struct http *h = calloc(1, sizeof(*h));
    int r = -ENOMEM;

    assert(conf->connections >= 1);
    if (!h)
        return r;
    pthread_once(&curl_once, curl_init);
    lock_init(&h->lock, "http", RANK_STORE_LOW, false);
    struct list *const lists[] = {&h->incoming, &h->urgent,  &h->normal,
                                  &h->upload,   &h->running, &h->free_slots};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        list_init(lists[i]);
    h->conf = *conf;
    h->look_ns = INT64_MAX;
    atomic_store(&h->still_since_ns, INT64_MAX);
    h->ca_bundle = conf->ca_bundle ? strdup(conf->ca_bundle) : NULL;
    h->user_agent = strdup(conf->user_agent);
    h->multi = curl_multi_init();
    if (!h->multi || !h->user_agent || (conf->ca_bundle && !h->ca_bundle))
        goto fail;
    curl_multi_setopt(h->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                      (long)(conf->connections + INTERNAL_CONNECTIONS));
    curl_multi_setopt(h->multi, CURLMOPT_MAXCONNECTS,
                      (long)(conf->connections + INTERNAL_CONNECTIONS));
    curl_multi_setopt(h->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);

    /* The thread takes no signals; SIGPIPE from inside TLS must not end the process either. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = -pthread_create(&h->thread, NULL, loop, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r)
        goto fail;
    pthread_setname_np(h->thread, "store");
    *ret = h;
    return 0;
fail:
    release(h);
    return r;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    assert(!pthread_equal(pthread_self(), h->thread));
    lock_acquire(&h->lock);
    h->stop = true;
    lock_release(&h->lock);
    curl_multi_wakeup(h->multi);
    pthread_join(h->thread, NULL);
    release(h);
}
