/* hash_avx2.c: xxh3 compiled for AVX2 (this file only, by its own flags in CMakeLists.txt), about twice
 * as fast as the shared library, which distributions build for the oldest processor they support.
 * hash.c takes it where the processor has AVX2. */
#ifdef SLUICE_HASH_AVX2
#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_AVX2
#include <xxhash.h>

#include "fs/base/hash_int.h"

HASH_IMPL(hash_avx2);
#else
typedef int hash_avx2_is_not_built;
#endif
