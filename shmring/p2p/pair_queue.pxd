# Lanes: one single-producer single-consumer ring for each ordered pair of ranks, for messages of any size.
from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring._c.layout cimport shmring_cell, shmring_pair_queue_end
from shmring.arrays.store_tuning cimport stores_t
from shmring.sync.group cimport group_t

# What became of a look at the lanes, as bits.
cdef enum:
    MOVED = 1          # some piece went in or out
    ATTENTION = 2      # something only the interpreter can decide: a message is over, or a wanted one begins

cdef enum:
    LAPS_TO_TRY = 3    # each way in, of which two count

# The sending end: the lane from this rank to one peer. All but `cells` and `bytes` is private.
# Invariants: sent - taken <= SHMRING_PAIR_QUEUE_NCELLS;   filled - drained <= nbytes of the ring of bytes.
ctypedef struct send_queue_t:
    bint is_open                   # the cells have memory
    bint has_bytes                 # the ring of bytes has, too
    shmring_cell *cells
    char *bytes
    shmring_pair_queue_end *own          # says that the lane is open
    shmring_pair_queue_end *peers        # says how far the peer is
    uint64_t sent                  # cells ever announced
    uint64_t taken                 # of these, known to be taken by the peer
    uint64_t filled                # bytes ever put into the ring of bytes, in whole lines
    uint64_t drained               # of these, known to be out again
    uint64_t *filled_by            # by cell: `filled` after it
    stores_t stores                # what is known of the two ways to store; a lap round the ring of bytes is a call
    uint64_t next_lap              # it begins once so many bytes are filled
    bint streams                   # this lap's pieces are stored past the cache
    uint64_t trial                 # this lap's number from 1 on if it is to be timed, else 0
    int64_t spent_ns[4]            # writing the pieces of trial t: in [t % 4]
    int nqueued                    # messages that wait for this lane, the one under way included (p2p/matching.pyx)
    bint is_busy                   # a message is under way: so many of its bytes from `source` on are in
    const char *source
    uint64_t nbytes
    uint64_t piece_nbytes
    uint64_t done
    int32_t tag
    int32_t dtype

# The receiving end: the lane from one peer to this rank.
ctypedef struct recv_queue_t:
    bint is_open
    shmring_cell *cells
    char *bytes
    shmring_pair_queue_end *own          # says how far we are
    shmring_pair_queue_end *peers        # says that the lane is open
    uint64_t taken                 # cells ever taken
    uint64_t drained               # bytes ever taken out of the ring of bytes, in whole lines
    int nposted                    # how many ask for what comes next from this very peer
    bint is_busy                   # a message is under way: so many of its bytes are in `target`
    char *target
    uint64_t nbytes
    uint64_t piece_nbytes
    uint64_t done
    bint streams                   # into `target`, past the cache
    uint64_t trial                 # the last that was timed

ctypedef struct pair_queues_t:
    group_t *group
    send_queue_t *send             # by peer
    recv_queue_t *recv             # by peer
    uint64_t ring_nbytes           # of each ring of bytes; a power of two
    int nposted                    # how many ask for what comes next from anybody
    uint64_t changes               # how often a thread has changed what another one dozes for
    bint learns_stores             # else all laps go as `streams` of their outlet says
    uint64_t past_cache_nbytes     # messages from this size up are stored past the cache where they arrive


# ---- one lane, without waiting ----
cdef bint takes_whole(pair_queues_t *l, int peer, uint64_t nbytes) noexcept nogil
cdef void start_message(pair_queues_t *l, int peer, const void *source, uint64_t nbytes, int tag, int dtype) noexcept nogil
cdef int push(pair_queues_t *l, int peer) noexcept nogil
cdef shmring_cell *next_cell(pair_queues_t *l, int peer) noexcept nogil
cdef void take_message(pair_queues_t *l, int peer, uint64_t nbytes, void *target) noexcept nogil
cdef int pull(pair_queues_t *l, int peer) noexcept nogil

# ---- all lanes ----
cdef int pump(pair_queues_t *l) noexcept nogil
cdef int spin(pair_queues_t *l) noexcept nogil
cdef void wake_self(pair_queues_t *l) noexcept nogil
cdef int sleep_until_news(pair_queues_t *l, int64_t tick_ns, uint64_t changes) noexcept nogil
cdef bint has_lost_somebody(pair_queues_t *l, bint only_dead) noexcept nogil
