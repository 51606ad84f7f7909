# Signatures: a call of a rank as 64 bits. Two ranks agree about a collective when their signatures are equal.
#
#   count        elements (bytes for objects and opaque types)
#   root + 1     0 where there is no root; so a communicator has at most MAX_RANKS ranks
#   dtype        position in dtypes.DTYPES; all bits: opaque bytes
#   op           position in dtypes.OPS; NO_OP: none or a Python callable
#   kind         position in KINDS, never 0: memory that was never written agrees with nothing
#
# from the lowest bit up, as wide as collectives/engine/signature.h has them.
#
# Calls with counts have BY_COUNTS added to their kind and, for a count, a digest of the counts;
# reductions by a Python function have it, too, with a digest of the count and the function.
#
# Bundles of arrays (all_reduce_many) have other fields below the dtype: BUNDLE_BITS of the count, then a hash of the
# layout.
#
# Ranks compare the signature mixed with the history of all collectives before (`remember_call` in
# collectives/engine/rounds.pxd): two ranks that are each the root of their own call read no message of each other: the
# next call finds the mismatch.
#
# The packing is exact but for these digests (different counts pass for equal once in 2^36 times), so
# `explain` (collectives/engine/kinds.pyx) turns a signature back into text.
from libc.stdint cimport uint32_t, uint64_t

from shmring.core.c.layout cimport shmring_outbox
from shmring.core.base.hashing cimport spread

cdef extern from "collectives/engine/signature.h" nogil:
    enum:
        COUNT_BITS "SHMRING_COUNT_BITS"
        ROOT_AT "SHMRING_ROOT_AT"
        DTYPE_AT "SHMRING_DTYPE_AT"
        DTYPE_BITS "SHMRING_DTYPE_BITS"
        DTYPE_MASK "SHMRING_DTYPE_MASK"
        OP_AT "SHMRING_OP_AT"
        KIND_AT "SHMRING_KIND_AT"
        BY_COUNTS "SHMRING_BY_COUNTS"
        NO_OP "SHMRING_NO_OP"
        MAX_RANKS "SHMRING_MAX_RANKS"
    const uint64_t MAX_COUNT "SHMRING_MAX_COUNT"      # the largest count that a signature has room for

cdef enum:
    BUNDLE_BITS = 21
    NO_ROOT = -1


cdef inline uint64_t pack_signature(int kind, int op, int dtype, int root, uint64_t count) noexcept nogil:
    return (<uint64_t> kind << KIND_AT | <uint64_t> op << OP_AT | <uint64_t> (dtype & DTYPE_MASK) << DTYPE_AT
            | <uint64_t> (root + 1) << ROOT_AT | (count & MAX_COUNT))


cdef inline uint64_t pack_digest(int kind, int op, int dtype, int root, uint64_t digest) noexcept nogil:
    """The signature of a call of which a digest tells more than a count."""
    return pack_signature(kind | BY_COUNTS, op, dtype, root, digest >> (64 - COUNT_BITS))


cdef inline uint64_t pack_bundle_signature(int kind, int op, int dtype, uint64_t layout, uint64_t count) noexcept nogil:
    return (<uint64_t> kind << KIND_AT | <uint64_t> op << OP_AT | <uint64_t> (dtype & DTYPE_MASK) << DTYPE_AT
            | layout >> (64 - DTYPE_AT + BUNDLE_BITS) << BUNDLE_BITS | (count & ((<uint64_t> 1 << BUNDLE_BITS) - 1)))


cdef inline int root_of(uint64_t signature) noexcept nogil:
    """NO_ROOT where there is none."""
    return <int> (signature >> ROOT_AT & MAX_RANKS) - 1


cdef inline uint32_t short_signature(uint64_t signature, uint64_t round) noexcept nogil:
    # For the line that has room for 32 bits only. The round is mixed in, so that the signature that a slot held nslots
    # rounds ago, for the same call, does not pass for the one awaited now.
    cdef uint64_t mixed = (signature ^ spread(round)) * <uint64_t> 0xd6e8feb86659fd93
    return <uint32_t> (mixed >> 32)


cdef inline uint32_t kept_signature(shmring_outbox *box, int slot) noexcept nogil:
    # The short signature that the outbox has for a slot.
    return box.signature[slot]
