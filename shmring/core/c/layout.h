/* Every struct that lives in shared memory, and nothing else.
 *
 * Rules: offsets, never pointers (each process maps at its own address); one writer per field, unless a comment names
 * more; fields that different ranks write lie SHMRING_FALSE_SHARING bytes apart (two lines: the adjacent-line
 * prefetcher loads pairs). Any change of meaning or place raises SHMRING_LAYOUT_VERSION; attachers refuse another
 * version.
 */
#ifndef SHMRING_LAYOUT_H
#define SHMRING_LAYOUT_H

#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>

#define SHMRING_MAGIC 0x676e69726d6873ull /* "shmring\0" read as a little-endian word */
#define SHMRING_LAYOUT_VERSION 19u
#define SHMRING_LINE 64u
#define SHMRING_FALSE_SHARING 128u
#define SHMRING_APART _Alignas(SHMRING_FALSE_SHARING)
#define SHMRING_PAGE_NBYTES 4096u /* the parts of a segment begin at multiples of this */
#define SHMRING_HEADER_NBYTES SHMRING_PAGE_NBYTES
#define SHMRING_ID_NBYTES 16u
#define SHMRING_NPARAMS 4u

/* What a segment is for; an attacher refuses a segment of a kind that it does not expect. */
enum shmring_kind {
    SHMRING_OUTBOX = 1,
    SHMRING_RING = 2,
    SHMRING_ARRAY = 3,
    SHMRING_CHANNEL = 4,
    SHMRING_FAILURE_NOTICE = 5 /* a header alone: its creator could not make its outbox (collectives/bootstrap/rendezvous.py) */
};

/* How a rank stores what another core will read (core/kernel/copy.h). */
enum shmring_stores {
    SHMRING_ORDINARY = 0,
    SHMRING_STREAMING = 1,  /* non-temporal, past the cache */
    SHMRING_PREFETCHED = 2, /* ordinary, each line asked for some lines ahead */
    SHMRING_STRING = 3,     /* by string instructions, which fetch no line that they fill */
    SHMRING_NSTORES = 4
};

/* What was learned of the variants of one call, or of one ring of bytes (core/base/learner.pyx); zero at first but for what
 * `open_learner` sets. One for each alternative lies behind it, and one more: the variant that was in use before. */
#define SHMRING_MOST_DIMENSIONS 8u

typedef struct {
    uint64_t due;   /* it is not tried before this call, */
    uint32_t wait;  /* and so many calls later once it has lost */
    uint32_t state; /* enum state_t in core/base/learner.pxd */
    int64_t ns;     /* of a call, when last timed; 0: never */
    int64_t ratio;  /* of that to the one in use, in 64ths; 0: not known for the variant in use */
} shmring_alternative;

typedef struct {
    uint64_t calls;  /* begun */
    uint64_t word;   /* the last choice that was followed (word_of in core/base/learner.pyx) */
    uint64_t start;  /* from this call on */
    uint32_t length; /* so many calls use `trial`, and all after them `stay`; those before use `variant` */
    uint32_t variant;
    uint32_t trial;
    uint32_t stay;
    uint8_t nvalues[SHMRING_MOST_DIMENSIONS]; /* of each dimension; 0 behind the last one */
    /* The rest is of the rank that decides. */
    uint32_t tenant; /* number of this learner among those that have used the same word */
    uint32_t number; /* of choices published */
    uint32_t offer;  /* alternatives that exist: a bit each */
    uint32_t lead;   /* calls in which a choice reaches all ranks */
    uint32_t window; /* calls of a full trial */
    uint32_t best;   /* the variant that has won; published if it is not `stay` */
    uint32_t before; /* the variant in use before the last change of it */
    int32_t tried;   /* the alternative on trial; behind the last one: `before`; -1: none */
    uint32_t is_looking;
    uint32_t idle;     /* calls between looks if no alternative is due */
    uint32_t of_stores; /* dimensions of which a value is a kind of stores, */
    uint32_t whole;    /* and those of which the time until the next call counts: a bit each */
    int32_t ordinary;  /* the alternative that is tried with value 0 of the first dimension; -1: none */
    int32_t within;    /* the alternative with which all others are tried whose time within the call counts; -1: none */
    uint64_t next_look; /* the call before which to look again */
    uint64_t timed_from; /* the calls that are timed, */
    uint64_t timed_to;
    uint64_t granted; /* when a change was last noticed */
    int64_t lost;    /* to trials, in 64ths of a call, */
    int64_t lost_before; /* and before this look */
    int64_t usual_ns; /* of a call, at the last look */
    int64_t base_ns[2][2]; /* two least times of a call before the trial: within the call, and until the next one, */
    int64_t trial_ns[2][2]; /* and in the trial */
    int64_t trip_ns[2]; /* from processor to processor: the two largest times of the look */
    int64_t usual_trip_ns;
} shmring_learner;

