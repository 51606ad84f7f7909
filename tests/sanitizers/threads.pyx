"""The rings, rounds and waits of shmring between threads of one process, for the thread sanitizer.

Each thread runs one call without the GIL from its first to its last step, on memory that both have: what orders its
accesses is what orders those of processes, and nothing else. Payloads are plain memory, as between processes.
"""

from libc.stdint cimport UINT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from shmring.core.c.layout cimport sem_t, shmring_liveness, shmring_outbox, shmring_eager_line
from shmring.core.ring.spsc cimport (
    consumer_t, producer_t, ring_attach_consumer, ring_attach_producer, ring_close_consumer, ring_close_producer,
    ring_commit, ring_control_nbytes, ring_format, ring_is_finished, ring_peek, ring_release, ring_reserve,
)
from shmring.collectives.engine.rounds cimport await_round, claim, engine_t, publish, release
from shmring.collectives.engine.eager cimport advance_eager, start_eager, eager_t
from shmring.core.sync.backoff cimport be_patient, patience_t
from shmring.core.sync.group cimport CONSUMED, EVERYONE, PUBLISHED, READY, TROUBLE, UNREADY


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)
    int sched_yield()

cdef enum:
    NSLOTS = 4
    SLOT_NBYTES = 256
    WORDS = 32      # of 8 bytes, in a slot


# ---- the ring --------------------------------------------------------------------------------------------------------

cdef class Ring:
    """A ring both ends of which are held here."""

    cdef char *memory
    cdef producer_t producer
    cdef consumer_t consumer

    def __cinit__(self):
        cdef size_t nbytes = ring_control_nbytes() + NSLOTS * SLOT_NBYTES
        self.memory = <char *> calloc(1, nbytes + 128)
        base = <size_t> self.memory + 127 & ~<size_t> 127
        ring_format(<void *> <size_t> base, NSLOTS, SLOT_NBYTES, 0)
        assert ring_attach_producer(&self.producer, <void *> <size_t> base, nbytes) == 0
        assert ring_attach_consumer(&self.consumer, <void *> <size_t> base, nbytes) == 0

    def __dealloc__(self):
        ring_close_consumer(&self.consumer, True)
        free(self.memory)

    def produce(self, uint64_t nmessages):
        cdef uint64_t sent = 0, k
        cdef int64_t count
        cdef uint64_t *slot
        with nogil:
            while sent < nmessages:
                slot = <uint64_t *> ring_reserve(&self.producer, 1, &count)
                if slot == NULL:
                    sched_yield()
                    continue
                for k in range(WORDS):
                    slot[k] = sent + k
                ring_commit(&self.producer, 1)
                sent += 1
            ring_close_producer(&self.producer, True)

    def consume(self):
        """How many messages came, and how many of their words were wrong."""
        cdef uint64_t got = 0, wrong = 0, k
        cdef int64_t count
        cdef const uint64_t *slot
        with nogil:
            while not ring_is_finished(&self.consumer):
                slot = <const uint64_t *> ring_peek(&self.consumer, 1, &count)
                if slot == NULL:
                    sched_yield()
                    continue
                for k in range(WORDS):
                    wrong += slot[k] != got + k
                ring_release(&self.consumer, 1)
                got += 1
        return got, wrong


# ---- rounds, eager exchanges, waits
# --------------------------------------------------------------------------------------------

