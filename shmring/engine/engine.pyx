"""The engine of one communicator in one process.

It admits one thread at a time to a call, and runs eager exchanges and compiled plans. What a call means is decided in
`shmring.collective`; what ends a communicator, and leaving it, is in `shmring.engine.membership`.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport UINT32_MAX, UINT64_MAX

from shmring._c.atomics cimport load_relaxed_u64, store_relaxed_u32, store_release_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport (SHMRING_EAGER_NBYTES, SHMRING_EXCHANGE, SHMRING_NSTORES, SHMRING_NWAYS,
                                shmring_eager_line)
from shmring.arrays.store_tuning cimport (ON_TRIAL, best_stores, next_call, note, publish_costs, stores_of, sum_costs,
                                          tries_for)
from shmring.engine.eager cimport advance_eager, start_eager
from shmring.engine.executor cimport execute
from shmring.engine.membership cimport Membership, is_troubled
from shmring.engine.outbox cimport eager_slots, first_slot
from shmring.engine.profiled cimport is_profiled, range_of
from shmring.engine.place cimport caller, store_place
from shmring.engine.rounds cimport count_call
from shmring.engine.trace cimport Trace, begin_call, end_call, record_t
from shmring.sync.turn cimport (PyThreadState, drop_gil, give_shared_turn, give_turn, has_turn, retake_gil,
                                take_shared_turn, take_turn, try_turn)
from shmring.memory.mapping cimport Mapping
from shmring.sync.backoff cimport BRIEF_LOOKS, be_patient, now_ns, patience_t
from shmring.sync.group cimport CONSUMED, PUBLISHED, READY, TROUBLE, UNREADY

from shmring.engine.lifecycle import Stage, track
from shmring.placement.cpus import usable_processors
from shmring.plan.limits import Limits

cdef enum:
    BRIEF_LOOKS_CROWDED = 2
    TELLING_NBYTES = 262144      # costs of smaller calls predict little: short bursts fit in store buffers
    MOST_PROGRAMS = 256          # a few KiB each; an application that calls with ever new sizes must not grow

cdef const char *EAGER = b"eager"      # in timelines, as the algorithm


@cython.no_gc_clear
cdef class Engine(Membership):
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
        cdef int size = self.c.group.size, j
        cdef char *base
        cdef engine_t *c = &self.c
        self.eager_limit = config.eager_limit(size)
        self.limits = Limits(nslots=config.nslots, slot_nbytes=config.slot_nbytes)
        self.programs, self.retired = {}, []
        c.group.seen[PUBLISHED] = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.group.seen[CONSUMED] = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.eager = <shmring_eager_line **> self.heap.allocate(size, sizeof(void *))
        c.slots = <char **> self.heap.allocate(size, sizeof(void *))
        c.agreed = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.sources = <const void **> self.heap.allocate(size, sizeof(void *))
        c.scratch = <char *> self.heap.allocate(size, SHMRING_EAGER_NBYTES)
        c.ended = <uint64_t *> self.heap.allocate(config.nslots, sizeof(uint64_t))
        c.did = <uint64_t *> self.heap.allocate(config.nslots, sizeof(uint64_t))
        c.nslots = config.nslots
        c.nslots_bits = config.nslots.bit_length() - 1
        c.slot_nbytes = config.slot_nbytes
        for j in range(size):
            base = (<Mapping> self.mappings[j]).address
            c.eager[j] = eager_slots(base)
            c.slots[j] = first_slot(base, c.nslots)
        # Loops over ranks need no case for this rank: its own entry is always large enough.
        c.group.seen[PUBLISHED][rank] = c.group.seen[CONSUMED][rank] = UINT64_MAX
        c.free_until = c.nslots
        c.group.tick_ns = <int64_t> (config.tick_ms * 1e6)
        self.spin_among(usable_processors())
        self.learns_stores = config.stores < 0
        c.outbox_stores = max(config.stores, 0)
        self.exchanges = size == 2      # more ranks store more copies of each result
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
        self.c.output_streaming_nbytes = thresholds.past_cache_nbytes
        if self.c.group.size <= thresholds.processors:
            store_relaxed_u32(&self.c.own.barrier_ns, min(int(1e3 * thresholds.barrier_us), UINT32_MAX))

    # ---- turns: one thread at a time ----

    cdef int enter(self) except -1:
        """Begin a call: wait for the asynchronous work submitted before it, raise if the communicator is unusable, and
        take the turn."""
        if self.has_backlog:
            self.progress.drain()
        if self.is_closed or is_troubled(self) or self.is_inherited:
            self.refuse()
        if take_turn(&self.turn, self.turn_queue, self.name) and (self.is_closed or is_troubled(self)):
            self.leave()      # so that the next waiting thread raises, too
            self.refuse()
        return 0

    cdef void leave(self) noexcept:
        give_turn(&self.turn, self.turn_queue)

    def alone(self, function, bint waits=True):
        """Call ``function`` while no other thread is in a collective call, after the work that was submitted before.

        Inside a call of this thread, it is called at once. Without ``waits`` it is not called if it had to wait for
        another thread. Returns whether it was called. Works on a broken or closed communicator, too.
        """
        if has_turn(&self.turn):
            function()
            return True
        if waits:
            if self.has_backlog:
                self.progress.drain()
            take_turn(&self.turn, self.turn_queue, self.name)
        elif not try_turn(&self.turn):
            return False
        try:
            function()
        finally:
            self.leave()
        return True

    # ---- calls ----

    cdef int exchange_eager(self, eager_t *t, int64_t timeout_ns) except -1:
        """Run an eager exchange. The caller has entered."""
        if timeline_of(self) != NULL or is_profiled():
            return self.observed(t, None, NULL, timeout_ns)
        if start_eager(&self.c, t) == READY:
            return 0
        return self.advance(t, None, NULL, timeout_ns)

    cdef int execute(self, Program program, execution_t *x, int64_t timeout_ns) except -1:  # no-cython-lint
        """Execute a program. The caller has entered; ``x`` holds the buffers and the signature."""
        if timeline_of(self) != NULL or is_profiled():
            return self.observed(NULL, program, x, timeout_ns)
        return self.execute_alone(program, x, timeout_ns)

    cdef int observed(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) except -1:
        """The one or the other, in the timeline, in a range of a profiler, or both."""
        cdef uint64_t signature = t.signature if t != NULL else x.signature
        cdef uint64_t nbytes = t.nbytes if t != NULL else x.passed_nbytes
        cdef const char *algorithm = EAGER if t != NULL else program.algorithm
        cdef record_t *record
        cdef bint failed = True
        shown = range_of(signature, nbytes, self.c.own.calls + 1, algorithm) if is_profiled() else None
        if shown is not None:
            shown.__enter__()
        record = begin_call(timeline_of(self), &self.c, signature, nbytes, algorithm)
        try:
            if t == NULL:
                self.execute_alone(program, x, timeout_ns)
            elif start_eager(&self.c, t) != READY:
                self.advance(t, None, NULL, timeout_ns)
            failed = False
        finally:
            end_call(&self.c, record, failed)
            if shown is not None:
                shown.__exit__(None, None, None)
        return 0

    @cython.critical_section
    def record_in(self, Trace trace):
        """Record further calls there; None: nowhere. Does not block.

        Threads without the GIL may still record in the trace before it, so that is kept until no thread is in a call.
        """
        self.retired.append(self.trace)
        self.trace = trace
        # SYNC timeline (meets: timeline_of in engine/engine.pxd)
        store_release_u64(&self.timeline, 0 if trace is None else <uint64_t> &trace.timeline)
        if self.take_turns():
            self.retired.clear()
            self.give_turns()

    cdef int execute_alone(self, Program program, execution_t *x, int64_t timeout_ns) except -1:
        """Execute a program that is not recorded."""
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
            while not self.await_helpers():
                self.handle_signals(x.signature)
        finally:
            # The helpers use the caller's arrays. After an error they end as well: every wait checks the abort record.
            while not self.await_helpers():
                pass
        if self.team.outcome() != READY:
            self.break_down()
        self.end_execution(program, x)
        return 0

    cdef bint await_helpers(self) noexcept:
        cdef bint done
        with nogil:
            done = self.team.await_helpers()
        return done

    cdef void begin_execution(self, Program program, execution_t *x) noexcept nogil:
        cdef int way = self.c.outbox_stores
        x.base = self.c.next_round
        x.places, x.place_nbytes = program.code.places, program.code.place_nbytes
        x.loop = x.step = 0
        x.iteration = 0
        x.exchanges = x.on_trial = False
        x.busy_ns = x.met_ns = 0
        if self.learns_stores and program.learns:
            if sum_costs(&program.stores, self.c.group.outbox, self.c.group.size) and x.nbytes >= TELLING_NBYTES:
                # For the calls that do not learn by themselves, and those of sizes that are new.
                self.c.outbox_stores = best_stores(&program.stores)
                if program.exchange is not None:
                    self.exchanges = program.stores.way == SHMRING_EXCHANGE
            x.on_trial = next_call(&program.stores, &way) == ON_TRIAL
        x.wants_exchange = way == SHMRING_EXCHANGE and program.code.exchange != NULL
        x.outbox_stores = stores_of(way)
        count_call(&self.c, x.passed_nbytes)
        store_release_u64(&self.c.own.current, x.signature)      # SYNC current (meets: is_elsewhere in sync/wait.pyx)
        fault_point("execute")

    cdef void end_execution(self, Program program, execution_t *x) noexcept nogil:
        if program.gathers_all:
            # All ranks are in this collective, hence have consumed all rounds before it, as in await_round.
            self.c.free_until = max(self.c.free_until, x.base + self.c.nslots)
        if x.met_ns:
            x.busy_ns += now_ns() - x.met_ns
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
            if self.c.own.place.number != self.c.own.calls:
                store_place(&self.c.own.place, self.c.own.calls, caller())
        except BaseException as exception:
            self.abort(f"{type(exception).__name__} while waiting")
            raise
        return 0

    # ---- calls of threads without the GIL ----

    cdef bint is_usable(self) noexcept nogil:
        return not (self.is_closed or self.is_inherited or is_troubled(self))

    cdef bint enter_free(self) noexcept nogil:
        """As `enter`, after the backlog. False, without the turn: the communicator is unusable, or this thread has the
        turn already."""
        if self.is_inherited or not take_shared_turn(&self.turn):
            return False
        if not self.is_usable():
            give_shared_turn(&self.turn)
            return False
        return True

    cdef void leave_free(self) noexcept nogil:
        give_shared_turn(&self.turn)

    cdef int exchange_free(self, eager_t *t, int64_t timeout_ns) noexcept nogil:
        """As `exchange_eager`, but signals are not handled. READY or TROUBLE."""
        cdef record_t *record = begin_call(timeline_of(self), &self.c, t.signature, t.nbytes, EAGER)
        cdef int outcome = start_eager(&self.c, t)
        if outcome != READY:
            outcome = self.advance_free(t, None, NULL, timeout_ns)
        end_call(&self.c, record, outcome != READY)
        return outcome

    cdef int execute_free(self, Program program, execution_t *x, int64_t timeout_ns) noexcept nogil:
        """As `execute`, but signals are not handled. READY or TROUBLE."""
        cdef record_t *record = begin_call(timeline_of(self), &self.c, x.signature, x.passed_nbytes, program.algorithm)
        cdef int outcome
        self.begin_execution(program, x)
        if program.last is None:
            outcome = self.advance_free(NULL, program, x, timeout_ns)
        else:
            self.team.begin(program, x, timeout_ns)
            outcome = self.advance_free(NULL, program, x, timeout_ns)
            while not self.team.await_helpers():
                pass
            outcome = max(outcome, self.team.outcome())
        if outcome == READY:
            self.end_execution(program, x)
        end_call(&self.c, record, outcome != READY)
        return outcome

    cdef int advance_free(self, eager_t *t, Program program, execution_t *x, int64_t timeout_ns) noexcept nogil:
        cdef patience_t patience
        cdef PyThreadState *state = drop_gil()
        cdef int outcome = UNREADY
        be_patient(&patience, timeout_ns)
        while outcome == UNREADY:
            if t != NULL:
                outcome = advance_eager(&self.c, t, &patience)
            else:
                outcome = execute(&self.c, &program.code, x, &patience)
        retake_gil(state)
        return outcome

    @cython.critical_section
    def adopt_progress(self, made):
        """The progress object of this engine: ``made``, unless there is one already."""
        self.progress = self.progress or made
        return self.progress

    @cython.critical_section
    cdef object remember(self, tuple key, Program program):
        cdef Program shorter = program if program.exchange is None else program.exchange
        program.stores.tries = tries_for(shorter.code.rounds, self.c.nslots * program.code.places)
        program.stores.nways = SHMRING_NSTORES if program.exchange is None else SHMRING_NWAYS
        # Until its own trials decide.
        program.stores.way = SHMRING_EXCHANGE if self.exchanges and shorter is not program else self.c.outbox_stores
        if len(self.programs) >= MOST_PROGRAMS:
            del self.programs[next(iter(self.programs))]
        return self.programs.setdefault(key, program)      # another thread may have made it meanwhile

    def stats(self):
        """What was chosen here, and why; see `Communicator.stats`."""
        cdef Program program
        cdef int nthreads = 1 if self.team is None else self.team.nthreads()
        return {
            **self.totals(),
            "rounds": self.rounds,
            "eager_nbytes": self.eager_limit,
            "slot_nbytes": self.c.slot_nbytes,
            "nslots": self.c.nslots,
            "spin_us": self.c.group.spin_ns / 1e3,
            "huge_nbytes": [segment.mapping.huge_nbytes for segment in self.segments],
            "threads": nthreads,
            "split_nbytes": None if self.team is None else self.team.split_nbytes,
            "split_calls": 0 if self.team is None else self.team.ncalls,
            "zero_copy_calls": 0, "shared_nbytes": 0, "shared_calls": [],
            **({} if self.sharing is None else self.sharing.stats()),
            "programs": [program.stats(key[1], nthreads, self.learns_stores, self.c.outbox_stores)
                         for key, program in list(self.programs.items()) if program.plan.size > 1],
            **self.thresholds.report(),
        }

    @cython.critical_section
    def totals(self):
        """Calls, bytes and time waited so far; None once closed."""
        if self.c.own == NULL:
            return dict.fromkeys(("calls", "bytes", "waited_s"))
        return {"calls": load_relaxed_u64(&self.c.own.calls), "bytes": load_relaxed_u64(&self.c.own.nbytes),
                "waited_s": load_relaxed_u64(&self.c.own.waited_ns) * 1e-9}

    @property
    def rounds(self):
        """How many rounds of collectives there have been."""
        return load_relaxed_u64(&self.c.next_round)
