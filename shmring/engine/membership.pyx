"""One rank's membership in a communicator: the memory of all ranks, the error that ends it, leaving.

The memory stays mapped until `Membership.close`, which any thread may call at any time. So a thread that accesses it
is in a call, which `close` waits for; or is counted in ``nvisitors``; or lets no other thread run between its check of
``is_closed`` and its last access: no Python object is made there, as that may start a garbage collection, in which
any code may run. Without the GIL, the critical section of this object does that (``docs/free-threading.md``).
"""

import copy
import hashlib
import time
from queue import SimpleQueue

cimport cython
from libc.string cimport memcpy

from shmring._c.atomics cimport load_acquire_u32, store_release_u32
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport (SHMRING_ABORTED, SHMRING_LATE, SHMRING_LATE_NBYTES, SHMRING_MISMATCH, shmring_abort,
                                shmring_header, shmring_liveness, shmring_outbox)
from shmring.engine.outbox cimport control_area
from shmring.engine.rounds cimport find_disagreement, mix_history
from shmring.sync.turn cimport give_turn, has_turn, is_taken, share_turn, take_turn, try_turn
from shmring.memory.mapping cimport Mapping
from shmring.sync.abort cimport in_trouble, insist_on_report, report_trouble, wake_all
from shmring.sync.group cimport group_t
from shmring.sync.liveness cimport ALIVE, drop_liveness, liveness_state

from shmring.engine.abort_errors import Record, cause_of, diagnose
from shmring.engine.account import account
from shmring.engine.inspect import LOOK_NBYTES, look
from shmring.engine.lifecycle import exit_reason
from shmring.engine.outbox import outbox_nbytes
from shmring.errors import ClosedError, PeerLostError
from shmring.memory.sweep import sweep_after

cdef enum:      # what a rank is found to be
    PRESENT = 0
    HAS_LEFT = 1
    HAS_DIED = 2

cdef int COPY_NBYTES = LOOK_NBYTES

