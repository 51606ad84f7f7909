"""Progress: a thread that waits for requests moves the messages of all threads of its process meanwhile.

There is no background thread. Threads take turns; a thread gives the turn away while it sleeps, so a blocked receive
does not block other calls. One thread at a time sleeps on the rank's semaphore, and wakes the other waiting threads.
"""

from queue import Empty, SimpleQueue

cimport cython
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport load_acquire_u32, store_relaxed_u64
from shmring.core.c.layout cimport SHMRING_LEFT, SHMRING_LOST
from shmring.core.base.signals cimport check_signals
from shmring.collectives.engine.engine cimport Engine, count_visitor, is_troubled
from shmring.collectives.engine.recording cimport caller, store_place
from shmring.collectives.engine.kinds cimport KIND_PROBE, KIND_RECV, KIND_SEND
from shmring.core.sync.long_waits cimport is_note_due, notes_t, write_note
from shmring.core.sync.turn cimport (PyThreadState, drop_gil, give_shared_turn, give_turn, retake_gil,
                                take_shared_turn)
from shmring.collectives.p2p.matching cimport Matching
from shmring.collectives.p2p.pair_queue cimport (
    LONGEST_RUN_NS, awaits, has_news, pair_queues_t, pump, sleep_until_news, spin, wake_self,
)
from shmring.collectives.p2p.requests cimport ANY, OBJECT_STREAM, PROBE, RECV, SEND, Request, is_late, wait_t
from shmring.core.sync.abort cimport is_reported, report_late, report_trouble
from shmring.core.sync.backoff cimport left_until, now_ns
from shmring.core.sync.group cimport PUBLISHED, READY, TROUBLE, UNREADY, group_t
from shmring.core.sync.liveness cimport DEAD, liveness_state

from shmring.errors import MessageTimeoutError

cdef enum:
    READY_ROUNDS = 16      # matched without a look at the clock, at other threads and at signals