cdef class Group:
    """Outboxes of some ranks, each of which is a thread here."""

    cdef int size
    cdef engine_t *engines
    cdef list blocks
    cdef char *memory

    def __cinit__(self, int size, int64_t spin_ns):
        cdef size_t box = sizeof(shmring_outbox) + NSLOTS * (sizeof(shmring_eager_line) + SLOT_NBYTES) + 128 & ~127
        cdef engine_t *e
        cdef char *at
        cdef int i, j
        self.size = size
        self.memory = <char *> calloc(size, box + 8192)
        self.engines = <engine_t *> calloc(size, sizeof(engine_t))
        at = <char *> (<size_t> self.memory + 127 & ~<size_t> 127)
        for i in range(size):
            e = &self.engines[i]
            e.group.rank = i
            e.group.size = size
            e.group.first = &e.group
            e.group.outbox = <shmring_outbox **> calloc(size, sizeof(void *))
            e.group.liveness = <shmring_liveness **> calloc(size, sizeof(void *))
            e.group.seen[PUBLISHED] = <uint64_t *> calloc(size, sizeof(uint64_t))
            e.group.seen[CONSUMED] = <uint64_t *> calloc(size, sizeof(uint64_t))
            e.eager = <shmring_eager_line **> calloc(size, sizeof(void *))
            e.slots = <char **> calloc(size, sizeof(void *))
            e.agreed = <uint64_t *> calloc(size, sizeof(uint64_t))
            e.ended = <uint64_t *> calloc(NSLOTS, sizeof(uint64_t))
            e.did = <uint64_t *> calloc(NSLOTS, sizeof(uint64_t))
            e.sources = <const void **> calloc(size, sizeof(void *))
            e.scratch = <char *> calloc(size, 4096)
            e.nslots = NSLOTS
            e.slot_nbytes = SLOT_NBYTES
            e.free_until = NSLOTS
            e.group.spin_ns = spin_ns
            e.group.yields = 1
            e.group.tick_ns = 20000000
            e.brief_looks = 4
            e.group.seen[PUBLISHED][i] = e.group.seen[CONSUMED][i] = UINT64_MAX
            for j in range(size):
                e.group.outbox[j] = <shmring_outbox *> (at + j * box)
                e.group.liveness[j] = <shmring_liveness *> calloc(1, sizeof(shmring_liveness))
                e.eager[j] = <shmring_eager_line *> (at + j * box + (sizeof(shmring_outbox) + 63 & ~63))
                e.slots[j] = <char *> (e.eager[j] + NSLOTS)
            e.group.record = &e.group.outbox[0].abort
            e.own = e.group.outbox[i]
            sem_init(&e.own.wake, 1, 0)
            sem_init(&e.own.pair_queues_wake, 1, 0)

    def exchange(self, int rank, uint64_t nrounds):
        """Claim, write, publish, await, read and release so many rounds; how many words were wrong."""
        cdef engine_t *e = &self.engines[rank]
        cdef patience_t patience
        cdef uint64_t r, k, wrong = 0
        cdef uint64_t *slot
        cdef int j, outcome = READY
        with nogil:
            for r in range(nrounds):
                be_patient(&patience, -1)
                outcome = UNREADY
                while outcome == UNREADY:
                    outcome = claim(e, r, &patience)
                slot = <uint64_t *> (e.slots[rank] + r % NSLOTS * SLOT_NBYTES)
                for k in range(WORDS):
                    slot[k] = r * 1000 + rank * 100 + k
                publish(e, r, 77)
                outcome = UNREADY
                while outcome == UNREADY:
                    outcome = await_round(e, EVERYONE, r, r, 77, &patience)
                if outcome == TROUBLE:
                    break
                for j in range(self.size):
                    slot = <uint64_t *> (e.slots[j] + r % NSLOTS * SLOT_NBYTES)
                    for k in range(WORDS):
                        wrong += slot[k] != r * 1000 + j * 100 + k
                release(e, r)
            e.next_round = nrounds
        assert outcome == READY
        return wrong

    def exchange_eager(self, int rank, uint64_t nexchanges, bint has_root):
        """So many eager exchanges of 20 words, all to all, or every second one from rank 0 to all; how many words were
        wrong."""
        cdef engine_t *e = &self.engines[rank]
        cdef patience_t patience
        cdef eager_t t
        cdef uint64_t n, k, wrong = 0, words[20], received[20 * 8]
        cdef int j, outcome = READY
        with nogil:
            for n in range(nexchanges):
                for k in range(20):
                    words[k] = n * 1000 + rank * 100 + k
                memset(&t, 0, sizeof(t))
                memset(received, 0, sizeof(received))
                t.signature = 77 + n
                t.nbytes = t.part_nbytes = sizeof(words)
                t.out = <char *> received
                t.last = self.size
                t.payload = <const char *> words
                if has_root and n & 1:
                    t.last = rank != 0
                    if rank != 0:
                        t.payload = NULL
                outcome = start_eager(e, &t)
                be_patient(&patience, -1)
                while outcome == UNREADY:
                    outcome = advance_eager(e, &t, &patience)
                if outcome == TROUBLE:
                    break
                for j in range(t.first, t.last):
                    for k in range(20):
                        wrong += received[j * 20 + k] != n * 1000 + j * 100 + k
        assert outcome == READY
        return wrong
