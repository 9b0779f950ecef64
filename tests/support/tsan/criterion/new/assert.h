/* assert.h: Criterion's newer way to write conditions, eq(int, a, b), for builds under TSan: see
 * ../criterion.h. They are plain expressions here; the type decides only how str is compared. */
#ifndef SLUICE_TSAN_CRITERION_NEW_H
#define SLUICE_TSAN_CRITERION_NEW_H

#include <stdint.h>
#include "tests/support/tsan/criterion/criterion.h"

#define CRIT_ORDER_str(a, b) strcmp(a, b)
/* Each side is evaluated once, as a value of the named type. */
#define CRIT_ORDER(c_type, a, b)                                                                   \
    ({                                                                                             \
        c_type crit_a_ = (c_type)(a), crit_b_ = (c_type)(b);                                       \
        (crit_a_ > crit_b_) - (crit_a_ < crit_b_);                                                 \
    })
#define CRIT_ORDER_int(a, b)  CRIT_ORDER(int, a, b)
#define CRIT_ORDER_uint(a, b) CRIT_ORDER(unsigned, a, b)
#define CRIT_ORDER_long(a, b) CRIT_ORDER(long, a, b)
#define CRIT_ORDER_sz(a, b)   CRIT_ORDER(size_t, a, b)
#define CRIT_ORDER_i64(a, b)  CRIT_ORDER(int64_t, a, b)
#define CRIT_ORDER_u64(a, b)  CRIT_ORDER(uint64_t, a, b)
#define CRIT_ORDER_ptr(a, b)  ((a) != (b))

#define eq(type, a, b) (CRIT_ORDER_##type(a, b) == 0)
#define ne(type, a, b) (CRIT_ORDER_##type(a, b) != 0)
#define lt(type, a, b) (CRIT_ORDER_##type(a, b) < 0)
#define le(type, a, b) (CRIT_ORDER_##type(a, b) <= 0)
#define gt(type, a, b) (CRIT_ORDER_##type(a, b) > 0)
#define ge(type, a, b) (CRIT_ORDER_##type(a, b) >= 0)
#define zero(type, a)  (!(a))
#define not(a) (!(a))

#endif