@cython.final
cdef class Progress:
    """Waits for requests of one rank.

    Parameters
    ----------
    engine : Engine
        The engine of the communicator.
    matching : Matching
        Its messages and requests.
    """

    def __cinit__(self, Engine engine not None, Matching matching not None):
        self.engine = engine
        self.matching = matching
        self.followers = SimpleQueue()

    cdef bint await_all(self, list requests, wait_t *wait) except -1:
        """Move messages and wait until all requests are over; False if the timeout passes first.

        The caller has entered, and leaves afterwards; while this thread sleeps, others have the turn.
        """
        cdef int outcome, rounds = 0
        cdef Request r
        cdef bytes place = None
        cdef notes_t notes = notes_t(0, 0)
        while True:
            self.matching.match_and_finish()
            for r in requests:
                if not r.is_over:
                    break
            else:
                if self.nfollowers:
                    self.followers.put(None)
                return True
            if wait.patience.timeout_ns == 0:
                if self.poll(wait, (<Request> requests[0]).kind == PROBE) == LATE:
                    return False
                continue
            with nogil:
                outcome = spin(&self.matching.queues, &wait.patience)
            rounds += 1
            if outcome == READY and rounds % READY_ROUNDS:
                continue
            if outcome != TROUBLE:
                outcome = self.before_sleep(wait, signature_of(requests[0]))
            if outcome == LATE:
                return False
            if outcome == TROUBLE:
                self.engine.break_down()
            try:
                place = self.sleep_one_tick(wait, place)
                if is_note_due(&notes, wait.began_ns):
                    write_note(f"rank {self.engine.c.group.rank} of {self.engine.name} waits for "
                               f"{description(requests)}", wait.began_ns)
            except BaseException as error:
                if not self.engine.is_closed and not is_troubled(self.engine):
                    self.give_up(requests, type(error).__name__)
                raise
            if self.engine.is_closed or is_troubled(self.engine):
                self.engine.refuse()
            if place is not None:
                store_place(&self.engine.c.own.message_place, <uint64_t> wait.began_ns, place)

    cdef int poll(self, wait_t *wait, bint only_dead) except -1:
        """Move what can be moved now. LATE if that is nothing."""
        cdef int news
        cdef bint is_lost
        if wait.began_ns == 0:
            wait.began_ns = now_ns()
        with nogil:
            news = pump(&self.matching.queues)
            is_lost = news == 0 and report_lost_peers(&self.matching.queues, only_dead)
        if is_lost:
            self.engine.break_down()
        # A message that is there may be behind others; but a fast sender must not keep a poll for ever.
        return LATE if news == 0 or now_ns() - wait.began_ns > LONGEST_RUN_NS else READY

    # ---- sleeping ----

    cdef int before_sleep(self, wait_t *wait, uint64_t what) noexcept nogil:
        """UNREADY: sleep now; other ranks see ``what`` this rank awaits. LATE; or TROUBLE, if no message can come."""
        if is_late(wait):
            return LATE
        if report_lost_peers(&self.matching.queues, False):
            return TROUBLE
        if wait.began_ns == 0:
            wait.began_ns = now_ns()
        self.awaiting_is_posted = True
        store_relaxed_u64(&self.engine.c.own.awaiting_since, <uint64_t> wait.began_ns)
        store_relaxed_u64(&self.engine.c.own.awaiting, what)
        return UNREADY

    cdef void note_wait(self, int peer, int64_t began_ns) noexcept nogil:
        """Write a note of a long wait of a thread without the GIL."""
        with gil:
            source = "any rank" if peer == ANY else f"rank {peer}"
            write_note(f"rank {self.engine.c.group.rank} of {self.engine.name} waits for a message from {source}",
                       began_ns)

    cdef bytes sleep_one_tick(self, wait_t *wait, bytes place):
        """Sleep without the turn until something may have arrived, then run Python's signal handlers. Returns
        ``place``, or if that is None and this sleep was in vain, the line of Python that made this call, which is
        looked up where handlers may run.

        One thread sleeps on the semaphore; the others wait for it. Signal handlers run outside of any call, so they may
        even close the communicator.
        """
        cdef bint leads = not self.matching.has_sleeper, in_vain = True
        try:
            if leads:
                in_vain = self.lead(wait) == UNREADY
            else:
                self.follow(wait)
            check_signals()
            if place is None and in_vain:
                place = caller()
        finally:
            try:
                self.retake_turn()
            finally:
                if leads:
                    self.matching.has_sleeper = False
                    self.wake_followers()
                else:
                    self.nfollowers -= 1
        return place

    cdef int lead(self, wait_t *wait) noexcept:
        """Sleep for all threads. READY if there is something to do, else UNREADY."""
        cdef uint64_t changes = self.matching.queues.changes
        cdef int outcome
        self.matching.has_sleeper = True
        give_turn(&self.engine.message_turn)
        with nogil:
            outcome = sleep_until_news(&self.matching.queues, &wait.patience, changes)
        count_visitor(self.engine, -1)      # until it has the turn again: it may be closed meanwhile
        return outcome

    cdef int follow(self, wait_t *wait) except -1:
        cdef int64_t left_ns = left_until(wait.patience.deadline_ns, wait.patience.timeout_ns)
        cdef int64_t tick_ns = self.matching.queues.group.tick_ns
        wake_self(&self.matching.queues)      # the sleeping thread must now sleep for this thread's requests, too
        self.nfollowers += 1
        give_message_turn(self.engine)
        try:
            self.followers.get(timeout=1e-9 * (tick_ns if left_ns < 0 else min(tick_ns, left_ns)))
        except Empty:
            pass
        return 0

    cdef void wake_followers(self) noexcept:
        cdef int _thread
        for _thread in range(self.nfollowers):
            self.followers.put(None)

    cdef bint sleep_free(self, wait_t *wait) noexcept nogil:
        """Sleep for one tick without the turn, which is shared; whether there is something to do."""
        cdef uint64_t changes = self.matching.queues.changes
        cdef PyThreadState *state
        cdef bint is_news
        self.matching.has_sleeper = True
        self.engine.nsleepers += 1
        give_shared_turn(&self.engine.message_turn)
        state = drop_gil()
        is_news = sleep_until_news(&self.matching.queues, &wait.patience, changes) == READY
        retake_gil(state)
        take_shared_turn(&self.engine.message_turn)
        self.engine.nsleepers -= 1
        self.matching.has_sleeper = False
        if self.nfollowers:
            with gil:
                self.wake_followers()
        return is_news

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
                    self.matching.put_back(r)
                is_begun = r.kind == SEND and r.a.dtype <= OBJECT_STREAM
            elif not self.matching.withdraw(r) or is_begun:
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
        awaited = awaits(q, j)
        if j == g.rank or not (awaited or q.nposted):
            continue
        # SYNC left (meets: mark_left in collectives/engine/engine.pyx)
        has_left = load_acquire_u32(&g.outbox[j].left)
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
    return awaited(KIND_SEND if r.kind == SEND else KIND_RECV if r.kind == RECV else KIND_PROBE, r.peer, r.tag)


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
