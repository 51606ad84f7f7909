# Signatures: a call of a rank as 64 bits. Two ranks agree about a collective when their signatures are equal.
#
#   bits  0..35  count + 0      elements (bytes for objects and opaque types)
#   bits 36..49  root + 1       0 where there is no root; so a communicator has at most MAX_RANKS ranks
#   bits 50..53  dtype          position in dtypes.DTYPES; 15: opaque bytes
#   bits 54..57  op             position in dtypes.OPS; 15: none or a Python callable
#   bits 58..63  kind           position in KINDS, never 0: memory that was never written agrees with nothing
#
# Calls with counts have BY_COUNTS added to their kind and, for a count, a digest of the counts;
# reductions by a Python function have it, too, with a digest of the count and the function.
#
# Bundles of arrays (kinds ..._MANY) have other fields below bit 50: bits 0..20 count, bits 21..49 a hash of the layout.
#
# Ranks compare the signature mixed with the history of all collectives before (`remember_call` in engine/rounds.pxd):
# two ranks that are each the root of their own call read no message of each other: the next call finds the mismatch.
#
# The packing is exact but for these digests (different counts pass for equal once in 2^36 times), so
# `explain` (engine/kinds.pyx) turns a signature back into text.
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.layout cimport shmring_outbox
from shmring.base.hashing cimport spread

cdef extern from * nogil:
    """
    #define SHMRING_MAX_COUNT ((UINT64_C(1) << 36) - 1)
    """
    const uint64_t MAX_COUNT "SHMRING_MAX_COUNT"      # the largest count that a signature has room for

cdef enum:
    BY_COUNTS = 32
    NO_OP = 15
    OPAQUE = 15
    NO_ROOT = -1
    MAX_RANKS = (1 << 14) - 1


cdef inline uint64_t pack_signature(int kind, int op, int dtype, int root, uint64_t count) noexcept nogil:
    return (<uint64_t> kind << 58 | <uint64_t> op << 54 | <uint64_t> (dtype & OPAQUE) << 50
            | <uint64_t> (root + 1) << 36 | (count & MAX_COUNT))


cdef inline uint64_t pack_digest(int kind, int op, int dtype, int root, uint64_t digest) noexcept nogil:
    """The signature of a call of which a digest tells more than a count."""
    return pack_signature(kind | BY_COUNTS, op, dtype, root, digest >> 28)


cdef inline uint64_t pack_bundle_signature(int kind, int op, int dtype, uint64_t layout, uint64_t count) noexcept nogil:
    return (<uint64_t> kind << 58 | <uint64_t> op << 54 | <uint64_t> dtype << 50 | layout >> 35 << 21
            | (count & ((<uint64_t> 1 << 21) - 1)))


cdef inline int root_of(uint64_t signature) noexcept nogil:
    """NO_ROOT where there is none."""
    return <int> (signature >> 36 & MAX_RANKS) - 1


cdef inline uint32_t short_signature(uint64_t signature, uint64_t round) noexcept nogil:
    # For the line that has room for 32 bits only. The round is mixed in, so that the signature that a slot held nslots
    # rounds ago, for the same call, does not pass for the one awaited now.
    cdef uint64_t mixed = (signature ^ spread(round)) * <uint64_t> 0xd6e8feb86659fd93
    return <uint32_t> (mixed >> 32)


cdef inline uint32_t kept_signature(shmring_outbox *box, int slot) noexcept nogil:
    # The short signature that the outbox has for a slot.
    return box.signature[slot]
