"""Progress: a thread that waits for requests moves the messages of all threads of its process meanwhile.

There is no background thread. Threads take turns; a thread gives the turn away while it sleeps, so a blocked receive
does not block other calls. One thread at a time sleeps on the rank's semaphore, and wakes the other waiting threads.
"""

from queue import Empty, SimpleQueue

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from shmring._c.atomics cimport load_acquire_u32, store_relaxed_u64
from shmring._c.layout cimport SHMRING_LEFT, SHMRING_LOST
from shmring.engine.engine cimport Engine, count_visitor, is_troubled
from shmring.engine.recording cimport caller, store_place
from shmring.engine.signature cimport KIND_PROBE, KIND_RECV, KIND_SEND, pack_signature
from shmring.sync.turn cimport give_turn
from shmring.p2p.matching cimport Matching
from shmring.p2p.pair_queue cimport pair_queues_t
from shmring.p2p.all_queues cimport LONGEST_RUN_NS, has_news, pump, sleep_until_news, spin, wake_self
from shmring.p2p.requests cimport ANY, OBJECT_STREAM, PROBE, RECV, SEND, Request
from shmring.sync.abort cimport is_reported, report_late, report_trouble
from shmring.sync.backoff cimport FIRST_TICK_NS, now_ns
from shmring.sync.group cimport PUBLISHED, READY, TROUBLE, UNREADY, group_t
from shmring.sync.liveness cimport DEAD, liveness_state

from shmring.errors import MessageTimeoutError

cdef enum:
    READY_ROUNDS = 16      # matched without a look at the clock, at other threads and at signals


cdef class Progress(Matching):
    """Waits for requests of one rank.

    Parameters
    ----------
    engine : Engine
        The engine of the communicator.
    """

    def __cinit__(self, Engine engine not None):
        self.followers = SimpleQueue()

    cdef bint await_all(self, list requests, int64_t timeout_ns, bint has_spun=False) except -1:
        """Move messages and wait until all requests are over; False if ``timeout_ns`` (< 0: no limit) passes first.

        The caller has entered, and leaves afterwards; while this thread sleeps, others have the turn.
        """
        cdef int64_t started = 0, now, deadline_ns = 0, tick_ns = FIRST_TICK_NS
        cdef int outcome, rounds = 0
        cdef bint is_lost, only_dead = (<Request> requests[0]).kind == PROBE
        cdef Request r
        cdef bytes place = None
        while True:
            self.match_and_finish()
            for r in requests:
                if not r.is_over:
                    break
            else:
                if self.nfollowers:
                    self.followers.put(None)
                return True
            if started == 0:
                started = now_ns()
                deadline_ns = started + min(max(timeout_ns, <int64_t> 0), INT64_MAX - started)
            if timeout_ns == 0:
                with nogil:
                    outcome = pump(&self.queues)
                    is_lost = outcome == 0 and report_lost_peers(&self.queues, only_dead)
                if is_lost:
                    self.engine.break_down()
                # A message that is there may be behind others; but a fast sender must not keep a poll for ever.
                if outcome == 0 or now_ns() - started > LONGEST_RUN_NS:
                    return False
                continue
            outcome = UNREADY
            if not has_spun:
                with nogil:
                    outcome = spin(&self.queues)
            has_spun = False
            if outcome == TROUBLE:
                self.engine.break_down()
            rounds += 1
            if outcome == READY and rounds % READY_ROUNDS:
                continue
            now = now_ns()
            if timeout_ns > 0 and now >= deadline_ns:
                return False
            with nogil:
                is_lost = report_lost_peers(&self.queues, False)
            if is_lost:
                self.engine.break_down()
            self.awaiting_is_posted = True
            store_relaxed_u64(&self.engine.c.own.awaiting_since, <uint64_t> started)
            store_relaxed_u64(&self.engine.c.own.awaiting, signature_of(requests[0]))
            try:
                place = self.sleep_one_tick(tick_ns if timeout_ns < 0 else min(tick_ns, deadline_ns - now), place)
            except BaseException as error:
                if not self.engine.is_closed and not is_troubled(self.engine):
                    self.give_up(requests, type(error).__name__)
                raise
            if self.engine.is_closed or is_troubled(self.engine):
                self.engine.refuse()
            store_place(&self.engine.c.own.message_place, <uint64_t> started, place)
            tick_ns = min(2 * tick_ns, self.queues.group.tick_ns)

    cdef bytes sleep_one_tick(self, int64_t tick_ns, bytes place):
        """Sleep without the turn until something may have arrived, then run Python's signal handlers. Returns
        ``place``, or if that is None the line of Python that made this call, which is looked up where handlers may run.

        One thread sleeps on the semaphore; the others wait for it. Signal handlers run outside of any call, so they may
        even close the communicator.
        """
        cdef int _i
        cdef uint64_t changes = self.queues.changes
        cdef bint leads = not self.has_sleeper
        try:
            if leads:
                self.has_sleeper = True
                give_turn(&self.engine.message_turn, self.engine.message_turn_queue)
                with nogil:
                    sleep_until_news(&self.queues, tick_ns, changes)
                count_visitor(self.engine, -1)      # until it has the turn again: it may be closed meanwhile
            else:
                wake_self(&self.queues)      # it must now sleep for this thread's requests, too
                self.nfollowers += 1
                give_message_turn(self.engine)
                try:
                    self.followers.get(timeout=1e-9 * max(0, tick_ns))
                except Empty:
                    pass
            PyErr_CheckSignals()
            if place is None:
                place = caller()
        finally:
            try:
                self.retake_turn()
            finally:
                if not leads:
                    self.nfollowers -= 1
                else:
                    self.has_sleeper = False
                    for _i in range(self.nfollowers):
                        self.followers.put(None)
        return place

    cdef int retake_turn(self) except -1:
        """Take the turn; what signal handlers raise meanwhile is raised afterwards. The communicator may be closed."""
        raised = None
        while True:
            try:
                take_message_turn(self.engine)
                break
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised
        return 0

    cdef int give_up(self, list requests, str raised) except -1:
        """Withdraw the requests of a call, because a signal handler ``raised`` or, if that is None, it timed out.

        A partly sent message or object cannot be withdrawn: the peer would take the next message for the rest of it.
        """
        cdef Request r, partly_sent = None
        cdef bint is_begun = False       # a part of an object has been sent
        for r in requests:
            if r.is_over:
                if r.kind == RECV and r.error is None:
                    self.put_back(r)
                is_begun = r.kind == SEND and r.a.dtype <= OBJECT_STREAM
            elif not self.withdraw(r) or is_begun:
                partly_sent = r
        if partly_sent is None:
            if raised is None:
                raise MessageTimeoutError(f"{self.engine.name}: timed out waiting for {description(requests)}; "
                                          "a message that has arrived can still be received")
            return 0
        if raised is None:
            report_late(&self.engine.c.group, PUBLISHED, partly_sent.peer, 0, signature_of(partly_sent))
            self.engine.break_down()
        self.engine.abort(f"{raised} in the middle of a message")
        return 0