/* Which part of a ring of bytes its writer fills first (core/ring/laps.pxd). */
enum shmring_part {
    SHMRING_LARGE = 0,
    SHMRING_SMALL = 1,
    SHMRING_NPARTS = 2
};

/* What the writer of a ring of bytes has learned of the kinds of stores and of the parts of the ring
 * (core/ring/laps.pyx); only its end of the ring loads or stores this. The writer's and the reader's times are kept by
 * parity of the lap. */
typedef struct {
    shmring_learner learner; /* a lap is a call */
    shmring_alternative alternatives[SHMRING_NSTORES + SHMRING_NPARTS + 1];
    uint64_t next_lap; /* the position at which the next lap begins */
    uint32_t kind;     /* enum shmring_stores, of this lap */
    uint32_t part;     /* enum shmring_part, of this lap */
    uint64_t timed;    /* 0, or 1 + the parity of this lap if it is timed */
    uint64_t read_before_ns[2]; /* the reader's sum when the lap began, */
    uint64_t written_ns[2];     /* and the time to write the lap */
    uint64_t ended_ns;          /* when the lap before the last one had been read; 0: not known */
} shmring_laps;

_Static_assert(offsetof(shmring_laps, alternatives) == sizeof(shmring_learner), "the alternatives lie behind the learner");

/* Whether a process is alive, for all processes that map this (core/sync/liveness.pyx). `word` follows the kernel's
 * robust-futex rules: 0 without a holder, else the thread id of the owner's keeper, which lives as long as its
 * process. When the process dies, by any cause, the kernel sets FUTEX_OWNER_DIED. FUTEX_WAITERS in it: the kernel keeps
 * no robust list (e.g. emulators), and observers compare pid and start time instead. Zeroed memory was never held. */
typedef struct {
    uint32_t word;
    uint32_t turn;        /* how often it was taken */
    uint64_t link;        /* for the kernel: address, in the owner, of the next `link` that the keeper holds */
    int32_t pid;          /* in the owner's PID namespace */
    uint32_t unused;
    uint64_t start_time;  /* field 22 of /proc/PID/stat, 0 unknown: with pid, unique among all processes since boot */
    uint64_t pid_ns;      /* inode of /proc/self/ns/pid: pids may be compared only within one namespace */
} shmring_liveness;

/* A lock between processes (core/sync/lock.pyx). The processes that take the locks in one memory have a liveness each in a
 * table beside them. */
#define SHMRING_MEMBERS_MAX 1024u
typedef struct {
    uint64_t holder;  /* 0 free; else of the process that has it: 1 + its number in the table, and its turn there times 2^32 */
    uint64_t waiting; /* waiter word of those that want it: 1 if one may sleep; and the semaphore on which they sleep */
    sem_t woken;
} shmring_lock;

/* Where one end of a ring sleeps until the counter of the other end reaches a number (core/ring/blocking.pyx). */
typedef struct {
    uint64_t asleep; /* 0 awake; else 1 + four times that number, plus 2 if the end sleeps on this word (futex.h) and not
                      * on the semaphore; the waker that swaps it to 0 wakes the word or posts the semaphore */
    uint64_t unused;
    sem_t wake;
} shmring_waiter;

/* The holder of one end of a ring. */
typedef struct {
    uint32_t taken;  /* 1 once a process has taken it (compare-and-swap) */
    uint32_t closed; /* 0 open, 1 closed, 2 left without closing, 3 a consumer that the producer has disconnected; once it
                      * is set, no counter of this end changes */
    uint32_t only;   /* 1 + the one processor its thread may use, 0: several. Two ends on one processor do not spin */
    uint32_t unused;
    shmring_liveness liveness;
    shmring_waiter waiter;
} shmring_ring_role;

