# Pair queues: one SPSC queue for each ordered pair of ranks, for messages of any size.
from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring.core.c.layout cimport SHMRING_NPARTS, shmring_cell, shmring_laps, shmring_pair_queue_end
from shmring.core.sync.backoff cimport patience_t, spin_t
from shmring.core.sync.group cimport group_t

# The results of push and pull, and of pumping all queues, as bits.
cdef enum:
    MOVED = 1          # a cell was stored or taken
    NEEDS_MATCHING = 2 # a message is complete, or one begins for which a request is posted

cdef enum:
    LONGEST_RUN_NS = 10000000     # of moving messages; then other threads of this process get the turn

# The waiter word of a sleeping thread: bit 0 is set; bits 1..20: the rank from which it awaits cells; bits 21..40: the
# rank that is to take cells. Each field is rank + 2, ANY_PEER for more than one rank, or 0 for none.
cdef enum:
    ANY_PEER = 1
    FIELD = 0xFFFFF

# A part of a byte ring, as one end sees it: a ring of its own.
ctypedef struct part_t:
    char *bytes
    uint64_t nbytes                # whole lines
    uint64_t filled                # bytes ever stored, in whole lines; 0 at the receiver
    uint64_t drained               # of these, taken, as far as this end knows

# The sending end of the queue from this rank to one peer. All but `cells` and the bytes of `parts` is private.
# Invariants: sent - taken <= SHMRING_PAIR_QUEUE_NCELLS;   filled - drained <= nbytes of each part.
ctypedef struct send_queue_t:
    bint is_open                   # the cells have memory
    bint has_bytes                 # so does the byte ring
    shmring_cell *cells
    part_t parts[SHMRING_NPARTS]
    shmring_pair_queue_end *own          # holds `opened`
    shmring_pair_queue_end *peers        # holds `taken`
    uint64_t sent                  # cells ever published
    uint64_t number                # of the last message: cells published before it, plus one
    uint64_t taken                 # of these, known to be taken by the peer
    uint64_t *filled_by            # by cell: its part, plus `filled` of that after it
    shmring_laps laps              # what is learned, from as many bytes at a time as the byte ring has
    int nqueued                    # messages queued for it, including the one under way (collectives/p2p/matching.pyx)
    bint is_busy                   # a message is under way: `done` of its bytes are stored
    const char *source
    uint64_t nbytes
    uint64_t piece_nbytes
    uint64_t skew                  # bytes from a line to `source`, and to where the message lies in the byte ring
    uint64_t done
    bint has_stopped               # the peer has taken pieces of it, and then none for a while
    int32_t tag
    int32_t dtype

# The receiving end of the queue from one peer to this rank.
ctypedef struct recv_queue_t:
    bint is_open
    shmring_cell *cells
    part_t parts[SHMRING_NPARTS]
    shmring_pair_queue_end *own          # holds `taken`
    shmring_pair_queue_end *peers        # holds `opened`
    uint64_t taken                 # cells ever taken
    uint64_t number                # of the last message: cells taken before it, plus one
    int part                       # of the last piece
    int nposted                    # requests posted for this peer
    bint is_busy                   # a message is under way: `done` of its bytes are in `target`
    char *target
    uint64_t nbytes
    uint64_t piece_nbytes
    uint64_t done
    bint is_past_cache             # non-temporal stores to `target`

ctypedef struct pair_queues_t:
    group_t *group
    send_queue_t *send             # by peer
    recv_queue_t *recv             # by peer
    uint64_t ring_nbytes           # of each byte ring; a power of two
    int nposted                    # requests posted for any source
    spin_t spin                    # what this rank has learned from its waits for messages
    uint64_t changes               # how often a thread has changed what a sleeping one waits for
    bint learns_stores             # else all laps use the configured kind of store
    uint64_t past_cache_nbytes     # messages from this size up are stored past the cache where they arrive


cdef inline bint awaits(const pair_queues_t *l, int peer) noexcept nogil:
    """Whether this rank awaits ``peer``; a receive from any source awaits all, which ``l.nposted`` tells."""
    return l.send[peer].is_busy or l.recv[peer].is_busy or l.recv[peer].nposted > 0


# ---- one queue, without waiting ----
cdef void divide_ring(part_t *parts, char *bytes, uint64_t nbytes) noexcept nogil
cdef uint64_t written(const send_queue_t *o) noexcept nogil
cdef bint takes_whole(pair_queues_t *l, int peer, const void *source, uint64_t nbytes) noexcept nogil
cdef void start_message(pair_queues_t *l, int peer, const void *source, uint64_t nbytes, int tag,
                        int dtype) noexcept nogil
cdef int push(pair_queues_t *l, int peer) noexcept nogil
cdef shmring_cell *next_cell(pair_queues_t *l, int peer) noexcept nogil
cdef void take_message(pair_queues_t *l, int peer, uint64_t nbytes, void *target) noexcept nogil
cdef int pull(pair_queues_t *l, int peer) noexcept nogil

# ---- all queues of a rank ----
cdef int pump(pair_queues_t *l) noexcept nogil
cdef int spin(pair_queues_t *l, patience_t *patience) noexcept nogil
cdef void wake_self(pair_queues_t *l) noexcept nogil
cdef int sleep_until_news(pair_queues_t *l, patience_t *patience, uint64_t changes) noexcept nogil
cdef bint has_news(pair_queues_t *l, int j) noexcept nogil