cdef bint report_lost_peers(pair_queues_t *q, bint only_dead) noexcept nogil:
    """Report an awaited peer that has died or left. True if the communicator is broken.

    Only peers awaited here matter: a peer that waits for a dead rank reports that itself. A receive from any source
    fails if a peer is dead, or if all have left. A probe that does not wait fails only for a dead peer (``only_dead``).
    """
    cdef group_t *g = q.group
    cdef int j, ngone = 0, last = -1
    cdef bint awaited, has_left
    if is_reported(g):
        return True
    for j in range(g.size):
        awaited = q.recv[j].is_busy or q.recv[j].nposted > 0 or q.send[j].is_busy
        if j == g.rank or not (awaited or q.nposted):
            continue
        has_left = load_acquire_u32(&g.outbox[j].left)      # SYNC left (meets: mark_left in engine/engine.pyx)
        if only_dead if has_left else liveness_state(g.liveness[j]) != DEAD:
            continue
        if has_news(q, j):      # sent before it left
            return False
        if not has_left or awaited:
            report_trouble(g, SHMRING_LEFT if has_left else SHMRING_LOST, j, 0, 0, 0, b"")
            return True
        ngone += 1
        last = j
    if q.nposted and last >= 0 and ngone == g.size - 1:
        report_trouble(g, SHMRING_LEFT, last, 0, 0, 0, b"")
        return True
    return False


cdef uint64_t signature_of(Request r):
    """The signature that this rank posts while it waits for the request; other ranks use it in timeout errors."""
    cdef int kind = KIND_SEND if r.kind == SEND else KIND_RECV if r.kind == RECV else KIND_PROBE
    return pack_signature(kind, 0, 0, r.peer, <uint64_t> (r.tag + 1))


cdef str description(list requests):
    cdef Request r
    cdef list parts = []
    for r in requests:
        if r.kind == SEND:
            parts.append(f"rank {r.peer} to receive a message")
        else:
            parts.append(f"a message from {'any rank' if r.peer == ANY else f'rank {r.peer}'}"
                         f"{'' if r.tag == ANY else f' with tag {r.tag}'}")
    return " and ".join(parts)
