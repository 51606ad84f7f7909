# The structs of core/c/layout.h, for cimport.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass


cdef extern from "core/c/layout.h" nogil:
    const uint64_t SHMRING_MAGIC
    const uint32_t SHMRING_LAYOUT_VERSION
    const uint32_t SHMRING_LINE
    const uint32_t SHMRING_FALSE_SHARING
    const uint32_t SHMRING_PAGE_NBYTES
    const uint32_t SHMRING_HEADER_NBYTES
    const uint32_t SHMRING_OUTBOX
    const uint32_t SHMRING_RING
    const uint32_t SHMRING_ARRAY
    const uint32_t SHMRING_CHANNEL
    const uint32_t SHMRING_FAILURE_NOTICE

    enum:
        SHMRING_ORDINARY
        SHMRING_STREAMING
        SHMRING_PREFETCHED
        SHMRING_STRING
        SHMRING_NSTORES

    enum:
        SHMRING_LARGE
        SHMRING_SMALL
        SHMRING_NPARTS

    enum:
        SHMRING_MOST_DIMENSIONS

    ctypedef struct shmring_alternative:
        uint64_t due
        uint32_t wait
        uint32_t state
        int64_t ns
        int64_t ratio

    ctypedef struct shmring_learner:
        uint64_t calls
        uint64_t word
        uint64_t start
        uint32_t length
        uint32_t variant
        uint32_t trial
        uint32_t stay
        uint8_t nvalues[SHMRING_MOST_DIMENSIONS]
        uint32_t tenant
        uint32_t number
        uint32_t offer
        uint32_t lead
        uint32_t window
        uint32_t best
        uint32_t before
        int32_t tried
        uint32_t is_looking
        uint32_t idle
        uint32_t of_stores
        uint32_t whole
        int32_t ordinary
        int32_t within
        uint64_t next_look
        uint64_t timed_from
        uint64_t timed_to
        uint64_t granted
        int64_t lost
        int64_t lost_before
        int64_t usual_ns
        int64_t base_ns[2][2]
        int64_t trial_ns[2][2]
        int64_t trip_ns[2]
        int64_t usual_trip_ns

    ctypedef struct shmring_laps:
        shmring_learner learner
        shmring_alternative alternatives[SHMRING_NSTORES + SHMRING_NPARTS + 1]
        uint64_t next_lap
        uint32_t kind
        uint32_t part
        uint64_t timed
        uint64_t read_before_ns[2]
        uint64_t written_ns[2]
        uint64_t ended_ns

    ctypedef struct shmring_liveness:
        uint32_t word
        uint32_t turn
        int32_t pid
        uint64_t start_time
        uint64_t pid_ns

    const uint32_t SHMRING_MEMBERS_MAX

    ctypedef struct shmring_lock:
        uint64_t holder
        uint64_t waiting
        sem_t woken

    const uint64_t SHMRING_RING_MAGIC

    ctypedef struct shmring_waiter:
        uint64_t asleep
        sem_t wake

    ctypedef struct shmring_ring_role:
        uint32_t taken
        uint32_t closed
        uint32_t only
        shmring_liveness liveness
        shmring_waiter waiter

    ctypedef struct shmring_ring_counts:
        uint64_t messages
        uint64_t dropped
        uint64_t waits
        uint64_t sleeps

    const uint64_t SHMRING_RING_MOST_HEADS

    ctypedef struct shmring_ring_head:
        uint64_t head
        shmring_ring_counts received
        uint64_t read_ns[2]
        shmring_ring_role consumer
        uint64_t producer_asleep

    ctypedef struct shmring_ring:
        uint64_t magic
        uint64_t nslots
        uint64_t slot_nbytes
        uint64_t nheads
        uint64_t tail
        shmring_ring_counts sent
        shmring_ring_role producer
        shmring_laps laps
        shmring_ring_head heads[1]

    ctypedef struct shmring_queue:
        shmring_lock sending
        uint64_t is_putting
        uint64_t began
        uint64_t sent
        uint32_t signal
        uint32_t is_polled
        shmring_lock receiving
        uint64_t getting
        uint64_t got_from
        uint64_t got
        uint64_t watched
        uint64_t done
        uint64_t joining
        sem_t joined
        shmring_lock placing
        uint64_t place_awaited
        sem_t place_given
        uint64_t nkeepers
        uint64_t *kept
        shmring_liveness *members

    enum:
        SHMRING_LATEST_NLEASES
        SHMRING_LATEST_NSLOTS

    ctypedef struct shmring_latest_lease:
        uint64_t slot
        shmring_liveness holder

    ctypedef struct shmring_latest:
        uint64_t newest
        uint64_t writer
        uint64_t room
        uint64_t watched
        uint64_t waiting
        sem_t woken
        shmring_lock writing
        shmring_latest_lease *leases
        shmring_liveness *members

    ctypedef struct shmring_latest_slot:
        uint64_t version
        uint64_t word
        uint64_t nbytes

    enum:
        SHMRING_ID_NBYTES
        SHMRING_NPARAMS

    ctypedef struct shmring_header:
        uint64_t magic
        uint32_t version
        uint32_t header_nbytes
        uint64_t nbytes
        uint32_t kind
        uint32_t uid
        uint8_t boot_id[SHMRING_ID_NBYTES]
        uint8_t nonce[SHMRING_ID_NBYTES]
        int32_t rank
        int32_t size
        uint64_t params[SHMRING_NPARAMS]
        uint64_t family
        uint32_t ready
        uint64_t attached
        shmring_liveness liveness

    enum:
        SHMRING_NSLOTS_MAX
    enum:
        SHMRING_LATE_NBYTES
    const uint32_t SHMRING_LOST
    const uint32_t SHMRING_LEFT
    const uint32_t SHMRING_LATE
    const uint32_t SHMRING_MISMATCH
    const uint32_t SHMRING_ABORTED

    ctypedef struct shmring_abort:
        uint32_t state
        uint32_t cause
        int32_t by
        int32_t about
        uint64_t round
        uint64_t mine
        uint64_t theirs
        char reason[SHMRING_LATE_NBYTES]
        uint8_t late[SHMRING_LATE_NBYTES]

    const uint32_t SHMRING_THREADS_MAX
    const uint32_t SHMRING_HELPER_SLOT_NBYTES

    enum:
        SHMRING_NCHOICES

    enum:
        SHMRING_PLACE_NBYTES

    ctypedef struct shmring_place:
        uint64_t number
        char text[SHMRING_PLACE_NBYTES]

    enum:
        SHMRING_PLAN_TEXT_NBYTES

    ctypedef struct shmring_plan_note:
        uint64_t digest
        uint64_t call
        uint64_t base
        char text[SHMRING_PLAN_TEXT_NBYTES]

    ctypedef struct shmring_outbox:
        uint64_t published
        uint32_t signature[SHMRING_NSLOTS_MAX]
        uint64_t consumed
        uint64_t asleep
        sem_t wake
        uint64_t pair_queues_asleep
        sem_t pair_queues_wake
        uint32_t left
        uint32_t barrier_ns
        uint64_t current
        uint64_t calls
        uint64_t nbytes
        uint64_t last_wait
        uint64_t waiting_since
        uint64_t awaiting
        uint64_t awaiting_since
        uint64_t full_signature[SHMRING_NSLOTS_MAX]
        uint64_t history[SHMRING_NSLOTS_MAX]
        uint64_t waited_ns
        uint32_t accesses
        uint32_t processor
        shmring_place place
        shmring_place message_place
        shmring_plan_note plan
        uint64_t choices[SHMRING_NCHOICES]
        shmring_abort abort

    const uint32_t SHMRING_EAGER_NBYTES
    enum:
        SHMRING_FIRST_NBYTES
        SHMRING_REST_NBYTES
    const uint32_t SHMRING_EAGER_NLINES

    ctypedef struct shmring_first_line:
        uint8_t payload[SHMRING_FIRST_NBYTES]
        uint64_t signature
        uint64_t tag

    ctypedef struct shmring_rest_line:
        uint8_t payload[SHMRING_REST_NBYTES]
        uint64_t tag

    ctypedef struct shmring_eager_line:
        shmring_first_line first
        shmring_rest_line rest[1]

    const uint32_t SHMRING_PAIR_QUEUE_NCELLS
    enum:
        SHMRING_CELL_NBYTES

    ctypedef struct shmring_cell:
        uint8_t payload[SHMRING_CELL_NBYTES]
        uint64_t timed
        uint32_t kind
        uint32_t skew
        uint32_t part
        uint64_t nbytes
        int32_t tag
        int32_t dtype
        uint64_t seq

    ctypedef struct shmring_pair_queue_end:
        uint64_t taken
        uint64_t opened
        uint64_t read_ns[2]
        uint64_t ended_ns[2]
