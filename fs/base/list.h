/* list.h: intrusive doubly linked list. A node belongs to at most one list; a node that is on no
 * list points at itself after list_init/list_del. No locks, no allocation. */
#ifndef SLUICE_BASE_LIST_H
#define SLUICE_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include "fs/base/cleanup.h"

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_add_tail(struct list *head, struct list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

static inline void list_add_head(struct list *head, struct list *n)
{
    n->next = head->next;
    n->prev = head;
    head->next->prev = n;
    head->next = n;
}

static inline void list_del(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

#define list_entry(node, type, member) container_of(node, type, member)
#define list_each(head, it)            for (struct list *it = (head)->next; it != (head); it = it->next)
/* The current node may be removed inside the loop. */
#define list_each_safe(head, it, tmp)                                                              \
    for (struct list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)

#endif
