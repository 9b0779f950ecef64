/* http_priv.h: what http.c (the loop) and http_slot.c (one transfer) share. Only these two include
 * curl. */
#ifndef SLUICE_OBJSTORE_HTTP_PRIV_H
#define SLUICE_OBJSTORE_HTTP_PRIV_H

#include <curl/curl.h>
#include "fs/base/lock.h"
#include "objstore/http.h"

enum {
    LAST_WORDS_MAX = 8192,
    LAST_WORDS_KEPT = 8 /* connections that may break in one turn of the loop and still be heard */
};

/* What a server had said on a connection that curl gave up while sending. */
struct last_words {
    long local_port;
    size_t len;
    char text[LAST_WORDS_MAX + 1];
};

struct http_slot {
    CURL *easy;
    struct curl_slist *headers;
    struct list node; /* on the free list */
    char error[CURL_ERROR_SIZE];
};

struct http {
    CURLM *multi;
    pthread_t thread;
    struct http_conf conf;
    char *ca_bundle, *user_agent;

    struct lock lock;
    struct list incoming;
    bool stop;
    _Atomic bool cancels;
    _Atomic uint64_t queued_n, running_n;
    _Atomic int64_t still_since_ns; /* the oldest progress of a running one; INT64_MAX: none runs */

    /* loop thread only */
    struct list urgent, normal, upload, running, free_slots;
    unsigned busy, busy_background, busy_upload;
    bool held;                                /* a prepare said HTTP_HOLD */
    bool upload_turn;                         /* who goes next of normal and upload */
    int64_t look_ns;                          /* earliest time at which a wait may be over */
    struct last_words words[LAST_WORDS_KEPT]; /* of this turn */
    unsigned words_n;
};

/* A slot, reused when there is one; NULL: out of memory. All of these: loop thread only. */
struct http_slot *http_slot_get(struct http *h);
void http_slot_put(struct http *h, struct http_slot *s);
void http_slot_free(struct http_slot *s);

/* Makes the slot's handle carry out q, whose prepare has run. False: out of memory. */
bool http_slot_setup(struct http *h, struct http_slot *s, struct http_req *q);

/* Sending on q's connection failed: gives q the answer that was left in it, if there was one. */
void http_slot_last_words(struct http *h, struct http_slot *s, struct http_req *q);

#endif