/* Totals of one end, for observers; beside its counter, on a line that the end writes anyway. */
typedef struct {
    uint64_t messages;
    uint64_t dropped; /* producer: messages that did not fit and were not sent */
    uint64_t waits;   /* calls that found the ring full, or empty, and had to wait */
    uint64_t sleeps;  /* how often it slept in them */
} shmring_ring_counts;

/* One consumer of a ring: how far it has read, and where it stands. */
typedef struct {
    SHMRING_APART uint64_t head; /* consumer's: slots ever released */
    shmring_ring_counts received;
    uint64_t read_ns[2]; /* ever spent in reading timed frames, by parity of their lap; stored before `head` */
    SHMRING_APART shmring_ring_role consumer;
    uint64_t producer_asleep; /* waiter word of the producer while it waits for this consumer; as in shmring_waiter */
} shmring_ring_head;

/* A ring of nslots equal slots, with one producer and, in a broadcast, several consumers (core/ring/spsc.pxd). It is directly
 * followed by a shmring_ring_head for each further consumer, and these by the slots. Each consumer reads every slot; a
 * slot is free when the last of them has released it.
 * Counters only grow and may wrap at 2^64; distances are taken by unsigned subtraction.
 * Invariant for each head, seen from either side:   0 <= tail - head <= nslots. */
#define SHMRING_RING_MAGIC 0x38676e6972ull /* "ring8" */
#define SHMRING_RING_MOST_HEADS 1024u
typedef struct {
    uint64_t magic;  /* written last when the ring is made (release); this line never changes afterwards */
    uint64_t nslots; /* a power of two */
    uint64_t slot_nbytes;
    uint64_t nheads;
    SHMRING_APART uint64_t tail; /* producer's: slots ever committed */
    shmring_ring_counts sent;
    SHMRING_APART shmring_ring_role producer;
    SHMRING_APART shmring_laps laps; /* producer's */
    shmring_ring_head heads[1];
} shmring_ring;

_Static_assert(offsetof(shmring_ring, producer) - offsetof(shmring_ring, tail) == SHMRING_FALSE_SHARING,
               "the counter of the producer is on a line of its own");
_Static_assert(sizeof(shmring_ring_head) == 2 * SHMRING_FALSE_SHARING, "the counter and the role of a consumer");
_Static_assert(sizeof(shmring_ring) % SHMRING_FALSE_SHARING == 0, "the slots start on a line of their own");

/* A queue (channels/queue.pyx): a ring whose ends go from process to process, each to the holder of its lock. */
typedef struct {
    SHMRING_APART shmring_lock sending;
    uint64_t is_putting; /* 1 while the holder of `sending` puts an item, and after its death in the middle of one */
    uint64_t began;      /* the slot at which that item begins */
    uint64_t sent;       /* messages put before it */
    uint32_t signal;     /* whether the consumers' descriptor is readable (channels/queue.pyx); stored under `sending` */
    uint32_t is_polled;  /* 1 once a process has asked for that descriptor */
    SHMRING_APART shmring_lock receiving;
    uint64_t getting;  /* the member that holds `receiving`, and after its death, or an exception, in the middle of an item */
    uint64_t got_from; /* the head of the ring when it began */
    uint64_t got;      /* messages received before that */
    SHMRING_APART uint64_t watched; /* of a named queue: waiter word of the notifiers of all processes (futex.h) */
    SHMRING_APART uint64_t done; /* calls of task_done (compare-and-swap) */
    uint64_t joining;            /* waiter word of callers of join(), and the semaphore on which they sleep */
    sem_t joined;
    SHMRING_APART shmring_lock placing; /* of a queue with maxsize: held to take a place, and to wait for one */
    uint64_t place_awaited;      /* waiter word of its holder, and the semaphore on which that sleeps */
    sem_t place_given;
    uint64_t nkeepers;           /* members from this one on have never kept an item (compare-and-swap, grows) */
    SHMRING_APART uint64_t kept[SHMRING_MEMBERS_MAX]; /* of each member: items that it is putting or keeps until there is
                                                       * room, and its turn times 2^32; void after its death */
    SHMRING_APART shmring_liveness members[SHMRING_MEMBERS_MAX];
} shmring_queue;

