"""The engine of one communicator in one process.

It owns the process's view of all outboxes, admits one thread at a time to a call, runs eager exchanges and compiled
plans, and turns the abort record into the error that every later call raises again. What a call means is decided in
`shmring.collective`.
"""

import copy
import time
from queue import SimpleQueue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport UINT64_MAX

from shmring._c.atomics cimport load_acquire_u32, store_release_u32, store_release_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport (SHMRING_ABORTED, SHMRING_EAGER_NBYTES, SHMRING_LATE, SHMRING_LEFT, SHMRING_LOST,
                                SHMRING_MISMATCH, shmring_abort, shmring_eager_line, shmring_header, shmring_liveness,
                                shmring_outbox)
from shmring._runtime cimport allocate
from shmring.arrays.store_tuning cimport ON_TRIAL, sum_costs, next_call, note, publish_costs, tries_for
from shmring.engine.eager cimport advance_eager, start_eager
from shmring.engine.executor cimport execute
from shmring.engine.outbox cimport control_area, eager_slots, first_slot
from shmring.engine.turn cimport give_turn, take_turn
from shmring.memory.mapping cimport Mapping
from shmring.sync.liveness cimport ALIVE, drop_liveness, life_state
from shmring.sync.abort cimport in_trouble, insist_on_report, report_trouble, wake_all
from shmring.sync.backoff cimport BRIEF_LOOKS, be_patient, patience_t
from shmring.sync.group cimport CONSUMED, PUBLISHED, READY, TROUBLE, group_t

from shmring.engine.abort_errors import Record, diagnose
from shmring.engine.lifecycle import Stage, exit_reason, track
from shmring.errors import ClosedError, PeerLostError
from shmring.memory.sweep import sweep_after
from shmring.placement.cpus import usable_processors
from shmring.plan.hierarchical_cost import use_hierarchical_barrier
from shmring.plan.limits import Limits

cdef enum:
    BRIEF_LOOKS_CROWDED = 2
    TELLING_NBYTES = 262144      # costs of smaller calls predict little: short bursts fit in store buffers
    MOST_PROGRAMS = 256          # a few KiB each; an application that calls with ever new sizes must not grow

_CAUSES = {
    SHMRING_LOST: "lost", SHMRING_LEFT: "left", SHMRING_LATE: "late", SHMRING_MISMATCH: "mismatch",
    SHMRING_ABORTED: "aborted",
}


