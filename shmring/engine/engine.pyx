"""The engine of one communicator in one process.

It owns the process's view of all outboxes, sees that one thread at a time is in a call, runs talks and executions, and
turns what goes wrong into one error that every later call raises again. What a call means is decided above.
"""

import copy
import functools
import os
import time
from queue import SimpleQueue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport UINT64_MAX

from shmring._c.atomics cimport load_acquire_u32, store_release_u32, store_release_u64
from shmring._runtime cimport allocate
from shmring.engine.executor cimport execute
from shmring._c.layout cimport (SHMRING_ABORTED, SHMRING_HEADER_NBYTES, SHMRING_LATE, SHMRING_LEFT, SHMRING_LOST,
                             SHMRING_PAIR_QUEUE_NCELLS, SHMRING_MISMATCH, SHMRING_STRAND_SLOT_NBYTES, SHMRING_THREADS_MAX,
                             SHMRING_EAGER_NBYTES, sem_t, shmring_abort, shmring_cell, shmring_header,
                             shmring_pair_queue_end, shmring_liveness, shmring_outbox, shmring_eager_line)
from shmring._c.faults cimport fault_point
from shmring.sync.liveness cimport ALIVE, drop_liveness, hold_liveness, life_state
from shmring.memory.mapping cimport Mapping
from shmring.arrays.store_tuning cimport ON_TRIAL, hear_costs, next_call, note, tell_costs, tries_for
from shmring.engine.eager cimport advance_eager, start_eager
from shmring.engine.turn cimport give_turn, take_turn
from shmring.sync.wait cimport (CONSUMED, PUBLISHED, READY, TROUBLE, be_patient, circle_t, in_trouble, insist_on_report,
                           patience_t, report_trouble, rouse_everyone)

from shmring.engine.abort_errors import Record, diagnose
from shmring.engine.lifecycle import Stage, exit_reason, track
from shmring.errors import ClosedError, PeerLostError, SegmentError
from shmring.plan.hierarchical_cost import use_hierarchical_barrier
from shmring.plan.limits import Limits
from shmring.placement.cpus import usable_processors
from shmring.memory.sweep import sweep_after


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)

cdef enum:
    PAGE = 4096
    BRIEF_LOOKS = 64             # about a microsecond with the GIL held
    BRIEF_LOOKS_CROWDED = 2
    TELLING_NBYTES = 262144      # smaller calls say little about larger ones: short bursts fit in store buffers
    MOST_PROGRAMS = 256          # a few KiB each; a program that calls with ever new sizes must not grow

_CAUSES = {
    SHMRING_LOST: "lost", SHMRING_LEFT: "left", SHMRING_LATE: "late", SHMRING_MISMATCH: "mismatch",
    SHMRING_ABORTED: "aborted",
}


# ---- where things lie in an outbox segment ---------------------------------------------------------------------------

cdef size_t eager_slots_nbytes(int nslots) noexcept:
    return (nslots * sizeof(shmring_eager_line) + PAGE - 1) // PAGE * PAGE


cdef shmring_outbox *outbox_in(char *base) noexcept:
    return <shmring_outbox *> (base + SHMRING_HEADER_NBYTES)


cdef shmring_eager_line *eager_slots_in(char *base) noexcept:
    return <shmring_eager_line *> (base + SHMRING_HEADER_NBYTES + PAGE)


cdef char *slots_in(char *base, int nslots) noexcept:
    return <char *> eager_slots_in(base) + eager_slots_nbytes(nslots)


cdef size_t pair_queue_ends_offset(config) except? 0:
    """Where the pair queue ends lie in an outbox segment, counted from its start."""
    return SHMRING_HEADER_NBYTES + PAGE + eager_slots_nbytes(config.nslots) + config.nslots * config.slot_nbytes


cdef size_t pair_queue_offset(config, int size, int peer) except? 0:
    """Where the pair queue to ``peer`` lies, counted from the start of the segment."""
    cdef size_t ends_nbytes = (size * sizeof(shmring_pair_queue_end) + PAGE - 1) // PAGE * PAGE
    return pair_queue_ends_offset(config) + ends_nbytes + peer * pair_queue_nbytes(config, size)


cdef size_t pair_queue_nbytes(config, int size) except? 0:
    return SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell) + config.pair_queue_limit(size)


cdef size_t strands_offset(config, int size) except? 0:
    """Where the strands of a team's helpers lie, counted from the start of the segment."""
    return pair_queue_offset(config, size, size)