/* A latest value (channels/latest.pyx). Of the slots one holds the newest version, each lease keeps one at most, and one
 * more is free for the next version: a writer always finds it. */
enum { SHMRING_LATEST_NLEASES = 4, SHMRING_LATEST_NSLOTS = SHMRING_LATEST_NLEASES + 2 };

typedef struct {
    SHMRING_APART uint64_t slot; /* 1 + the slot that must not be overwritten; 0: none */
    shmring_liveness holder;
} shmring_latest_lease;

typedef struct {
    SHMRING_APART uint64_t newest; /* the newest whole version times 8, and its slot; 0: none yet */
    uint64_t writer; /* the member that wrote it */
    uint64_t room;   /* bytes of a slot for a value and its metadata (compare-and-swap); 0: no process has decided yet */
    SHMRING_APART uint64_t watched; /* waiter word of the notifiers of all processes (futex.h) */
    SHMRING_APART uint64_t waiting; /* waiter word of readers, and the semaphore on which they sleep */
    sem_t woken;
    SHMRING_APART shmring_lock writing; /* held for one write */
    shmring_latest_lease leases[SHMRING_LATEST_NLEASES];
    SHMRING_APART shmring_liveness members[SHMRING_MEMBERS_MAX];
} shmring_latest;

typedef struct {
    SHMRING_APART uint64_t version; /* of the value in it; 0: none, or it is being written */
    uint64_t word;   /* what the value is: as the word of a frame (core/ring/framing.pxd) */
    uint64_t nbytes; /* of the value and its metadata, which begin on the next line */
} shmring_latest_slot;

/* First page of every segment. Written once by the creator, `ready` last (release); immutable afterwards, but for
 * `attached`, `family` and the liveness. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t header_nbytes;
    uint64_t nbytes; /* whole segment */
    uint32_t kind;
    uint32_t uid;
    uint8_t boot_id[SHMRING_ID_NBYTES];
    uint8_t nonce[SHMRING_ID_NBYTES];
    int32_t rank; /* the creator's, and the size of its group */
    int32_t size;
    uint64_t params[SHMRING_NPARAMS]; /* meaning depends on kind */
    uint64_t family; /* the creator's (core/memory/family.py); 0 once a process of another family has this channel */
    SHMRING_APART uint32_t ready;
    SHMRING_APART uint64_t attached; /* creator only: peers with mapped segments (collectives/bootstrap/rendezvous.py) */
    SHMRING_APART shmring_liveness liveness;
} shmring_header;

_Static_assert(sizeof(shmring_header) <= SHMRING_HEADER_NBYTES, "the header must fit its page");

/* ---- the outbox: all that one rank stores in collectives ----------------------------------------------------------
 *
 * The rounds of a communicator are numbered from 0; round r uses slot r % nslots of every rank's outbox. Both counters
 * only grow, and each has one writer. A rank that writes nothing in a round need not publish it.
 * Invariant, for every rank i while it writes round r:   r < consumed[j] + nslots   for every other rank j.
 *
 *   [header page][shmring_outbox][eager slots: nslots x eager_stride][slots: nslots x slot_nbytes]
 *   [pair queue ends: one for each peer][pair queues: one for each peer, each without memory until it is used]
 *   [helper areas 1, 2, ...: only those of the team's threads have memory]
 */
#define SHMRING_NSLOTS_MAX 14u

#define SHMRING_LATE_NBYTES 200u

/* The first rank that notices a failure writes this record, once; only the record in rank 0's outbox is used. Every
 * waiting rank loads `state`. */
typedef struct {
    uint32_t state; /* 0 nothing, 1 being written, 2 written (release) */
    uint32_t cause; /* SHMRING_LOST ... below */
    int32_t by;     /* the rank that noticed, and the rank it is about */
    int32_t about;
    uint64_t round;
    uint64_t mine; /* signatures, for a mismatch: of `by` and of `about` */
    uint64_t theirs;
    union {
        char reason[SHMRING_LATE_NBYTES];
        uint8_t late[SHMRING_LATE_NBYTES]; /* SHMRING_LATE: a bit for each of the first 1600 ranks, set if it is late */
    };
} shmring_abort;