@cython.no_gc_clear     # __dealloc__ stores into the mapped memory that `segments` keeps
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
        c.group.rank = rank
        c.group.size = size
        c.group.first = &c.group
        c.group.outbox = <shmring_outbox **> allocate(self.blocks, size, sizeof(void *))
        c.group.life = <shmring_liveness **> allocate(self.blocks, size, sizeof(void *))
        c.group.seen[PUBLISHED] = <uint64_t *> allocate(self.blocks, size, sizeof(uint64_t))
        c.group.seen[CONSUMED] = <uint64_t *> allocate(self.blocks, size, sizeof(uint64_t))
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
            c.group.outbox[j] = control_area(base)
            c.group.life[j] = &(<shmring_header *> base).life
            c.eager[j] = eager_slots(base)
            c.slots[j] = first_slot(base, c.nslots)
        c.own = c.group.outbox[rank]
        c.group.record = &c.group.outbox[0].abort
        # Loops over ranks need no case for this rank: its own entry is always large enough.
        c.group.seen[PUBLISHED][rank] = c.group.seen[CONSUMED][rank] = UINT64_MAX
        c.free_until = c.nslots
        c.group.tick_ns = <int64_t> (config.tick_ms * 1e6)
        self.spin_among(usable_processors())
        self.learns_stores = config.streaming < 0
        c.outbox_streaming = config.streaming == 1
        c.output_streaming_nbytes = UINT64_MAX
        track(self, Stage.ENGINE)

    def spin_among(self, double processors):
        """Set how long this rank spins before it sleeps, given the processors that the ranks share."""
        cdef int size = self.c.group.size
        self.c.group.spin_ns = self.config.spin_ns(size, processors)
        self.c.group.yields = 4 if size <= processors else 16
        self.c.brief_looks = BRIEF_LOOKS if size <= processors else BRIEF_LOOKS_CROWDED

    def apply_tuning(self, thresholds):
        """Apply what calibration has led to (`shmring.bootstrap.tuning`): before the first call, alike on all ranks."""
        self.thresholds = thresholds
        self.eager_limit = thresholds.eager_nbytes
        self.limits = thresholds.limits
        self.hierarchy = thresholds.hierarchy
        self.hierarchical_barriers = (
            self.hierarchy is not None and use_hierarchical_barrier(self.hierarchy, self.limits)
        )
        self.c.output_streaming_nbytes = thresholds.past_cache_nbytes

    def __dealloc__(self):
        # Dropped without close(), e.g. by an exception in a constructor: peers see `left` set, then no liveness.
        if self.c.own != NULL and not self.is_closed and not self.is_inherited:
            self.mark_left()

    # ---- turns: one thread at a time ----

    cdef int enter(self) except -1:
        """Begin a call: wait for the asynchronous work submitted before it, raise if the communicator is unusable, and
        take the turn."""
        if self.has_backlog:
            self.progress.drain()
        if self.is_closed or self.trouble is not None or self.is_inherited:
            self.refuse()
        if take_turn(&self.turn, self.turn_queue, self.name) and (self.is_closed or self.trouble is not None):
            self.leave()      # so that the next waiting thread raises, too
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
        """Run an eager exchange. The caller has entered."""
        if start_eager(&self.c, t) == READY:
            return 0
        return self.advance(t, None, NULL, timeout_ns)

    cdef int execute(self, Program program, execution_t *x, int64_t timeout_ns) except -1:  # no-cython-lint
        """Execute a program. The caller has entered; ``x`` holds the buffers and the signature."""
        if program.last is not None:
            return self.execute_together(program, x, timeout_ns)
        self.begin_execution(program, x)
        self.advance(NULL, program, x, timeout_ns)
        self.end_execution(program, x)
        return 0

    cdef int execute_together(self, Program program, execution_t *x, int64_t timeout_ns) except -1:
        """Execute a program with all threads of the team, each in its share."""
        self.begin_execution(program, x)
        self.team.begin(program, x, timeout_ns)
        try:
            self.advance(NULL, program, x, timeout_ns)
            while not self.team.await_helpers():
                self.handle_signals(x.signature)
        finally:
            # The helpers use the caller's arrays. After an error they end as well: every wait checks the abort record.
            while not self.team.await_helpers():
                pass
        if self.team.outcome() != READY:
            self.break_down()
        self.end_execution(program, x)
        return 0

    cdef void begin_execution(self, Program program, execution_t *x) noexcept:
        x.base = self.c.next_round
        x.places, x.place_nbytes = program.code.places, program.code.place_nbytes
        x.loop = x.step = 0
        x.iteration = 0
        x.outbox_streaming = self.c.outbox_streaming
        x.on_trial = False
        x.busy_ns = 0
        if self.learns_stores and program.learns:
            if sum_costs(&program.stores, self.c.group.outbox, self.c.group.size) and x.nbytes >= TELLING_NBYTES:
                self.c.outbox_streaming = program.stores.streams      # for the calls that do not learn by themselves
            x.on_trial = next_call(&program.stores, &x.outbox_streaming) == ON_TRIAL
        store_release_u64(&self.c.own.current, x.signature)      # SYNC current (meets: is_elsewhere in sync/wait.pyx)
        fault_point("execute")

    cdef void end_execution(self, Program program, execution_t *x) noexcept:
        if program.gathers_all:
            # All ranks are in this collective, hence have consumed all rounds before it, as in await_round.
            self.c.free_until = max(self.c.free_until, x.base + self.c.nslots)
        if x.on_trial and note(&program.stores, program.stores.calls - 1, x.busy_ns):
            publish_costs(&program.stores, self.c.own, x.base)

    cdef int advance(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) except -1:
        cdef patience_t patience
        cdef int outcome
        be_patient(&patience, timeout_ns)
        while True:
            with nogil:
                if t != NULL:
                    outcome = advance_eager(&self.c, t, &patience)
                else:
                    outcome = execute(&self.c, &program.code, x, &patience)
            if outcome == READY:
                return 0
            if outcome == TROUBLE:
                self.break_down()
            self.handle_signals(t.signature if t != NULL else x.signature)

    cdef int handle_signals(self, uint64_t signature) except -1:
        """Let Python handle signals in the middle of a call. If a handler raises, the call is aborted on all ranks."""
        try:
            PyErr_CheckSignals()
        except BaseException as exception:
            self.abort(f"{type(exception).__name__} while waiting")
            raise
        return 0

    cdef object remember(self, tuple key, Program program):
        program.stores.tries = tries_for(program.code.rounds, self.c.nslots * program.code.places)
        program.stores.streams = self.c.outbox_streaming          # until its own trials decide
        if len(self.programs) >= MOST_PROGRAMS:
            del self.programs[next(iter(self.programs))]
        self.programs[key] = program
        return program

    def stats(self):
        """What was chosen here, and why; see `Communicator.stats`."""
        cdef Program program
        cdef int nthreads = 1 if self.team is None else self.team.nthreads()
        return {
            "rounds": self.rounds,
            "eager_nbytes": self.eager_limit,
            "slot_nbytes": self.c.slot_nbytes,
            "nslots": self.c.nslots,
            "spin_us": self.c.group.spin_ns / 1e3,
            "huge_nbytes": [segment.mapping.huge_nbytes for segment in self.segments],
            "threads": nthreads,
            "split_nbytes": None if self.team is None else self.team.split_nbytes,
            "split_calls": 0 if self.team is None else self.team.ncalls,
            "zero_copy_calls": 0 if self.sharing is None else self.sharing.nzero_copy,
            "programs": [program.stats(key[1], nthreads, self.learns_stores, self.c.outbox_streaming)
                         for key, program in self.programs.items() if program.plan.size > 1],
            **self.thresholds.report(),
        }

    # ---- errors ----

    cdef object diagnose(self):  # no-cython-lint
        """The error this process raises because of the abort record."""
        cdef shmring_abort *r = self.c.group.record
        cdef int j, by, about, size = self.c.group.size
        with nogil:
            insist_on_report(&self.c.group)
        # Another process wrote it: numbers that are no ranks are not used as indices.
        by = r.by if 0 <= r.by < size else 0
        about = r.about if 0 <= r.about < size else by
        late = ()
        if r.cause == SHMRING_LATE:
            late = tuple(j for j in range(min(size, 8 * sizeof(r.late))) if r.late[j >> 3] >> (j & 7) & 1) or (about,)
        return diagnose(
            Record(_CAUSES.get(r.cause, "aborted"), by, about, self.c.group.life[about].pid, r.round, r.mine,
                   r.theirs, r.reason[:sizeof(r.reason)].split(b"\0")[0].decode("utf-8", "replace"), late),
            self.c.group.rank, self.name)

    cdef int break_down(self) except -1:
        """Raise the error of the abort record, now and in every further call."""
        if self.trouble is None:
            self.trouble = self.diagnose()
        raise copy.copy(self.trouble)

    cdef int disagree(self, int about, uint64_t signature, str reason) except -1:
        """Raise a mismatch that all ranks find alike, in data that they exchanged. The caller has entered."""
        text = reason.encode("utf-8", "replace")
        report_trouble(&self.c.group, SHMRING_MISMATCH, about, self.c.next_round, signature, signature, text)
        self.break_down()

    def abort(self, str reason):
        """Break this communicator on all ranks at once; see `Communicator.abort`."""
        if self.is_closed or self.is_inherited:
            self.refuse()
        text = reason.encode("utf-8", "replace")      # report_trouble cuts it to the record's room
        report_trouble(&self.c.group, SHMRING_ABORTED, self.c.group.rank, self.c.next_round, self.c.own.current, 0,
                       text)
        if self.trouble is None:
            self.trouble = self.diagnose()

    @property
    def is_broken(self):
        """Whether a call failed here, or the abort record is written."""
        return self.trouble is not None or (not self.is_closed and in_trouble(&self.c.group))

    @property
    def rounds(self):
        """How many rounds of collectives there have been."""
        return self.c.next_round

    @property
    def nonce(self):
        """A text that the ranks of this communicator share and no other communicator has."""
        return self.segments[0].header.nonce.hex()

    def left_ranks(self):
        """The ranks that have closed."""
        return [j for j in range(self.c.group.size) if load_acquire_u32(&self.c.group.outbox[j].left)]

    def gone_ranks(self):
        """The ranks that are dead or have closed. Works on a broken communicator, too."""
        cdef int j
        if self.is_closed or self.is_inherited:
            self.refuse()
        return [j for j in range(self.c.group.size)
                if load_acquire_u32(&self.c.group.outbox[j].left) or life_state(self.c.group.life[j]) != ALIVE]

    def dead_pids(self):
        """The process ids of the ranks that died without having closed."""
        return [self.segments[j].header.pid for j in set(self.gone_ranks()).difference(self.left_ranks())]

    def check_usable(self):
        """Raise what a call would raise here and now: closed, inherited, or broken."""
        if not self.is_closed and self.trouble is None and in_trouble(&self.c.group):
            self.trouble = self.diagnose()
        if self.is_closed or self.is_inherited or self.trouble is not None:
            self.refuse()

    # ---- leaving ----

    cdef void mark_left(self) noexcept:
        cdef group_t *c = &self.c.group
        fault_point("leave")
        while c != NULL:
            # SYNC left (meets: check_ranks in sync/wait.pyx, report_lost_peers in p2p/progress.pyx).
            store_release_u32(&c.outbox[c.rank].left, 1)
            c = c.next
        fault_point("left")
        wake_all(&self.c.group)     # a rank that sleeps for a counter of this one finds `left`
        drop_liveness(self.c.group.life[self.c.group.rank])
        fault_point("dropped")

    def close(self):
        """Leave. Idempotent. Peers that still need this rank get `PeerLostError`."""
        if self.is_closed:
            return
        if self.turn.is_taken and not self.is_inherited:
            if self.turn.holder == PyThread_get_thread_ident():
                raise RuntimeError(f"{self.name}: close() inside a call of the same thread")
            self.abort("closed while another thread was in a call")
            take_turn(&self.turn, self.turn_queue, self.name)
            self.leave()      # wakes the threads that wait for the turn; they raise
        if self.nvisitors and not self.is_inherited:
            self.abort("closed while another thread was in a call")
            while self.nvisitors:      # they look at the abort record at every tick of their sleep
                time.sleep(0.0005)
        dead = self.dead_pids() if isinstance(self.trouble, PeerLostError) and not self.is_inherited else []
        self.is_closed = True
        if self.team is not None:
            self.team.keep(1)
        if not self.is_inherited:
            self.mark_left()
        self.c.own = NULL
        for segment in self.segments:
            segment.close()
        self.segments = []
        if dead:      # they may have been creating groups or arrays with names that no living rank knows
            sweep_after(self.name.partition("/")[0], dead)

    def leave_at_exit(self):
        """At exit: close, after an abort if an uncaught exception ended the interpreter (engine/lifecycle.py)."""
        reason = exit_reason()
        if reason is not None and not self.is_closed and not self.is_broken:
            self.abort(reason)
        self.close()

    def disown(self):
        """In a forked child: this process is not the rank and has nothing to close (`shmring.engine.lifecycle`)."""
        self.is_inherited = True
