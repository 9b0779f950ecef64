/* fault.h: a layer that makes the store misbehave, by a plan. For tests; conf->fault_plan puts it in.
 *
 * The plan is text, one order a line; '#' starts a comment:
 *
 *     trigger PATH                     the rules below act only while this file exists
 *     fail op=OP key=GLOB nth=N count=N ACTION
 *
 *   op=     put get head list delete batch mp-create mp-part mp-complete mp-abort mp-list
 *           multipart (all mp-*) any; default any
 *   key=    shell pattern over the whole key, '*' matches '/' too; default *
 *   nth=    the first matching request that is hit, from 1; default 1
 *   count=  how many are hit from there on; default 1; "all" for no end
 *   ACTION, one of
 *     err=EIO err=ENOSPC err=EACCES err=ENOENT err=EEXIST   that error, not performed
 *     err=429 err=500 err=503 err=403 err=404               that HTTP status, not performed
 *     err=nobucket    -ENODEV "NoSuchBucket", not performed
 *     err=timeout     -ETIMEDOUT, not performed (but reported as of unknown outcome)
 *     err=reset       connection reset before anything was sent, not performed
 *     lost-reply      performed; then reported as a reset of unknown outcome
 *     truncate=N      GET: N bytes arrive, then a reset
 *     corrupt=N       GET: a bit of byte N of the range is flipped. PUT, mp-part: byte N of the body
 *                     is, so that a checking store refuses it
 *     corrupt=N silent    the same without the caller's checksum: the store takes the damage
 *     xml             GET: an error document arrives in place of the bytes, as long as they are and
 *                     with a status of success
 *     etag            performed; the answer has another ETag than the object
 *     delay=MS        performed MS later
 *     stall           held until cancelled, closed, released, or its deadline; then performed
 *                     (or -ETIMEDOUT)
 *
 * A rule counts the requests that match it, from 0 whenever the plan is set. The first rule that hits
 * a request decides. A request is decided when it is submitted.
 *
 * A plan file is read again when its mtime or size changes; it is looked at with every request. An
 * unreadable or wrong plan leaves the old one in force and is logged.
 */
#ifndef SLUICE_OBJSTORE_FAULT_H
#define SLUICE_OBJSTORE_FAULT_H

#include "objstore/objstore.h"

/* `os` is a stack with a fault layer in it (conf->fault_plan "" makes one with an empty plan and no
 * file). Replaces the plan and releases what is stalled. 0, or -EINVAL with the line in `why`. */
int fault_plan_set(struct objstore *os, const char *text, char *why, size_t why_cap);

/* Lets stalled requests go on; later ones stall again. */
void fault_release(struct objstore *os);

/* How many requests all rules together have hit since the plan was set. */
unsigned fault_hits(struct objstore *os);
/* How many requests are held now. */
unsigned fault_stalled(struct objstore *os);

#endif
