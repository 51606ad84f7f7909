/* The fields of a signature, from the lowest bit up (signature.pxd has what they mean). Numbers that no field has room
 * for do not compile: a type too many would pass as opaque bytes, an operation as none. */
#ifndef SHMRING_SIGNATURE_H
#define SHMRING_SIGNATURE_H

#include <stdint.h>

#include "core/kernel/numbers.h"
#include "kinds.h"

enum {
    SHMRING_COUNT_BITS = 36,
    SHMRING_ROOT_BITS = 13,
    SHMRING_DTYPE_BITS = 5,
    SHMRING_OP_BITS = 4,
    SHMRING_KIND_BITS = 5,

    SHMRING_ROOT_AT = SHMRING_COUNT_BITS,
    SHMRING_DTYPE_AT = SHMRING_ROOT_AT + SHMRING_ROOT_BITS,
    SHMRING_OP_AT = SHMRING_DTYPE_AT + SHMRING_DTYPE_BITS,
    SHMRING_KIND_AT = SHMRING_OP_AT + SHMRING_OP_BITS,

    /* All bits of a field: what is none of its numbers; and the bit above the kind. */
    SHMRING_MAX_RANKS = (1 << SHMRING_ROOT_BITS) - 1,
    SHMRING_DTYPE_MASK = (1 << SHMRING_DTYPE_BITS) - 1,
    SHMRING_NO_OP = (1 << SHMRING_OP_BITS) - 1,
    SHMRING_BY_COUNTS = 1 << SHMRING_KIND_BITS
};

#define SHMRING_MAX_COUNT ((UINT64_C(1) << SHMRING_COUNT_BITS) - 1)

_Static_assert(SHMRING_KIND_AT + SHMRING_KIND_BITS + 1 == 64, "the fields fill a word");
_Static_assert(SHMRING_NDTYPES <= SHMRING_DTYPE_MASK, "an element type more than a signature has numbers for");
_Static_assert(SHMRING_NOPS <= SHMRING_NO_OP, "an operation more than a signature has numbers for");
_Static_assert((int) KIND_END <= (int) SHMRING_BY_COUNTS, "a kind of call more than a signature has numbers for");

#endif
