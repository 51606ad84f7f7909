# The ranks of one communicator, as one thread of this process sees them.
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.layout cimport shmring_abort, shmring_liveness, shmring_outbox

cdef enum:
    EVERYONE = -1

cdef enum:                # the counters of a rank that others wait for
    PUBLISHED = 0
    CONSUMED = 1

# What a wait ends with. Trouble is in the abort record by the time the code is returned.
cdef enum:
    READY = 0
    UNREADY = 1        # not yet: let Python handle signals and call again
    TROUBLE = 2

# All pointers lead into the mapped segments, but for the two arrays of what was last seen, which are private: a peer's
# counter is loaded only when its last seen value is too small, since each load fetches the line from the core that is
# about to write it again.
#
# A rank with several threads has one of these for each: the same ranks, by the control areas of that thread.
ctypedef struct group_t:
    int rank
    int size
    group_t *first             # that of thread 0, and the next thread's; NULL after the last
    group_t *next
    shmring_abort *record      # one for all threads of all ranks
    shmring_outbox **outbox
    shmring_liveness **liveness
    uint64_t *seen[2]          # [PUBLISHED][rank], [CONSUMED][rank]; the own entries are the maximum
    int64_t spin_ns            # before the first system call
    int yields                 # sched_yield calls between spinning and sleeping
    int looks                  # before the first of them, in a wait of a collective; 0: LOOKS_PER_CLOCK
    int message_looks          # the same, in a wait for messages of ranks on other processors
    # when the first wait began since this was cleared; 0: none (collectives/engine/recording.pyx)
    int64_t first_wait_ns
    int64_t tick_ns            # longest sleep without a check of the others' liveness


cdef inline uint64_t *counter_of(group_t *g, int counter, int rank) noexcept nogil:
    return &g.outbox[rank].consumed if counter == CONSUMED else &g.outbox[rank].published