cdef size_t strand_nbytes(config) except? 0:
    return PAGE + config.nslots * strand_slot_nbytes(config)


cdef size_t strand_slot_nbytes(config) except? 0:
    return min(<size_t> config.slot_nbytes, <size_t> SHMRING_STRAND_SLOT_NBYTES)


def outbox_nbytes(config, int size):
    """Bytes of the segment that holds one rank's outbox among ``size`` ranks."""
    return strands_offset(config, size) + (SHMRING_THREADS_MAX - 1) * strand_nbytes(config)


def sparse_nbytes(config, int size):
    """How many of them, at the end, have no memory before they are used: the pair queues and the strands."""
    return outbox_nbytes(config, size) - pair_queue_offset(config, size, 0)


def prepare_outbox(Mapping mapping):
    """Make an own, zeroed outbox ready for peers: the semaphore, and the sign that this process lives.

    Returns what undoes it, to be called before the memory is unmapped.
    """
    cdef shmring_outbox *box = outbox_in(mapping.address)
    cdef int error
    if sem_init(&box.wake, 1, 0) != 0 or sem_init(&box.pair_queues_wake, 1, 0) != 0:
        raise SegmentError("this system has no process-shared POSIX semaphores (sem_init failed)")
    error = hold_liveness(&(<shmring_header *> mapping.address).life)
    if error:
        raise SegmentError(f"cannot hold the liveness of this process: {os.strerror(error)}")
    return functools.partial(_abandon_outbox, mapping)


def _abandon_outbox(Mapping mapping):
    # A peer may have taken the rendezvous for complete in the instant in which this rank gave it up.
    store_release_u32(&outbox_in(mapping.address).left, 1)
    drop_liveness(&(<shmring_header *> mapping.address).life)


# ---- the engine ------------------------------------------------------------------------------------------------------