# Not cleared by the garbage collector, as __dealloc__ stores into the mapped memory. It could not clear `mappings`
# either: a tuple has nothing to clear.
@cython.no_gc_clear
cdef class Membership:
    """The base of `shmring.engine.engine.Engine`, with its arguments."""

    def __cinit__(self, list segments not None, int rank, config, str name not None, *_args):
        cdef int size = len(segments), j
        cdef size_t nbytes = outbox_nbytes(config, size)
        cdef char *base
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank} is not in 0..size-1 for size={size}")
        self.mappings = tuple([segment.mapping for segment in segments])
        for mapping in self.mappings:
            if (<Mapping?> mapping).address == NULL or (<Mapping> mapping).nbytes < nbytes:
                raise ValueError(f"{mapping!r} does not hold an outbox of {nbytes} bytes")
        self.nonces = b"".join([segment.header.nonce for segment in segments])
        self.current_segments = segments
        self.config = config
        self.name = name
        self.turn_queue = SimpleQueue()
        self.message_turn_queue = SimpleQueue()
        self.heap = Heap()
        self.c.group.rank = rank
        self.c.group.size = size
        self.c.group.first = &self.c.group
        self.c.group.outbox = <shmring_outbox **> self.heap.allocate(size, sizeof(void *))
        self.c.group.liveness = <shmring_liveness **> self.heap.allocate(size, sizeof(void *))
        for j in range(size):
            base = (<Mapping> self.mappings[j]).address
            self.c.group.outbox[j] = control_area(base)
            self.c.group.liveness[j] = &(<shmring_header *> base).liveness
        self.c.group.record = &self.c.group.outbox[0].abort
        self.c.own = self.c.group.outbox[rank]

    def __dealloc__(self):
        # Dropped without close(), e.g. by an exception in a constructor: peers see `left` set, then no liveness.
        if self.c.own != NULL and not self.is_closed and not self.is_inherited:
            self.mark_left()

    # ---- errors ----

    cdef object diagnose(self):  # no-cython-lint
        """The error this process raises because of the abort record."""
        cdef shmring_abort r
        cdef int j, by, about, size = self.c.group.size, pid
        count_visitor(self, 1)
        with nogil:
            insist_on_report(&self.c.group)
            r = self.c.group.record[0]
            # Another process wrote it: numbers that are no ranks are not used as indices.
            by = r.by if 0 <= r.by < size else 0
            about = r.about if 0 <= r.about < size else by
            pid = self.c.group.liveness[about].pid
        count_visitor(self, -1)
        late, accounted = (), ""
        if r.cause == SHMRING_LATE:
            late = [j for j in range(min(size, 8 * sizeof(r.late))) if r.late[j >> 3] >> (j & 7) & 1] or [about]
            accounted = self.account()
        return diagnose(
            Record(cause_of(r.cause), by, about, pid, r.round, r.mine, r.theirs,
                   r.reason[:sizeof(r.reason)].split(b"\0")[0].decode("utf-8", "replace"), tuple(late),
                   accounted),
            self.c.group.rank, self.name)

    cdef int break_down(self) except -1:
        """Raise the error of the abort record, now and in every further call."""
        self.note_trouble()
        raise copy.copy(self.trouble)

    @cython.critical_section
    cdef int note_trouble(self) except -1:
        """Have every further call raise the error of the abort record. Of several threads the first one decides."""
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
        """The same, where the memory is known to be mapped."""
        report_trouble(&self.c.group, SHMRING_ABORTED, self.c.group.rank, self.c.next_round, self.c.own.current, 0,
                       reason)
        return self.note_trouble()

    def refuse(self):
        """Raise why there can be no call."""
        if self.is_inherited:
            raise ClosedError(self.inherited_text())
        if self.is_closed:
            raise ClosedError(self.closed_text())
        if is_troubled(self):
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

    def remember(self, uint64_t number):
        """Mix a number into the history of calls: ranks that gave different ones disagree in their next collective."""
        mix_history(&self.c, number)

    @cython.critical_section
    def check_usable(self):
        """Raise what a call would raise here and now: closed, inherited, or broken."""
        if not self.is_closed and self.trouble is None and in_trouble(&self.c.group):
            self.note_trouble()
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
        """What tells this communicator from others, for its timelines (engine/trace.pyx)."""
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
        """What each rank is in and waits for, as text; empty if this process must not access the memory."""
        cdef int j, nlooks = min(self.c.group.size, 8 * <int> SHMRING_LATE_NBYTES)
        copies = bytearray(nlooks * COPY_NBYTES)      # made before the check
        cdef char *at = copies
        if self.is_closed or self.is_inherited:
            return ""
        for j in range(nlooks):
            memcpy(at + j * COPY_NBYTES, (<Mapping> self.mappings[j]).address, COPY_NBYTES)
        return account([look(bytes(copies[j * COPY_NBYTES:(j + 1) * COPY_NBYTES])) for j in range(nlooks)])

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
            # SYNC left (meets: look_at_ranks, check_ranks in sync/wait.pyx, report_lost_peers in p2p/progress.pyx).
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
        while not (self.is_closed or self.is_inherited or has_turns):
            has_turns = self.take_turns()
            if not has_turns:
                self.end_calls()
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

    def share_turns(self):
        """Let threads without the GIL take the turns, too (`shmring.capi`). Waits for calls of other threads."""
        self.check_open()
        share_turn(&self.turn, self.turn_queue, self.name)
        share_turn(&self.message_turn, self.message_turn_queue, self.name)

    cdef bint take_turns(self) noexcept:
        """Take both turns, if no thread is in a call."""
        if not try_turn(&self.turn):
            return False
        if try_turn(&self.message_turn):
            if not (self.nsleepers or load_acquire_u32(&self.nvisitors)):
                return True
            give_turn(&self.message_turn, self.message_turn_queue)
        give_turn(&self.turn, self.turn_queue)
        return False

    cdef void give_turns(self) noexcept:
        give_turn(&self.message_turn, self.message_turn_queue)
        give_turn(&self.turn, self.turn_queue)

    cdef int end_calls(self) except -1:
        """Abort, and wait until the thread in a call has left it."""
        if has_turn(&self.turn) or has_turn(&self.message_turn):
            raise RuntimeError(f"{self.name}: close() inside a call of the same thread")
        if not is_troubled(self):
            self.report_abort(b"closed while another thread was in a call")
        if is_taken(&self.turn):
            take_turn(&self.turn, self.turn_queue, self.name)
            give_turn(&self.turn, self.turn_queue)      # to the next waiting thread, which raises
        else:
            time.sleep(0.0005)      # they look at the abort record at every tick of their sleep
        return 0

    cdef object last_disagreement(self):
        """The error if two roots of the last calls, which wait for no other rank, have not found one another."""
        if is_troubled(self) or in_trouble(&self.c.group) or not find_disagreement(&self.c, self.c.next_round):
            return None
        return self.diagnose()

    def leave_at_exit(self):
        """At exit: close, after an abort if an uncaught exception ended the interpreter (engine/lifecycle.py)."""
        reason = exit_reason()
        if reason is not None and not (self.is_closed or self.is_inherited or self.is_broken):
            self.abort(reason)
        self.close()

    def disown(self):
        """In a forked child: this process is not the rank and has nothing to close (`shmring.engine.lifecycle`)."""
        self.is_inherited = True
