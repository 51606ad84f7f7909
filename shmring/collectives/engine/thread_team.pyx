"""Teams: the threads of one rank that share a large collective.

Thread t of a rank takes a share of every block of the message (shmring.collectives.plan.thread_shares) and executes its
plan with the threads t of the other ranks, over slots and counters of its own in each outbox, a *helper area*, and by
the same rounds and waits. So the threads of a rank synchronise only at the call and at its end, and each of them
notices and reports death, delay, disagreement and aborts wherever it waits, as a rank does. The caller, thread 0, uses
the outbox itself.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free

from shmring.collectives.engine.compiled_plan cimport execute, open_execution
from shmring.core.c.layout cimport SHMRING_FALSE_SHARING, SHMRING_PAGE_NBYTES, SHMRING_THREADS_MAX, shmring_outbox
from shmring.core.sync.liveness cimport fork_generation
from shmring.core.sync.backoff cimport be_patient
from shmring.core.sync.group cimport CONSUMED, PUBLISHED, READY, TROUBLE, UNREADY


cdef extern from "collectives/engine/team.h" nogil:
    shmring_team *make_team(void (*work)(void *, int) noexcept nogil, void *what, int64_t spin_ns)
    int start_helpers(shmring_team *team, int wanted)
    void dismiss_helpers(shmring_team *team, int kept)
    void call_helpers(shmring_team *team)
    bint c_await_helpers "await_helpers"(shmring_team *team, patience_t *patience, int64_t tick_ns)

cdef enum:
    TICK_NS = 20000000      # longest sleep of the caller without a look at signals


cdef void take_part(void *what, int number) noexcept nogil:
    """One helper's share of a call."""
    cdef helper_t *s = (<helper_t **> what)[number]
    open_execution(&s.engine, &s.execution)
    s.outcome = UNREADY
    while s.outcome == UNREADY:      # signals are handled by the caller
        s.outcome = execute(&s.engine, &s.execution, &s.patience)


# Not cleared by the garbage collector: the threads use the heap until they have ended.
@cython.no_gc_clear
cdef class Team:
    """The threads of one rank in one communicator: the caller of each collective and its helpers.

    Parameters
    ----------
    nthreads : int
        How many to start, the caller included. There are fewer if the system allows no more.
    spin_ns : int
        How long a helper spins for the next call, and the caller for its helpers, before they sleep.
    limits : Limits
        For the plans of shares.
    split_nbytes : float
        Messages from this size up are shared among the threads.
    """

    def __cinit__(self, int nthreads, int64_t spin_ns, limits, double split_nbytes):
        self.limits = limits
        self.split_nbytes = split_nbytes
        self.generation = fork_generation()
        self.heap = Heap()
        self.helpers = <helper_t **> PyMem_Calloc(SHMRING_THREADS_MAX, sizeof(helper_t *))
        if self.helpers != NULL:
            self.threads = make_team(take_part, self.helpers, spin_ns)
        if self.threads == NULL:
            raise MemoryError("no memory for a team of threads")
        start_helpers(self.threads, nthreads - 1)

    def __dealloc__(self):
        if self.threads != NULL:
            self.keep(1)
            free(self.threads)
        PyMem_Free(self.helpers)

    cdef int nthreads(self) noexcept nogil:
        return 1 + self.threads.nhelpers

    cdef int settle(self, engine_t *caller, char **areas, size_t area_nbytes, size_t slot_nbytes) except -1:
        """Give every helper its area; ``areas`` has the first helper area of each rank."""
        cdef int t, j, rank = caller.group.rank, size = caller.group.size
        cdef helper_t *s
        cdef engine_t *e
        cdef engine_t *before = caller
        cdef char *room
        cdef char *area
        # A thread's own counters and caches in one piece, apart from those of the other threads.
        cdef size_t nbytes = (sizeof(helper_t) + size * (3 * sizeof(void *) + 3 * sizeof(uint64_t))
                              + caller.nslots * 2 * sizeof(uint64_t))
        for t in range(1, self.nthreads()):
            room = <char *> self.heap.allocate(1, nbytes + 2 * SHMRING_FALSE_SHARING)
            room += -<uintptr_t> room & (SHMRING_FALSE_SHARING - 1)
            s = <helper_t *> room
            e = &s.engine
            e.group = caller.group                 # liveness, abort record and patience are the rank's
            e.group.next = NULL
            e.group.outbox = <shmring_outbox **> (room + sizeof(helper_t))
            e.slots = <char **> (e.group.outbox + size)
            e.sources = <const void **> (e.slots + size)
            e.group.seen[PUBLISHED] = <uint64_t *> (e.sources + size)
            e.group.seen[CONSUMED] = e.group.seen[PUBLISHED] + size
            e.agreed = e.group.seen[CONSUMED] + size
            e.ended = e.agreed + size
            e.did = e.ended + caller.nslots
            for j in range(size):
                area = areas[j] + (t - 1) * area_nbytes
                e.group.outbox[j] = <shmring_outbox *> area
                e.slots[j] = area + SHMRING_PAGE_NBYTES      # after the control area
            e.own = e.group.outbox[rank]
            e.group.seen[PUBLISHED][rank] = e.group.seen[CONSUMED][rank] = UINT64_MAX
            e.group.spin_ns = self.threads.spin_ns
            e.nslots = caller.nslots
            e.nslots_bits = caller.nslots_bits
            e.slot_nbytes = slot_nbytes
            e.free_until = e.nslots
            self.helpers[t] = s
            before.group.next = &e.group           # from here on it is woken with the others
            before = e
        return 0

    cdef void begin(self, execution_t *j, int64_t timeout_ns) noexcept nogil:
        """Start the helpers on their shares of the execution that the caller begins; ``await_helpers`` must follow."""
        cdef int t, nthreads = self.nthreads()
        cdef helper_t *s
        cdef program_t *program = j.program
        for t in range(1, nthreads):
            s = self.helpers[t]
            s.execution = j[0]
            s.execution.is_timed = False               # only the caller's times are used
            s.execution.in_base += t * program.share_nbytes
            s.execution.out_base += t * program.share_nbytes
            s.execution.program = program.last if t == nthreads - 1 else program
            be_patient(&s.patience, timeout_ns)
        be_patient(&self.patience, -1)
        self.ncalls += 1
        call_helpers(self.threads)

    cdef bint await_helpers(self) noexcept nogil:
        """Whether all helpers have ended their shares; waits for that, but no longer than a tick."""
        return c_await_helpers(self.threads, &self.patience, TICK_NS)

    cdef int outcome(self) noexcept nogil:
        """How the helpers' executions have ended: READY, or TROUBLE, which is in the abort record."""
        cdef int t
        for t in range(1, self.nthreads()):
            if self.helpers[t].outcome != READY:
                return TROUBLE
        return READY

    cdef void keep(self, int nthreads) noexcept:
        """Dismiss the helpers beyond ``nthreads`` threads and wait for them to end. A forked child has none."""
        if self.generation == fork_generation():
            with nogil:
                dismiss_helpers(self.threads, nthreads - 1)
