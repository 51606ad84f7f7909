# Waiting: how one rank waits for the counters of the others, wakes those that wait for its own, and hears of trouble.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from shmring._c.layout cimport shmring_abort, shmring_liveness, shmring_outbox

cdef enum:
    EVERYONE = -1

cdef enum:                # what is waited for
    PUBLISHED = 0
    CONSUMED = 1

# What a wait ends with. Trouble is in the abort record by the time the code is returned.
cdef enum:
    READY = 0
    UNREADY = 1        # patience ran out, nothing is wrong: look after signals and call again
    TROUBLE = 2

# One communicator's ranks as this process sees them. All pointers lead into the mapped segments, but for the two
# arrays of what was last seen, which are private: a peer's counter is read only when its last seen value is too small,
# since each look pulls the line over from the core that is about to write it again.
#
# A rank with a team of threads has a circle for each: the same ranks, by the control areas of one strand.
ctypedef struct circle_t:
    int rank
    int size
    circle_t *first            # that of strand 0, and the next strand's; NULL after the last
    circle_t *next
    shmring_abort *record      # the one of all
    shmring_outbox **outbox
    shmring_liveness **life
    uint64_t *seen[2]          # [PUBLISHED][rank], [CONSUMED][rank]; the own entries are the maximum
    int64_t spin_ns            # before the first system call
    int yields                 # sched_yield calls between spinning and sleeping
    int64_t tick_ns            # longest sleep without a look at the living

ctypedef struct patience_t:
    int stage                  # spin, yield, sleep: where the last call left off
    int64_t spin_until_ns
    int64_t tick_ns
    int64_t timeout_ns         # < 0: for ever
    int64_t deadline_ns        # 0: not yet computed; the clock is read only when a wait outlasts the short spin


cdef int64_t now_ns() noexcept nogil
cdef void be_patient(patience_t *patience, int64_t timeout_ns) noexcept nogil
cdef bint is_ready(circle_t *c, int what, int whom, uint64_t need) noexcept nogil
cdef int wait_until(circle_t *c, int what, int whom, uint64_t need, patience_t *patience) noexcept nogil
cdef void wake_waiters(circle_t *c) noexcept nogil
cdef void rouse_everyone(circle_t *c) noexcept nogil
cdef void report_trouble(circle_t *c, uint32_t cause, int about, uint64_t round, uint64_t mine, uint64_t theirs,
                         const char *reason) noexcept nogil
cdef void report_late(circle_t *c, int what, int whom, uint64_t need, uint64_t mine) noexcept nogil
cdef bint in_trouble(circle_t *c) noexcept nogil
cdef bint is_reported(circle_t *c) noexcept nogil
cdef void insist_on_report(circle_t *c) noexcept nogil
