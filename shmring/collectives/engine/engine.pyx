"""The engine of one communicator in one process: one rank's part in its rounds, and how it leaves.

It admits one thread at a time to a call, and runs eager exchanges and compiled plans. What a call means is decided in
`shmring.collectives.calls`.

The memory of the ranks stays mapped until `Engine.close`, which any thread may call at any time. So a thread that
accesses it is in a call, which `close` waits for; or is counted in ``nvisitors``; or lets no other thread run between
its check of ``is_closed`` and its last access: no Python object is made there, as that may start a garbage collection,
in which any code may run. Without the GIL, the critical section of the engine does that
(``docs/maintainers/free-threading.md``).
"""

import copy
import hashlib

cimport cython
from libc.stdint cimport UINT32_MAX, UINT64_MAX
from libc.string cimport memcpy

from shmring.core.c.atomics cimport (load_acquire_u32, load_relaxed_u64, store_relaxed_u32, store_release_u32,
                                 store_release_u64)
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport (SHMRING_ABORTED, SHMRING_EAGER_NBYTES, SHMRING_LATE,
                                SHMRING_LATE_NBYTES, SHMRING_MISMATCH, SHMRING_NCHOICES,
                                shmring_abort, shmring_eager_line, shmring_header, shmring_liveness, shmring_outbox)
from shmring.core.arrays.array_view cimport array_t
from shmring.core.base.signals cimport check_signals
from shmring.collectives.engine.eager cimport advance_eager, start_eager
from shmring.collectives.engine.compiled_plan cimport STORES, call_learner_t, execute, open_execution, program_t
from shmring.collectives.engine.outbox cimport control_area, control_nbytes, eager_slots, first_slot
from shmring.collectives.engine.recording cimport (Trace, begin_call, caller, end_call, is_profiled, range_of, record_t,
                                       store_place)
from shmring.collectives.engine.rounds cimport count_call, find_disagreement
from shmring.collectives.engine.variants cimport choose_variant, dimensions_learned, next_plan, offer_of, stats_of
from shmring.core.memory.mapping cimport Mapping
from shmring.core.sync.abort cimport in_trouble, insist_on_report, report_trouble, wake_all
from shmring.core.sync.backoff cimport BRIEF_LOOKS, FRESH, be_patient, now_ns, patience_t
from shmring.core.sync.group cimport CONSUMED, EVERYONE, PUBLISHED, READY, TROUBLE, UNREADY, group_t
from shmring.core.sync.liveness cimport ALIVE, drop_liveness, liveness_state
from shmring.core.sync.long_waits cimport is_note_due, notes_t, write_note
from shmring.core.sync.wait_graph cimport awaited_rank, lacks
from shmring.core.sync.turn cimport (
    PyThreadState, drop_gil, give_shared_turn, give_turn, has_turn, is_shared, is_taken, retake_gil, share_turn,
    take_shared_turn, take_turn, try_turn,
)

from shmring.core.base.followed import follow
from shmring.core.base.lifecycle import Stage, exit_reason, hold_at_exit, note_ended_call, track
from shmring.core.base.pace import Pace
from shmring.core.base.text import spans
from shmring.collectives.engine.abort_errors import Record, cause_of, error_of
from shmring.collectives.engine.outbox import outbox_nbytes
from shmring.collectives.engine.kinds import explain
from shmring.errors import ClosedError, PeerLostError
from shmring.core.memory.sweep import sweep_after
from shmring.core.placement.cpus import usable_processors
from shmring.collectives.plan.limits import Limits

cdef enum:
    BRIEF_LOOKS_CROWDED = 2
    # Of ranks that outnumber the processors, before they yield. A collective needs all of them: the next one should run
    # at once. Two that send to each other get on without yields while both run, as long as they wait for each other.
    FEW_LOOKS = 8
    MORE_LOOKS = 64
    EXCHANGED = 4                # a setting of `stores`: ordinary ones, and all-reduces are exchanges
    MOST_PROGRAMS = 256          # a few KiB each; an application that calls with ever new sizes must not grow

