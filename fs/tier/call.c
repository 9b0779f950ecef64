/* call.c: requests of the tiering actor to the store. Each is listed while the store has it, so that
 * unmounting can give all of them up; its end comes to the actor as a task, or wakes the thread of the
 * `blocking` pool that waits for it.
 *
 * Lock: tier.call_mu (RANK_TIER) guards the list and orders cancel against done.
 */
#include "fs/tier/internal.h"

#include <errno.h>

static void call_ended(struct obj_req *req)
{
    struct store_call *c = container_of(req, struct store_call, req);
    struct tier *t = c->t;
    lock_acquire(&t->call_mu);
    list_del(&c->link);
    if (c->waits) {
        c->ended = true;
        pthread_cond_broadcast(&t->call_cond);
        lock_release(&t->call_mu); /* from here on the waiter may free c */
        return;
    }
    lock_release(&t->call_mu);
    exec_submit(t->actor, &c->task);
}

static void call_task(struct task *task)
{
    struct store_call *c = container_of(task, struct store_call, task);
    c->done(c);
}

static void submit(struct tier *t, struct store_call *c)
{
    c->t = t;
    c->task.run = call_task;
    c->req.done = call_ended;
    c->req.arg = c;
    lock_acquire(&t->call_mu);
    bool stopping = atomic_load(&t->stopping) && !c->even_when_stopping;
    list_add_tail(&t->calls, &c->link);
    if (!stopping)
        obj_submit(t->v->store, &c->req);
    lock_release(&t->call_mu);
    if (stopping) {
        c->req.err = -ECANCELED;
        call_ended(&c->req);
    }
}

void call_submit(struct tier *t, struct store_call *c)
{
    c->waits = false;
    submit(t, c);
}

int call_run(struct tier *t, struct store_call *c)
{
    c->waits = true;
    c->ended = false;
    submit(t, c);
    lock_acquire(&t->call_mu);
    while (!c->ended && !t->v->pump)
        lock_wait(&t->call_mu, &t->call_cond);
    while (!c->ended) {
        lock_release(&t->call_mu);
        volume_pause(t->v, 0);
        lock_acquire(&t->call_mu);
    }
    lock_release(&t->call_mu);
    return c->req.err;
}

void call_cancel_all(struct tier *t)
{
    LOCK_SCOPE(&t->call_mu);
    list_each(&t->calls, l) obj_cancel(t->v->store, &list_entry(l, struct store_call, link)->req);
}