enum shmring_cause {
    SHMRING_LOST = 1,     /* `about` died */
    SHMRING_LEFT = 2,     /* `about` closed its communicator while others needed it */
    SHMRING_LATE = 3,     /* `about` did not come in time */
    SHMRING_MISMATCH = 4, /* `by` and `about` disagree about a collective */
    SHMRING_ABORTED = 5   /* `by` called abort(), left with an exception, or was interrupted */
};

#define SHMRING_NCHOICES 64u

/* Where a call of this rank is in the program, stored once it has waited for a tick; for observers. `number` is the
 * value that `calls`, or `awaiting_since`, has in that call; it is 0 while `text` is written. */
#define SHMRING_PLACE_NBYTES 184u
typedef struct {
    uint64_t number;
    char text[SHMRING_PLACE_NBYTES];
} shmring_place;

/* The plan of the last call of this rank that had one, to explain a mismatch: its digest is mixed into the history of
 * that call (collectives/engine/compiled_plan.pyx), the text names it. */
#define SHMRING_PLAN_TEXT_NBYTES 56u
typedef struct {
    uint64_t digest;
    uint64_t call; /* signature of that call, */
    uint64_t base; /* and its first round */
    char text[SHMRING_PLAN_TEXT_NBYTES];
} shmring_plan_note;

typedef struct {
    /* One line: the count of published rounds, and the signatures of the last nslots of them, so that a rank that loads
     * the count has the signatures with it. signature[r % nslots] is written before `published` passes r. */
    SHMRING_APART uint64_t published;
    uint32_t signature[SHMRING_NSLOTS_MAX];
    SHMRING_APART uint64_t consumed; /* rounds that this rank has read: it will not load their slots again */
    SHMRING_APART uint64_t asleep;   /* waiter word: 0 awake; else what this rank waits for (core/sync/wait.pyx) */
    SHMRING_APART sem_t wake;
    /* The same for messages (collectives/p2p/pair_queue.pyx): another thread of the rank may sleep in a collective. */
    SHMRING_APART uint64_t pair_queues_asleep;
    SHMRING_APART sem_t pair_queues_wake;
    /* One line: what this rank does now. It stores `current`, `calls` and `nbytes` in every collective. */
    SHMRING_APART uint32_t left; /* 1 once this rank has closed */
    uint32_t barrier_ns; /* of a barrier right after the rendezvous; 0 where ranks take turns on processors */
    uint64_t current;   /* signature of the call this rank is in, 0 outside; cleared before `consumed` passes the call's
                         * last round */
    uint64_t calls;     /* collectives begun, and the bytes of the arrays in them; for observers, as are the times, in */
    uint64_t nbytes;    /* nanoseconds of CLOCK_MONOTONIC */
    uint64_t last_wait; /* what its last long wait was for (core/sync/wait_graph.pxd), for error messages; void once the wait
                         * is over */
    uint64_t waiting_since;  /* when that wait began */
    uint64_t awaiting;       /* signature of the message call in which a thread of this rank sleeps, 0 none; other ranks
                              * load it for their error messages */
    uint64_t awaiting_since; /* when that call began to wait */
    uint64_t full_signature[SHMRING_NSLOTS_MAX]; /* loaded only to explain a mismatch, */
    uint64_t history[SHMRING_NSLOTS_MAX];        /* as is the history that each was mixed with */
    uint64_t waited_ns;                          /* sum of the waits that are over */
    uint32_t accesses; /* 1 while this rank accesses private arrays of others, in one process with them */
    uint32_t processor; /* one more than where it was when it last waited for a message; a hint */
    shmring_place place;                         /* of the call that waits now, */
    shmring_place message_place;                 /* and of the message call */
    shmring_plan_note plan;
    SHMRING_APART uint64_t choices[SHMRING_NCHOICES]; /* variants of calls about which this rank decides (collectives/engine/variants.pyx) */
    SHMRING_APART shmring_abort abort;
} shmring_outbox;

_Static_assert(offsetof(shmring_outbox, signature) + sizeof(uint32_t) * SHMRING_NSLOTS_MAX == SHMRING_LINE,
               "the count and its signatures share one line");
_Static_assert(offsetof(shmring_outbox, full_signature) - offsetof(shmring_outbox, left) == SHMRING_LINE,
               "what a rank does now is one line");
_Static_assert(sizeof(shmring_outbox) <= SHMRING_PAGE_NBYTES - sizeof(uint64_t), "the control area must fit a page");