cdef enum:      # what a rank is found to be
    PRESENT = 0
    HAS_LEFT = 1
    HAS_DIED = 2

cdef enum:      # the turns that `take_from_stores` has taken
    TOOK_TURN = 1
    TOOK_MESSAGE_TURN = 2

cdef const char *EAGER = b"eager"      # in timelines, as the algorithm


cdef object record_of(shmring_abort *r, int pid):
    cdef int j
    late, reason = (), ""
    if r.cause == SHMRING_LATE:
        late = tuple([j for j in range(8 * <int> sizeof(r.late)) if r.late[j >> 3] >> (j & 7) & 1])
    else:
        reason = r.reason[:sizeof(r.reason)].split(b"\0")[0].decode("utf-8", "replace")
    return Record(cause_of(r.cause), r.by, r.about, pid, r.round, r.mine, r.theirs, reason, late)


cdef inline bint meets(const array_t *a, const memory_t *memory) noexcept:
    return <size_t> a.data < memory.end and memory.start < <size_t> a.data + a.nbytes


# ---- one call --------------------------------------------------------------------------------------------------------

cdef inline int start(Engine e, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns,
                      record_t **record) noexcept nogil:
    """Begin a call without a long wait. READY, or UNREADY: call `advance`."""
    if t != NULL:
        record[0] = begin_call(timeline_of(e), &e.c, t.signature, t.nbytes, EAGER)
        return start_eager(&e.c, t)
    choose_variant(&e.c, &e.variants, program, x)
    record[0] = begin_call(timeline_of(e), &e.c, x.signature, x.passed_nbytes, x.program.algorithm)
    count_call(&e.c, x.passed_nbytes)
    open_execution(&e.c, x)
    fault_point("execute")
    if x.program.last != NULL:
        e.team.begin(x, timeout_ns)
    return UNREADY


cdef inline int advance(Engine e, eager_t *t, execution_t *x, patience_t *patience) noexcept nogil:
    """The rest of a call. Waits; call without the GIL, again while UNREADY."""
    if t != NULL:
        return advance_eager(&e.c, t, patience)
    if x.outcome == UNREADY:
        x.outcome = execute(&e.c, x, patience)
        if x.outcome == UNREADY:
            return UNREADY
    if x.program.last != NULL:
        if not e.team.await_helpers():
            return UNREADY
        x.outcome = max(x.outcome, e.team.outcome())
    if x.outcome == READY:
        if x.program.gathers_all:
            # All ranks are in this collective, hence have consumed all rounds before it, as in await_round.
            e.c.free_until = max(e.c.free_until, x.base + e.c.nslots)
        if x.is_timed:
            x.learner.inside_ns = now_ns() - x.learner.begun_ns - x.late_ns
    return x.outcome


cdef inline int make(Engine e, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) except -1:
    """Begin a call, and wait for its end."""
    cdef record_t *record
    if start(e, t, program, x, timeout_ns, &record) != READY:
        return e.complete(t, x, timeout_ns, record)
    end_call(&e.c, record, False)
    return 0