@cython.no_gc_clear     # __dealloc__ says goodbye through the mapped memory that `segments` keeps
cdef class Engine:
    """One rank's part in the rounds of one communicator.

    Parameters
    ----------
    segments : list of Segment
        The outboxes by rank, all mapped.
    rank : int
    config : Config
    name : str
        For messages.
    """

    def __cinit__(self, list segments, int rank, config, str name):
        cdef int size = len(segments), j
        cdef char *base
        cdef engine_t *c = &self.c
        self.segments = segments
        self.blocks = []
        self.config = config
        self.name = name
        self.eager_limit = config.eager_limit(size)
        self.limits = Limits(nslots=config.nslots, slot_nbytes=config.slot_nbytes)
        self.programs = {}
        self.turn_queue = SimpleQueue()
        c.circle.rank = rank
        c.circle.size = size
        c.circle.first = &c.circle
        c.circle.outbox = <shmring_outbox **> allocate(self.blocks, size, sizeof(void *))
        c.circle.life = <shmring_liveness **> allocate(self.blocks, size, sizeof(void *))
        c.circle.seen[PUBLISHED] = <uint64_t *> allocate(self.blocks, size, sizeof(uint64_t))
        c.circle.seen[CONSUMED] = <uint64_t *> allocate(self.blocks, size, sizeof(uint64_t))
        c.eager = <shmring_eager_line **> allocate(self.blocks, size, sizeof(void *))
        c.slots = <char **> allocate(self.blocks, size, sizeof(void *))
        c.agreed = <uint64_t *> allocate(self.blocks, size, sizeof(uint64_t))
        c.sources = <const void **> allocate(self.blocks, size, sizeof(void *))
        c.scratch = <char *> allocate(self.blocks, size, SHMRING_EAGER_NBYTES)
        c.ended = <uint64_t *> allocate(self.blocks, config.nslots, sizeof(uint64_t))
        c.did = <uint64_t *> allocate(self.blocks, config.nslots, sizeof(uint64_t))
        c.nslots = config.nslots
        c.nslots_bits = config.nslots.bit_length() - 1
        c.slot_nbytes = config.slot_nbytes
        for j in range(size):
            base = (<Mapping> segments[j].mapping).address
            c.circle.outbox[j] = outbox_in(base)
            c.circle.life[j] = &(<shmring_header *> base).life
            c.eager[j] = eager_slots_in(base)
            c.slots[j] = slots_in(base, c.nslots)
        c.own = c.circle.outbox[rank]
        c.circle.record = &c.circle.outbox[0].abort
        # Loops over ranks need no case for the own one: it has always come.
        c.circle.seen[PUBLISHED][rank] = c.circle.seen[CONSUMED][rank] = UINT64_MAX
        c.free_until = c.nslots
        c.circle.tick_ns = <int64_t> (config.tick_ms * 1e6)
        self.spin_among(usable_processors())
        self.learns_stores = config.streaming < 0
        c.outbox_streaming = config.streaming == 1
        c.output_streaming_nbytes = UINT64_MAX
        track(self, Stage.ENGINE)

    def spin_among(self, double processors):
        """Wait as suits so many ranks on so many processors."""
        cdef int size = self.c.circle.size
        self.c.circle.spin_ns = self.config.spin_ns(size, processors)
        self.c.circle.yields = 4 if size <= processors else 16
        self.c.brief_looks = BRIEF_LOOKS if size <= processors else BRIEF_LOOKS_CROWDED

    def go_by(self, thresholds):
        """Take up what the survey has led to (`shmring.bootstrap.tuning`): before the first call, on all ranks alike."""
        self.thresholds = thresholds
        self.eager_limit = thresholds.eager_nbytes
        self.limits = thresholds.limits
        self.hierarchy = thresholds.hierarchy
        self.hierarchical_barriers = (
            self.hierarchy is not None and use_hierarchical_barrier(self.hierarchy, self.limits)
        )
        self.c.output_streaming_nbytes = thresholds.past_cache_nbytes

    def __dealloc__(self):
        # Left without close(), e.g. by an exception in a constructor: peers see the liveness dropped with `left` set.
        if self.c.own != NULL and not self.is_closed and not self.is_inherited:
            self.say_goodbye()

    # ---- turns: one thread at a time ----

    cdef int enter(self) except -1:
        """Begin a call: raise if there can be none, wait for what was submitted before it, and for another thread's to
        end."""
        if self.has_backlog:
            self.progress.let_pass()
        if self.is_closed or self.trouble is not None or self.is_inherited:
            self.refuse()
        if take_turn(&self.turn, self.turn_queue, self.name) and (self.is_closed or self.trouble is not None):
            self.leave()      # the next waiting thread is to find that, too
            self.refuse()
        return 0

    cdef void leave(self) noexcept:
        give_turn(&self.turn, self.turn_queue)

    def refuse(self):
        if self.is_inherited:
            raise ClosedError(f"{self.name}: belongs to the parent process; this one inherited it through fork and "
                              "must make its own")
        if self.is_closed:
            raise ClosedError(f"{self.name}: is closed")
        raise copy.copy(self.trouble)

    # ---- calls ----

    cdef int exchange_eager(self, eager_t *t, int64_t timeout_ns) except -1:
        """Hold a talk. The caller has entered."""
        if start_eager(&self.c, t) == READY:
            return 0
        return self.go_on(t, None, NULL, timeout_ns)

    cdef int execute(self, Program program, execution_t *j, int64_t timeout_ns) except -1:  # no-cython-lint
        """Execute a program. The caller has entered; ``j`` holds the buffers and the signature."""
        if program.last is not None:
            return self.execute_together(program, j, timeout_ns)
        self.set_out(program, j)
        self.go_on(NULL, program, j, timeout_ns)
        self.take_stock(program, j)
        return 0

    cdef int execute_together(self, Program program, execution_t *j, int64_t timeout_ns) except -1:
        """Execute a program with all threads of the team, each in its share."""
        self.set_out(program, j)
        self.team.begin(program, j, timeout_ns)
        try:
            self.go_on(NULL, program, j, timeout_ns)
            while not self.team.await_helpers():
                self.look_after_signals(j.signature)
        finally:
            # They hold the caller's arrays. After an error they hear of it wherever they wait: the record is written.
            while not self.team.await_helpers():
                pass
        if self.team.outcome() != READY:
            self.trouble = self.diagnose()
            raise copy.copy(self.trouble)
        self.take_stock(program, j)
        return 0

    cdef void set_out(self, Program program, execution_t *j) noexcept:
        j.base = self.c.next_round
        j.places, j.place_nbytes = program.code.places, program.code.place_nbytes
        j.loop = j.step = 0
        j.iteration = 0
        j.outbox_streaming = self.c.outbox_streaming
        j.on_trial = False
        j.busy_ns = 0
        if self.learns_stores and program.learns:
            if hear_costs(&program.stores, self.c.circle.outbox, self.c.circle.size) and j.nbytes >= TELLING_NBYTES:
                self.c.outbox_streaming = program.stores.streams      # for the calls that do not learn by themselves
            j.on_trial = next_call(&program.stores, &j.outbox_streaming) == ON_TRIAL
        store_release_u64(&self.c.own.current, j.signature)      # SYNC current (meets: is_elsewhere in sync/wait.pyx)
        fault_point("execute")

    cdef void take_stock(self, Program program, execution_t *j) noexcept:
        if program.gathers_all:
            # Everyone is in this collective, hence through with all before it, as in await_round.
            self.c.free_until = max(self.c.free_until, j.base + self.c.nslots)
        if j.on_trial and note(&program.stores, program.stores.calls - 1, j.busy_ns):
            tell_costs(&program.stores, self.c.own, j.base)

    cdef int go_on(self, eager_t *t, Program program, execution_t *j, int64_t timeout_ns) except -1:
        cdef patience_t patience
        cdef int outcome
        be_patient(&patience, timeout_ns)
        while True:
            with nogil:
                if t != NULL:
                    outcome = advance_eager(&self.c, t, &patience)
                else:
                    outcome = execute(&self.c, &program.code, j, &patience)
            if outcome == READY:
                return 0
            if outcome == TROUBLE:
                self.trouble = self.diagnose()
                raise copy.copy(self.trouble)
            self.look_after_signals(t.signature if t != NULL else j.signature)

    cdef int look_after_signals(self, uint64_t signature) except -1:
        """Let Python handle signals in the middle of a call. If a handler raises, the call cannot be finished."""
        try:
            PyErr_CheckSignals()
        except BaseException as exception:
            self.abort(f"{type(exception).__name__} while waiting")
            raise
        return 0

    cdef object remember(self, tuple key, Program program):
        program.stores.tries = tries_for(program.code.rounds, self.c.nslots * program.code.places)
        program.stores.streams = self.c.outbox_streaming          # until it knows better by trials of its own
        if len(self.programs) >= MOST_PROGRAMS:
            del self.programs[next(iter(self.programs))]
        self.programs[key] = program
        return program

    def stats(self):
        """What was chosen here, and why; see `CollectiveBase.stats`."""
        cdef Program program
        programs = []
        for key, program in self.programs.items():
            if program.plan.size > 1:
                programs.append({
                    "kind": program.plan.kind,
                    "algorithm": program.plan.algorithm,
                    "nbytes": key[1],
                    "rounds": program.code.rounds,
                    "threads": 1 if program.last is None else self.team.nthreads(),
                    "calls": program.stores.calls if program.learns else None,
                    "stores": "past the cache" if (program.stores.streams if program.learns and self.learns_stores
                                                   else self.c.outbox_streaming) else "through the cache",
                    "trial_us": tuple(ns / 1e3 for ns in program.stores.cost_ns[:2]) if program.learns else None,
                })
        return {
            "rounds": self.rounds,
            "eager_nbytes": self.eager_limit,
            "slot_nbytes": self.c.slot_nbytes,
            "nslots": self.c.nslots,
            "spin_us": self.c.circle.spin_ns / 1e3,
            "huge_nbytes": [segment.mapping.huge_nbytes for segment in self.segments],
            "threads": 1 if self.team is None else self.team.nthreads(),
            "split_nbytes": None if self.team is None else self.team.split_nbytes,
            "split_calls": 0 if self.team is None else self.team.ncalls,
            "zero_copy_calls": 0 if self.sharing is None else self.sharing.nmapped,
            "programs": programs,
            **self.thresholds.report(),
        }

    # ---- trouble ----

    cdef object diagnose(self):  # no-cython-lint
        """The error this process raises because of the abort record."""
        cdef shmring_abort *r = self.c.circle.record
        cdef int j, size = self.c.circle.size
        cdef int by, about
        with nogil:
            insist_on_report(&self.c.circle)
        # Another process wrote it: what names no rank is not followed.
        by = r.by if 0 <= r.by < size else 0
        about = r.about if 0 <= r.about < size else by
        late = ()
        if r.cause == SHMRING_LATE:
            late = tuple(j for j in range(min(size, 8 * sizeof(r.late))) if r.late[j >> 3] >> (j & 7) & 1) or (about,)
        return diagnose(
            Record(_CAUSES.get(r.cause, "aborted"), by, about, self.c.circle.life[about].pid, r.round, r.mine,
                   r.theirs, r.reason[:sizeof(r.reason)].split(b"\0")[0].decode("utf-8", "replace"), late),
            self.c.circle.rank, self.name)

    cdef int disagree(self, int about, uint64_t signature, str reason) except -1:
        """Raise a mismatch that all ranks found alike in what they told each other. The caller has entered."""
        text = reason.encode("utf-8", "replace")
        report_trouble(&self.c.circle, SHMRING_MISMATCH, about, self.c.next_round, signature, signature, text)
        self.trouble = self.diagnose()
        raise copy.copy(self.trouble)

    def abort(self, str reason):
        """Tell all peers, at once, that this communicator is over; see `Communicator.abort`."""
        if self.is_closed or self.is_inherited:
            self.refuse()
        text = reason.encode("utf-8", "replace")      # cut to the record's room below
        report_trouble(&self.c.circle, SHMRING_ABORTED, self.c.circle.rank, self.c.next_round, self.c.own.current, 0,
                       text)
        if self.trouble is None:
            self.trouble = self.diagnose()

    @property
    def is_broken(self):
        """Whether trouble was met here, or a peer has reported some."""
        return self.trouble is not None or (not self.is_closed and in_trouble(&self.c.circle))

    @property
    def rounds(self):
        """How many rounds of collectives there have been."""
        return self.c.next_round

    @property
    def nonce(self):
        """A text that the ranks of this communicator share and nobody else has."""
        return self.segments[0].header.nonce.hex()

    def left_ranks(self):
        """The ranks that have closed."""
        return [j for j in range(self.c.circle.size) if load_acquire_u32(&self.c.circle.outbox[j].left)]

    def gone_ranks(self):
        """The ranks that will not be heard of again: dead, or closed. Works on a broken communicator, too."""
        cdef int j
        if self.is_closed or self.is_inherited:
            self.refuse()
        return [j for j in range(self.c.circle.size)
                if load_acquire_u32(&self.c.circle.outbox[j].left) or life_state(self.c.circle.life[j]) != ALIVE]

    def dead_pids(self):
        """The process ids of the ranks that died without having closed."""
        left = self.left_ranks()
        return [self.segments[j].header.pid for j in self.gone_ranks() if j not in left]

    def assure(self):
        """Raise what a call would raise here and now: closed, inherited, or broken."""
        if not self.is_closed and self.trouble is None and in_trouble(&self.c.circle):
            self.trouble = self.diagnose()
        if self.is_closed or self.is_inherited or self.trouble is not None:
            self.refuse()

    # ---- the end ----

    cdef void say_goodbye(self) noexcept:
        cdef circle_t *c = &self.c.circle
        fault_point("leave")
        while c != NULL:
            # SYNC left (meets: look_after_the_living in sync/wait.pyx, has_lost_somebody in p2p/pair_queue.pyx).
            store_release_u32(&c.outbox[c.rank].left, 1)
            c = c.next
        fault_point("left")
        rouse_everyone(&self.c.circle)     # who sleeps for us must hear that we will not come
        drop_liveness(self.c.circle.life[self.c.circle.rank])
        fault_point("dropped")

    def close(self):
        """Leave. Idempotent; peers that still need this rank get `PeerLostError`."""
        if self.is_closed:
            return
        if self.turn.is_taken and not self.is_inherited:
            if self.turn.holder == PyThread_get_thread_ident():
                raise RuntimeError(f"{self.name}: close() inside a call of the same thread")
            self.abort("closed while another thread was in a call")
            take_turn(&self.turn, self.turn_queue, self.name)
            self.leave()      # the threads that wait for the turn find that this communicator has ended
        if self.nvisitors and not self.is_inherited:
            self.abort("closed while another thread was in a call")
            while self.nvisitors:      # they look up at every tick of their sleep
                time.sleep(0.0005)
        dead = self.dead_pids() if isinstance(self.trouble, PeerLostError) and not self.is_inherited else []
        self.is_closed = True
        if self.team is not None:
            self.team.keep(1)
        if not self.is_inherited:
            self.say_goodbye()
        self.c.own = NULL
        for segment in self.segments:
            segment.close()
        self.segments = []
        if dead:      # they may have been about to make groups or arrays of which nobody left knows the names
            sweep_after(self.name.partition("/")[0], dead)

    def leave_at_exit(self):
        """At exit: close, after an abort if an uncaught exception ended the interpreter (`shmring.engine.lifecycle`)."""
        reason = exit_reason()
        if reason is not None and not self.is_closed and not self.is_broken:
            self.abort(reason)
        self.close()

    def disown(self):
        """In a forked child: this process is not the rank and has nothing to close (`shmring.engine.lifecycle`)."""
        self.is_inherited = True