/* ---- helper areas: the part of an outbox that one helper thread uses -----------------------------------------------
 *
 * Helper area t of every outbox has a control area and slots of its own: rounds, counters and signatures as above, with
 * round numbers of their own, used by thread t of each rank only. Thread 0 uses the outbox itself; the liveness and the
 * abort record are there only.
 *
 *   [shmring_outbox, one page][slots: nslots x the lesser of slot_nbytes and SHMRING_HELPER_SLOT_NBYTES]
 */
#define SHMRING_THREADS_MAX 32u
#define SHMRING_HELPER_SLOT_NBYTES 65536u

/* ---- eager messages: small payloads in the same lines as their sequence number -------------------------------------
 *
 * Each line ends in its tag, round + 1, stored after the rest of the line (release): a reader that loads the tag has
 * the payload, and one cache miss loads both. The first line also has the signature. A tag is 64 bits wide, so a stale
 * line is never mistaken for a new one. */
#define SHMRING_EAGER_NBYTES 4096u
#define SHMRING_FIRST_NBYTES 48u
#define SHMRING_REST_NBYTES 56u

typedef struct {
    _Alignas(SHMRING_LINE) uint8_t payload[SHMRING_FIRST_NBYTES];
    uint64_t signature;
    uint64_t tag;
} shmring_first_line;

typedef struct {
    _Alignas(SHMRING_LINE) uint8_t payload[SHMRING_REST_NBYTES];
    uint64_t tag;
} shmring_rest_line;

#define SHMRING_EAGER_NLINES                                                                                         \
    (1u + (SHMRING_EAGER_NBYTES - SHMRING_FIRST_NBYTES + SHMRING_REST_NBYTES - 1u) / SHMRING_REST_NBYTES)

typedef struct {
    shmring_first_line first;
    shmring_rest_line rest[SHMRING_EAGER_NLINES - 1u];
} shmring_eager_line;

_Static_assert(sizeof(shmring_first_line) == SHMRING_LINE && sizeof(shmring_rest_line) == SHMRING_LINE,
               "an eager line is a cache line");

/* ---- pair queues: messages from one rank to one other --------------------------------------------------------------
 *
 * The pair queue from i to j lies in the outbox of i, and only i writes to it: SHMRING_PAIR_QUEUE_NCELLS cells, then a
 * byte ring. A cell is one cache line. Its `seq`, the cell's number counted from 1, is stored last (release). A message
 * of at most SHMRING_CELL_NBYTES lies in its cell. A longer message goes in pieces through the byte ring, with one cell
 * for each piece, which holds these instead of payload. Payload is never stored where a `seq` may lie, so
 * a stale `seq` is always the number of an older cell.
 * Invariants:   sent - taken <= SHMRING_PAIR_QUEUE_NCELLS;   bytes of the pieces not taken <= size of the byte ring. */
#define SHMRING_PAIR_QUEUE_NCELLS 256u
#define SHMRING_CELL_NBYTES 40u

typedef struct {
    _Alignas(SHMRING_LINE) union {
        uint8_t payload[SHMRING_CELL_NBYTES];
        struct {
            uint64_t timed; /* not 0: the receiver times its read of the piece (core/ring/laps.pxd) */
            uint32_t kind;  /* enum shmring_stores, of the piece */
            uint32_t skew;  /* in the first cell of a message: bytes from a line to where it lies */
            uint32_t part;  /* enum shmring_part, where the piece lies */
        };
    };
    uint64_t nbytes; /* of the whole message, in each of its cells */
    int32_t tag;
    int32_t dtype; /* position in dtypes.DTYPES, or negative: see collectives/p2p/requests.pxd */
    uint64_t seq;
} shmring_cell;

_Static_assert(sizeof(shmring_cell) == SHMRING_LINE, "a cell is a cache line");

/* The state that a rank publishes to one peer of the two pair queues between them; in the rank's own outbox. */
typedef struct {
    SHMRING_APART uint64_t taken; /* cells ever taken out of the peer's queue to this rank */
    uint64_t opened;              /* 1 once this rank's queue to the peer has memory (release) */
    /* By parity of the lap, stored before `taken`: the time ever spent in reading timed pieces, and when the last one
     * had been read. */
    uint64_t read_ns[2];
    uint64_t ended_ns[2];
} shmring_pair_queue_end;

#endif