# Not cleared by the garbage collector, as __dealloc__ stores into the mapped memory. It could not clear `mappings`
# either: a tuple has nothing to clear.
@cython.no_gc_clear
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
    describe : callable, optional
        Makes a text for errors of what the ranks do, of copies of their headers and control areas, by rank
        (`shmring.collectives.observe.account.account_of_copies`).
    """

    def __cinit__(self, list segments not None, int rank, config, str name not None, describe=None):
        cdef int size = len(segments)
        cdef size_t nbytes = outbox_nbytes(config, size)
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank} is not in 0..size-1 for size={size}")
        self.mappings = tuple([segment.mapping for segment in segments])
        for mapping in self.mappings:
            if (<Mapping?> mapping).address == NULL or (<Mapping> mapping).nbytes < nbytes:
                raise ValueError(f"{mapping!r} does not hold an outbox of {nbytes} bytes")
        own = segments[rank].header.family
        self.family = [0 != own == segment.header.family for segment in segments]
        self.nonces = b"".join([segment.header.nonce for segment in segments])
        self.current_segments = segments
        self.config = config
        self.name = name
        self.describe = describe
        self.programs, self.retired = {}, []
        self.eager_limit = config.eager_limit(size)
        self.limits = Limits(nslots=config.nslots, slot_nbytes=config.slot_nbytes)
        self.set_variants(size)
        self.point_at_outboxes(rank, size)
        self.variants.learners = <call_learner_t *> self.heap.allocate(SHMRING_NCHOICES, sizeof(call_learner_t))
        self.spin_among(usable_processors())
        track(self, Stage.ENGINE)

    cdef int point_at_outboxes(self, int rank, int size) except -1:
        """Have ``c`` point to the mapped memory of all ranks."""
        cdef engine_t *c = &self.c
        cdef int j
        cdef char *base
        self.heap = Heap()
        c.group.rank = rank
        c.group.size = size
        c.group.first = &c.group
        c.group.outbox = <shmring_outbox **> self.heap.allocate(size, sizeof(void *))
        c.group.liveness = <shmring_liveness **> self.heap.allocate(size, sizeof(void *))
        c.group.seen[PUBLISHED] = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.group.seen[CONSUMED] = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.eager = <shmring_eager_line **> self.heap.allocate(size, sizeof(void *))
        c.slots = <char **> self.heap.allocate(size, sizeof(void *))
        c.agreed = <uint64_t *> self.heap.allocate(size, sizeof(uint64_t))
        c.sources = <const void **> self.heap.allocate(size, sizeof(void *))
        c.scratch = <char *> self.heap.allocate(size, SHMRING_EAGER_NBYTES)
        c.nslots = self.config.nslots
        c.nslots_bits = self.config.nslots.bit_length() - 1
        c.slot_nbytes = self.config.slot_nbytes
        c.ended = <uint64_t *> self.heap.allocate(c.nslots, sizeof(uint64_t))
        c.did = <uint64_t *> self.heap.allocate(c.nslots, sizeof(uint64_t))
        for j in range(size):
            base = (<Mapping> self.mappings[j]).address
            c.group.outbox[j] = control_area(base)
            c.group.liveness[j] = &(<shmring_header *> base).liveness
            c.eager[j] = eager_slots(base)
            c.slots[j] = first_slot(base, c.nslots)
        # Loops over ranks need no case for this rank: its own entry is always large enough.
        c.group.seen[PUBLISHED][rank] = c.group.seen[CONSUMED][rank] = UINT64_MAX
        c.group.record = &c.group.outbox[0].abort
        c.group.tick_ns = <int64_t> (self.config.internals.tick_ms * 1e6)
        c.free_until = c.nslots
        c.output_streaming_nbytes = UINT64_MAX
        c.own = c.group.outbox[rank]
        return 0

    cdef int set_variants(self, int size) except -1:
        """How calls begin, and what is learned of them."""
        cdef int stores = self.config.internals.stores
        self.variants.learns = dimensions_learned(self.config.internals)
        self.variants.stores = stores if 0 <= stores < EXCHANGED else 0
        self.variants.path = self.config.internals.direct == 0
        self.variants.ahead = 1
        self.variants.exchanges = stores == EXCHANGED or stores < 0
        return 0

    def __dealloc__(self):
        # Dropped without close(), e.g. by an exception in a constructor: peers see `left` set, then no liveness.
        if self.c.own != NULL and not self.is_closed and not self.is_inherited:
            self.mark_left()

    def spin_among(self, double processors):
        """Set how long this rank spins before it sleeps, given the processors that the ranks share."""
        cdef int size = self.c.group.size
        self.c.group.spin_ns = self.config.spin_ns(size, processors)
        cdef bint is_crowded = size > processors
        self.c.group.yields = 16 if is_crowded else 4
        self.c.group.looks = FEW_LOOKS if is_crowded else 0
        self.c.group.message_looks = (MORE_LOOKS if processors >= 2 else FEW_LOOKS) if is_crowded else 0
        self.c.brief_looks = BRIEF_LOOKS_CROWDED if is_crowded else BRIEF_LOOKS

    def apply_tuning(self, thresholds):
        """Apply what calibration has led to (`shmring.collectives.bootstrap.tuning`): before the first call, alike on
        all ranks."""
        self.thresholds = thresholds
        self.eager_limit = thresholds.eager_nbytes
        self.limits = thresholds.limits
        self.hierarchy = thresholds.hierarchy
        self.c.output_streaming_nbytes = thresholds.past_cache_nbytes
        if self.variants.learns >> STORES & 1:
            self.variants.stores = thresholds.stores      # to begin with
        if self.c.group.size > thresholds.processors:
            # Ranks take turns on a processor; one may be so many rounds ahead, so the time of one call says little.
            self.variants.ahead = self.c.nslots
        else:
            store_relaxed_u32(&self.c.own.barrier_ns, min(int(1e3 * thresholds.barrier_us), UINT32_MAX))

    # ---- turns: one thread at a time ----

    cdef int take_from_stores(self, const memory_t *ranges, int n) except -2:
        """Take the turns for a thread that replaces the pages of n ranges of memory, and then calls `give_back` with
        the result. BUSY, without any turn: a call of another thread may store into these ranges. Does not wait.

        A call of another thread on other arrays keeps its turn, and the caller keeps the GIL until the pages are
        replaced, so that no other call can begin.
        """
        cdef int taken = 0
        if self.is_inherited:
            return 0
        if try_turn(&self.turn):
            taken = TOOK_TURN
        elif not self.is_elsewhere(ranges, n):
            return self.busy(&self.turn)
        if not try_turn(&self.message_turn):
            self.give_back(taken)
            return self.busy(&self.message_turn)
        return taken | TOOK_MESSAGE_TURN

    cdef void give_back(self, int taken) noexcept:
        if taken & TOOK_MESSAGE_TURN:
            give_turn(&self.message_turn)
        if taken & TOOK_TURN:
            give_turn(&self.turn)

    cdef int busy(self, turn_t *turn) except -2:
        if has_turn(turn):
            raise RuntimeError(f"{self.name}: the memory cannot be shared or made private inside a call on it of the "
                               "same thread, as in a signal handler")
        return BUSY

    cdef bint is_elsewhere(self, const memory_t *ranges, int n) noexcept:
        """Whether the call under way has no array in these ranges; false if that is unknown, as of a thread without the
        GIL."""
        cdef call_t *call = self.under_way
        cdef int i
        if is_shared(&self.turn) or call == NULL:
            return False
        for i in range(n):
            if meets(&call.x, &ranges[i]) or meets(&call.out, &ranges[i]):
                return False
        return True

    # Of threads without the GIL, once the turns are shared (`share_turns`).

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

    def share_turns(self):
        """Let threads without the GIL take the turns, too (`shmring.capi`)."""
        self.check_open()
        share_turn(&self.turn)
        share_turn(&self.message_turn)

    cdef bint take_turns(self) noexcept:
        """Take both turns, if no thread is in a call."""
        if not try_turn(&self.turn):
            return False
        if try_turn(&self.message_turn):
            if not (self.nsleepers or load_acquire_u32(&self.nvisitors)):
                return True
            give_turn(&self.message_turn)
        give_turn(&self.turn)
        return False

    cdef void give_turns(self) noexcept:
        give_turn(&self.message_turn)
        give_turn(&self.turn)

    # ---- calls: of an eager exchange ``t``, or else of ``program`` with ``x``; the caller has entered ----

    cdef int run(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) except -1:
        """Make a call. Signals are handled in its waits; what a handler raises there aborts it on all ranks. If another
        error is raised before it has begun, it changes nothing."""
        if is_profiled():
            return self.run_in_range(t, program, x, timeout_ns)
        return make(self, t, program, x, timeout_ns)

    cdef int run_in_range(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) except -1:
        """Make a call in a range of the profiler."""
        cdef uint64_t number = self.c.own.calls + 1
        if t != NULL:
            shown = range_of(t.signature, t.nbytes, number, EAGER)
        else:
            shown = range_of(x.signature, x.passed_nbytes, number,
                             next_plan(&self.c, &self.variants, program, x).algorithm)
        shown.__enter__()
        try:
            make(self, t, program, x, timeout_ns)
        finally:
            shown.__exit__(None, None, None)
        return 0

    cdef int complete(self, eager_t *t, execution_t *x, int64_t timeout_ns, record_t *record) except -1:
        """Wait for the end of a call that has started; signals are handled meanwhile."""
        cdef patience_t patience
        cdef notes_t notes = notes_t(0, 0)
        cdef int outcome = UNREADY
        be_patient(&patience, timeout_ns)
        try:
            while True:
                with nogil:
                    outcome = advance(self, t, x, &patience)
                if outcome == READY:
                    return 0
                if outcome == TROUBLE:
                    self.break_down()
                self.look_up(x, &patience, &notes)
        except BaseException:
            # The helpers use the caller's arrays. They end as well: every wait checks the abort record.
            if x != NULL and x.program.last != NULL:
                with nogil:
                    while not self.team.await_helpers():
                        pass
            raise
        finally:
            end_call(&self.c, record, outcome != READY)

    cdef int run_free(self, eager_t *t, program_t *program, execution_t *x, int64_t timeout_ns) noexcept nogil:
        """Make a call by a thread that may or may not have the GIL: signals are not handled. READY or TROUBLE."""
        cdef record_t *record
        cdef PyThreadState *state
        cdef patience_t patience
        cdef notes_t notes = notes_t(0, 0)
        cdef int64_t began_ns
        cdef int outcome = start(self, t, program, x, timeout_ns, &record)
        if outcome == UNREADY:
            state = drop_gil()
            be_patient(&patience, timeout_ns)
            while outcome == UNREADY:
                outcome = advance(self, t, x, &patience)
                began_ns = self.wait_began(x, &patience)
                if outcome == UNREADY and is_note_due(&notes, began_ns):
                    self.note_wait_free(began_ns)
            retake_gil(state)
        end_call(&self.c, record, outcome != READY)
        return outcome

    cdef int look_up(self, execution_t *x, const patience_t *patience, notes_t *notes) except -1:
        """In a wait: let Python handle signals, and write a note of the wait if it is long. What either raises aborts
        the call on all ranks."""
        cdef int64_t began_ns
        try:
            check_signals()
            if self.c.own.place.number != self.c.own.calls:
                store_place(&self.c.own.place, self.c.own.calls, caller())
            began_ns = self.wait_began(x, patience)
            if is_note_due(notes, began_ns):
                self.note_wait(began_ns)
        except BaseException as exception:
            self.abort(f"{type(exception).__name__} while waiting")
            raise
        return 0

    cdef int64_t wait_began(self, execution_t *x, const patience_t *patience) noexcept nogil:
        """When the wait of this thread began, or else that for its helpers; now if neither has."""
        if patience.stage != FRESH:
            return patience.began_ns
        if x != NULL and x.program.last != NULL and self.team.patience.stage != FRESH:
            return self.team.patience.began_ns
        return now_ns()

    cdef int note_wait(self, int64_t began_ns) except -1:
        """Write a note of the wait of the call under way."""
        cdef group_t *g = &self.c.group
        cdef uint64_t word = load_relaxed_u64(&self.c.own.last_wait)
        cdef int j, awaited = awaited_rank(word)
        late = [j for j in range(g.size) if j != g.rank and awaited in (EVERYONE, j) and lacks(g, word, j)]
        others = f"rank{'' if len(late) == 1 else 's'} {spans(late, ', ')}" if late else "its helper threads"
        return write_note(f"rank {g.rank} of {self.name} waits for {others} in {explain(self.c.own.current)}", began_ns)

    cdef void note_wait_free(self, int64_t began_ns) noexcept nogil:
        with gil:
            self.note_wait(began_ns)

    @cython.critical_section
    def record_in(self, Trace trace):
        """Record further calls there; None: nowhere. Does not block.

        Threads without the GIL may still record in the trace before it, so that is kept until no thread is in a call.
        """
        self.retired.append(self.trace)
        self.trace = trace
        # SYNC timeline (meets: timeline_of in collectives/engine/engine.pxd)
        store_release_u64(&self.timeline, 0 if trace is None else <uint64_t> &trace.timeline)
        if self.take_turns():
            self.retired.clear()
            self.give_turns()

    @cython.critical_section
    def adopt_progress(self, made):
        """The progress object of this engine: ``made``, unless there is one already."""
        self.progress = self.progress or made
        return self.progress

    @cython.critical_section
    cdef object keep_program(self, tuple key, Program program):
        program.plan_trials(self.c.nslots)
        program.code.offer = offer_of(&self.variants, program)
        if len(self.programs) >= MOST_PROGRAMS:
            del self.programs[self.least_used()]
        program.code.used_at = self.c.next_round + 1
        return self.programs.setdefault(key, program)      # another thread may have made it meanwhile

    cdef tuple least_used(self):
        """The key of the program that was used least lately."""
        cdef uint64_t least = UINT64_MAX
        cdef Program program
        found = None
        for key, program in self.programs.items():
            if program.code.used_at < least:
                found, least = key, program.code.used_at
        return found

    def stats(self):
        """The choices made here, and their reasons; see `Communicator.stats`."""
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
            "zero_copy_calls": 0, "shared_nbytes": 0,
            **({} if self.sharing is None else self.sharing.stats()),
            "programs": [stats_of(&self.variants, program, key[1], nthreads)
                         for key, program in list(self.programs.items())
                         if program.plan.size > 1 and not program.plan.zero_copy],
            **self.thresholds.report(self.c.group.size),
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

    # ---- errors ----

    cdef object diagnose(self):  # no-cython-lint
        """The error this process raises because of the abort record."""
        cdef shmring_abort r
        cdef int j, pid, size = self.c.group.size
        count_visitor(self, 1)
        with nogil:
            insist_on_report(&self.c.group)
            r = self.c.group.record[0]
            # Another process wrote it: numbers that are no ranks are not used as indices.
            r.by = r.by if 0 <= r.by < size else 0
            r.about = r.about if 0 <= r.about < size else r.by
            pid = self.c.group.liveness[r.about].pid
        count_visitor(self, -1)
        record = record_of(&r, pid)
        if r.cause == SHMRING_LATE:
            late = tuple([j for j in record.late if j < size]) or (r.about,)
            record = record._replace(late=late, account=self.account())
        if record.cause in ("lost", "left") or record.cause == "aborted" and record.by != self.c.group.rank:
            self.culprit_pid = pid
        return error_of(record, self.c.group.rank, self.name)

    cdef int break_down(self) except -1:
        """Raise the error of the abort record, now and in every further call."""
        self.note_trouble()
        if self.culprit_pid:
            follow(self.trouble, self.culprit_pid)
        raise copy.copy(self.trouble)

    @cython.critical_section
    cdef int note_trouble(self) except -1:
        """Make every further call raise the error of the abort record. Of several threads the first one decides."""
        if self.trouble is None:
            trouble = self.diagnose()      # lets other threads run
            if self.trouble is None:
                self.trouble = trouble
                store_release_u32(&self.has_trouble, 1)      # SYNC error of a communicator (meets: is_troubled)
        return 0

    cpdef int disagree(self, int about, uint64_t signature, str reason) except -1:
        """Raise a mismatch that all ranks find alike, in data that they exchanged."""
        text = reason.encode("utf-8", "replace")
        report_trouble(&self.c.group, SHMRING_MISMATCH, about, self.c.next_round, signature, signature, text)
        self.break_down()

    @cython.critical_section
    def abort(self, str reason not None):
        """Break this communicator on all ranks at once; see `Communicator.abort`."""
        text = reason.encode("utf-8", "replace")      # report_trouble cuts it to the record's room
        self.check_open()
        self.report_abort(text)

    cdef int report_abort(self, bytes reason) except -1:
        """`abort`, where the memory is known to be mapped."""
        report_trouble(&self.c.group, SHMRING_ABORTED, self.c.group.rank, self.c.next_round, self.c.own.current, 0,
                       reason)
        return self.note_trouble()

    def refuse(self):
        """Raise why there can be no call."""
        if self.is_inherited:
            raise ClosedError(self.inherited_text())
        if self.is_closed:
            hold_at_exit()
            raise ClosedError(self.closed_text())
        if is_troubled(self):
            hold_at_exit()
            raise copy.copy(self.trouble)

    cdef str inherited_text(self):
        return (f"{self.name}: belongs to the parent process; this one inherited it through fork and must make its "
                "own")

    cdef str closed_text(self):
        return f"{self.name}: is closed"

    cdef int check_open(self) except -1:
        """Raise if the memory must not be accessed: closed, or inherited."""
        if self.is_closed or self.is_inherited:
            self.refuse()
        return 0

    @cython.critical_section
    def check_usable(self):
        """Raise what a call would raise here and now: closed, inherited, or broken."""
        if not self.is_closed and not self.is_inherited and self.trouble is None and in_trouble(&self.c.group):
            self.break_down()
        self.refuse()

    @property
    @cython.critical_section
    def is_broken(self):
        """Whether a call failed here, or the abort record is written."""
        return self.trouble is not None or (not self.is_closed and in_trouble(&self.c.group))

    # ---- the other ranks ----

    @property
    def rank(self):
        """The number of this rank."""
        return self.c.group.rank

    def facts(self):
        """The identity of this communicator, for its timelines (collectives/engine/recording.pyx)."""
        group = hashlib.blake2b(self.nonces, digest_size=8).hexdigest()
        return {"name": self.name, "group": group, "rank": self.c.group.rank, "size": self.c.group.size}

    @property
    def nonce(self):
        """A text that the ranks of this communicator share and no other communicator has."""
        return self.nonces[:16].hex()

    cdef void look_at_ranks(self, char *states) noexcept:
        """Store by rank: PRESENT, HAS_LEFT or HAS_DIED."""
        cdef group_t *g = &self.c.group
        cdef int j
        for j in range(g.size):
            # SYNC left (meets: mark_left). The counters of a rank that has left are final.
            states[j] = (HAS_LEFT if load_acquire_u32(&g.outbox[j].left)
                         else PRESENT if liveness_state(g.liveness[j]) == ALIVE else HAS_DIED)

    @cython.critical_section
    def rank_states(self):
        """By rank: 0, or 1 if it has closed, or 2 if it died. Works on a broken communicator, too."""
        states = bytearray(self.c.group.size)      # made before the check
        self.check_open()
        self.look_at_ranks(states)
        return states

    @cython.critical_section
    def account(self):
        """The call and the wait of each rank, as text; empty if this process must not access the memory."""
        cdef int j, nlooks = min(self.c.group.size, 8 * <int> SHMRING_LATE_NBYTES)
        cdef Py_ssize_t nbytes = control_nbytes()
        copies = bytearray(nlooks * nbytes)      # made before the check
        cdef char *at = copies
        if self.is_closed or self.is_inherited or self.describe is None:
            return ""
        for j in range(nlooks):
            memcpy(at + j * nbytes, (<Mapping> self.mappings[j]).address, nbytes)
        return self.describe([bytes(copies[j * nbytes:(j + 1) * nbytes]) for j in range(nlooks)])

    @property
    def segments(self):
        """The outboxes, by rank; none once closed."""
        with cython.critical_section(self):      # another thread may close
            return self.current_segments

    def left_ranks(self):
        """The ranks that have closed."""
        return [j for j, state in enumerate(self.rank_states()) if state == HAS_LEFT]

    def gone_ranks(self):
        """The ranks that are dead or have closed."""
        return [j for j, state in enumerate(self.rank_states()) if state != PRESENT]

    def dead_pids(self):
        """The process ids of the ranks that died without having closed."""
        segments = self.segments
        return [segments[j].header.pid for j, state in enumerate(self.rank_states()) if state == HAS_DIED]

    # ---- leaving ----

    cdef void mark_left(self) noexcept:
        cdef group_t *c = &self.c.group
        fault_point("leave")
        while c != NULL:
            # SYNC left (meets: look_at_ranks, check_ranks in core/sync/wait.pyx, report_lost_peers in
            # collectives/p2p/progress.pyx).
            store_release_u32(&c.outbox[c.rank].left, 1)
            c = c.next
        fault_point("left")
        wake_all(&self.c.group)     # a rank that sleeps for a counter of this one finds `left`
        drop_liveness(self.c.group.liveness[self.c.group.rank])
        fault_point("dropped")

    @cython.critical_section
    def close(self):
        """Leave. Idempotent. Peers that still need this rank get `PeerLostError`.

        Raises `MismatchError`, after it has left, if another rank made another call where this one made its last ones.
        """
        cdef Team team
        cdef bint has_turns = False
        pace = Pace()
        while not (self.is_closed or self.is_inherited or has_turns):
            has_turns = self.take_turns()
            if not (has_turns or self.end_collective()):
                pace.pause()      # threads in calls of messages, which the abort has woken, or that look at the memory
        if self.is_closed:
            return
        self.is_closed = True      # no other thread has run since the loop has found no thread in a call
        if has_turns:
            self.give_turns()
        segments, self.current_segments = self.current_segments, []
        mappings, self.mappings = self.mappings, ()
        dead, error, team = [], None, self.team
        try:
            if not self.is_inherited:
                if isinstance(self.trouble, PeerLostError):
                    states = bytearray(self.c.group.size)
                    self.look_at_ranks(states)
                    dead = [segments[j].header.pid for j, state in enumerate(states) if state == HAS_DIED]
                error = self.last_disagreement()
        finally:
            if team is not None:
                team.keep(1)
            if not self.is_inherited:
                self.mark_left()
            self.c.own = NULL
            for segment in segments:
                segment.close()
        del mappings      # what an exception has left open is unmapped with the last reference
        if dead:      # they may have been creating groups or arrays with names that no living rank knows
            sweep_after(self.name.partition("/")[0], dead)
        if error is not None:
            raise error

    cdef bint end_collective(self) except -1:
        """Abort, and wait until the thread in a collective has left it. False: none is in one."""
        if has_turn(&self.turn) or has_turn(&self.message_turn):
            raise RuntimeError(f"{self.name}: close() inside a call of the same thread")
        if not is_troubled(self):
            self.report_abort(b"closed while another thread was in a call")
        if is_taken(&self.turn):
            take_turn(&self.turn, self.name)
            give_turn(&self.turn)      # to the next waiting thread, which raises
            return True
        return False

    cdef object last_disagreement(self):
        """The error if two roots of the last calls, which wait for no other rank, have not found one another."""
        if is_troubled(self) or in_trouble(&self.c.group) or not find_disagreement(&self.c, self.c.next_round):
            return None
        return self.diagnose()

    def leave_at_exit(self):
        """At exit: close, after an abort if an uncaught exception ended the interpreter (core/base/lifecycle.py)."""
        had_trouble = is_troubled(self)
        reason = exit_reason()
        if reason is not None and not (self.is_closed or self.is_inherited or self.is_broken):
            self.abort(reason)
        self.close()
        if is_troubled(self) and not had_trouble:
            note_ended_call()

    def disown(self):
        """In a forked child: this process is not the rank and has nothing to close (`shmring.core.base.lifecycle`)."""
        self.is_inherited = True
