/* act_int.h: what the files of actions share. A do_* function picks what it acts on by chance.
 *
 *   act.c           choosing, faults, crashes      act_names.c      create, unlink, rename, link, setattr
 *   act_bytes.c     write, truncate                act_requests.c   read, fsync, handles, commands
 */
#ifndef SLUICE_SIM_ACT_INT_H
#define SLUICE_SIM_ACT_INT_H

#include "tests/sim/sim.h"

/* An error that the disk's misbehaviour explains. */
bool explained(struct world *w, int r);

bool is_dir(struct world *w, uint64_t ino);
uint64_t pick_dir(struct world *w);
int pick_entry(struct world *w, bool files_only); /* index in the present names; -1: none */
struct mfile *pick_file(struct world *w);         /* NULL: none */
void do_create(struct world *w, mode_t mode);
void do_unlink(struct world *w);
void do_rename(struct world *w);
void do_link(struct world *w);
void do_setattr(struct world *w);

void do_append(struct world *w, bool by_handle);
/* Topics: what must be refused. Broker: writes anywhere, and truncate. */
void do_refused(struct world *w);

void do_read(struct world *w);
void do_read_handle(struct world *w);
void do_cancel(struct world *w);
void do_open(struct world *w);
void release(struct world *w, struct mhandle *h);
void do_command(struct world *w);

#endif
