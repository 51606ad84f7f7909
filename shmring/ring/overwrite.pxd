# Lossy rings: the producer may overwrite the oldest slots, unread, by newer ones (ring/overwrite.pyx).
from libc.stdint cimport int64_t, uint64_t

from shmring.ring.spsc cimport consumer_t, producer_t

# Claim what is next: so many slots may be read, until ring_release or give_up_claim; 0 if there are none, or
# RING_CORRUPT.
cdef int64_t claim_next(consumer_t *c) noexcept nogil
cdef void give_up_claim(consumer_t *c) noexcept nogil

# Whether `nslots` are free, after giving up, where needed and possible, the oldest slots, or the oldest frames; what
# was given up is added to `overwritten`. RING_CORRUPT if what stands in the ring is impossible.
cdef int overwrite_slots(producer_t *p, uint64_t nslots, uint64_t *overwritten) noexcept nogil
cdef int overwrite_frames(producer_t *p, uint64_t nslots, uint64_t *overwritten) noexcept nogil
