"""Point-to-point calls of one communicator in one process.

Messages are moved by whichever thread is in a call: there is no thread of our own. Calls take turns; while one sleeps
the turn is free, so a blocked receive shuts out nobody. One thread at a time dozes on behalf of all.
"""

from queue import Empty, SimpleQueue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from shmring.arrays.array_view cimport array_t, copy_back, fast_array, source_array, target_array
from shmring._c.atomics cimport cpu_pause, store_relaxed_u64, store_release_u64
from shmring._runtime cimport allocate
from shmring.engine.engine cimport Engine
from shmring.engine.outbox cimport pair_queue_offset
from shmring.engine.turn cimport give_turn, take_turn
from shmring._c.faults cimport fault_point
from shmring.p2p.pair_queue cimport (has_lost_somebody, next_cell, pull, pump, push, send_queue_t, sleep_until_news,
                                     spin, start_message, take_message, takes_whole, wake_self)
from shmring._c.layout cimport SHMRING_CELL_NBYTES, SHMRING_PAIR_QUEUE_NCELLS, shmring_cell
from shmring.p2p.matching cimport Matching
from shmring.p2p.requests cimport (ANY, PROBE, RECV, SEND, Message, Request, can_hold, check_tag, is_for, message_of,
                               request_of)
from shmring.engine.signature cimport KIND_PROBE, KIND_RECV, KIND_SEND, pack_signature
from shmring.sync.abort cimport report_late
from shmring.sync.backoff cimport FIRST_TICK_NS, now_ns
from shmring.sync.group cimport PUBLISHED, READY, TROUBLE, UNREADY

from shmring.errors import MessageTimeoutError
from shmring._runtime import report_unraisable

cdef enum:
    BRIEF_NBYTES = 16384         # is copied with the GIL held: about as long as it takes to give and get it back


@cython.final
cdef class PointToPoint(Matching):
    """The sends, receives and probes of one rank.

    Parameters
    ----------
    engine : Engine
        Of the communicator.
    """

    def __cinit__(self, Engine engine):
        self.turn_queue = SimpleQueue()
        self.news = SimpleQueue()

    def stats(self):
        """What is known of the lanes to other ranks that carried long messages; see `MessageCalls.stats`."""
        cdef send_queue_t *o
        cdef int j
        lanes = []
        for j in range(self.size):
            o = &self.l.out[j]
            if o.has_bytes:
                lanes.append({
                    "dst": j,
                    "nbytes": self.l.ring_nbytes,
                    "laps": (o.filled + self.l.ring_nbytes - 1) // self.l.ring_nbytes,
                    "stores": "past the cache" if o.streams else "through the cache",
                    "trial_us": tuple(ns / 1e3 for ns in o.stores.cost_ns[:2]) if self.l.learns_stores else None,
                })
        return lanes

    # ---- turns ----

    cdef int enter(self) except -1:
        cdef Engine e = self.engine
        if e.is_closed or e.trouble is not None or e.is_inherited:
            e.refuse()
        e.nvisitors += 1
        try:
            take_turn(&self.turn, self.turn_queue, self.engine.name)
            if e.trouble is not None:
                give_turn(&self.turn, self.turn_queue)
                e.refuse()
        except BaseException:
            e.nvisitors -= 1
            raise
        return 0

    cdef void leave(self) noexcept:
        if self.is_told:
            self.is_told = False
            if not self.engine.is_closed:      # by a signal handler
                store_relaxed_u64(&self.engine.c.own.awaiting, 0)
        give_turn(&self.turn, self.turn_queue)
        self.engine.nvisitors -= 1
        if self.finished:
            run_callbacks(self)

    # ---- calls ----

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1:
        if not 0 <= peer < self.size and not (any_is_allowed and peer == ANY):
            raise ValueError(f"rank {peer}: must be from 0 to {self.size - 1}"
                             f"{', or ANY_SOURCE' if any_is_allowed else ''}")
        return 0

    cdef int send(self, object x, int peer, int tag, int64_t timeout_ns) except -1:
        cdef array_t a
        cdef Request r
        self.check_peer(peer, False)
        check_tag(tag, False)
        keeper = x if fast_array(x, &a, False) else source_array(x, &a, True)
        self.enter()
        try:
            if not self.send_at_once(&a, peer, tag):
                r = request_of(self, SEND, peer, tag, &a, x, keeper)
                self.start_send(r)
                if not self.await_all([r], timeout_ns):
                    self.give_up([r], None)
        finally:
            self.leave()
        return 0

    cdef Message recv(self, object x, int peer, int tag, int64_t timeout_ns):
        cdef array_t a
        cdef Request r
        cdef Message message
        cdef bint has_spun = False
        self.check_peer(peer, True)
        check_tag(tag, True)
        keeper = x if fast_array(x, &a, True) else target_array(x, &a, True)
        self.enter()
        try:
            message = self.recv_soon(&a, peer, tag, &has_spun)
            if message is None or self.l.into[message.source].is_busy:
                r = request_of(self, RECV, peer, tag, &a, x, keeper)
                self.go_on_receiving(r, message)
                if not self.await_all([r], timeout_ns, has_spun):
                    self.give_up([r], None)
                if r.error is not None:
                    raise r.error
                return r.message
        finally:
            self.leave()
        if keeper is not x:
            copy_back(keeper)
        return message

    cdef Message sendrecv(self, object x, int peer, int tag, object out, int source, int out_tag, int64_t timeout_ns):
        cdef array_t a, b
        cdef Request s = None, r
        cdef Message message = None
        cdef bint has_spun = False
        self.check_peer(peer, False)
        self.check_peer(source, True)
        check_tag(tag, False)
        check_tag(out_tag, True)
        keeper = x if fast_array(x, &a, False) else source_array(x, &a, True)
        kept = out if fast_array(out, &b, True) else target_array(out, &b, True)
        if a.nbytes and b.nbytes and <char *> a.data < <char *> b.data + b.nbytes \
                and <char *> b.data < <char *> a.data + a.nbytes:
            raise ValueError("x and out overlap; what is received would be sent")
        self.enter()
        try:
            if not self.send_at_once(&a, peer, tag):
                s = request_of(self, SEND, peer, tag, &a, x, keeper)
                self.start_send(s)
            else:
                message = self.recv_soon(&b, source, out_tag, &has_spun)
            if message is None or self.l.into[message.source].is_busy:
                r = request_of(self, RECV, source, out_tag, &b, out, kept)
                self.go_on_receiving(r, message)
                if not self.await_all([r] if s is None else [r, s], timeout_ns, has_spun):
                    self.give_up([r] if s is None else [r, s], None)
                if r.error is not None:
                    raise r.error
                return r.message
        finally:
            self.leave()
        if kept is not out:
            copy_back(kept)
        return message

    cdef Request isend(self, object x, int peer, int tag):
        cdef array_t a
        cdef Request r
        self.check_peer(peer, False)
        check_tag(tag, False)
        keeper = source_array(x, &a, True)
        r = request_of(self, SEND, peer, tag, &a, x, keeper)
        self.enter()
        try:
            if self.send_at_once(&a, peer, tag):
                self.finish(r, None)
            else:
                self.start_send(r)
        finally:
            self.leave()
        return r

    cdef Request irecv(self, object x, int peer, int tag):
        cdef array_t a
        cdef Request r
        self.check_peer(peer, True)
        check_tag(tag, True)
        keeper = target_array(x, &a, True)
        r = request_of(self, RECV, peer, tag, &a, x, keeper)
        self.enter()
        try:
            self.start_recv(r)
            self.attend()
        finally:
            self.leave()
        return r

    cdef Message probe(self, int peer, int tag, int64_t timeout_ns):
        """None if nothing came in time."""
        cdef Request r
        self.check_peer(peer, True)
        check_tag(tag, True)
        r = request_of(self, PROBE, peer, tag, NULL, None, None)
        self.enter()
        try:
            self.start_recv(r)
            if not self.await_all([r], timeout_ns):
                self.withdraw(r)
                return None
            return r.message
        finally:
            self.leave()

    cdef int open_pair_queue(self, int peer, uint64_t nbytes) except -1:
        """Give the lane to ``peer`` what memory it still needs for a message of so many bytes."""
        cdef send_queue_t *o = &self.l.out[peer]
        cdef size_t start = pair_queue_offset(self.engine.config, self.size, peer)
        cdef size_t cells_nbytes = SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell)
        segment = self.engine.segments[self.rank]
        if not o.is_open:
            if o.filled_by == NULL:
                o.filled_by = <uint64_t *> allocate(self.blocks, SHMRING_PAIR_QUEUE_NCELLS, sizeof(uint64_t))
            segment.reserve(start, cells_nbytes)
            o.is_open = True
            fault_point("open")
            # SYNC opened (meets: next_cell in p2p/pair_queue.pyx). From here on the peer may read there.
            store_release_u64(&o.own.opened, 1)
        if nbytes > SHMRING_CELL_NBYTES and not o.has_bytes:
            segment.reserve(start + cells_nbytes, self.l.ring_nbytes)
            o.has_bytes = True
        return 0

    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1:
        """Send what needs no waiting: False if the lane cannot take it to its end now, and nothing of it is in."""
        cdef send_queue_t *o = &self.l.out[peer]
        if peer == self.rank:
            return False
        if not o.is_open or (not o.has_bytes and a.nbytes > SHMRING_CELL_NBYTES):
            self.open_pair_queue(peer, a.nbytes)
        if o.nqueued or not takes_whole(&self.l, peer, a.nbytes):
            return False
        start_message(&self.l, peer, a.data, a.nbytes, tag, a.dtype)
        if a.nbytes <= BRIEF_NBYTES:
            push(&self.l, peer)
        else:
            with nogil:
                push(&self.l, peer)
        return True

    cdef Message recv_soon(self, array_t *a, int peer, int tag, bint *has_spun):
        """The message, if it comes while spinning pays and nothing stands before it; else None.

        It is in to its end unless the lane is busy with it: then it is the caller's to go on.
        """
        cdef Message message
        if self.posted or self.unexpected_list or self.nunderway:
            return None
        message = self.recv_at_once(a, peer, tag, self.engine.c.brief_looks)
        if message is None:
            self.want(peer, 1)
            with nogil:
                has_spun[0] = spin(&self.l) == UNREADY
            self.want(peer, -1)
            message = self.recv_at_once(a, peer, tag, 1)
        if message is not None and self.l.into[message.source].is_busy:
            with nogil:
                has_spun[0] = spin(&self.l) == UNREADY
        return message

    cdef Message recv_at_once(self, array_t *a, int peer, int tag, int looks):
        """The message, if it begins within so many looks; what is there of it is in."""
        cdef shmring_cell *cell
        cdef int _look, j, k
        for _look in range(looks):
            if peer != ANY:
                cell = next_cell(&self.l, peer)
                if cell != NULL:
                    return self.take_next(a, peer, tag, cell)
            else:
                for k in range(self.size):
                    j = (self.turn_of_source + k) % self.size
                    cell = next_cell(&self.l, j)
                    if cell != NULL:
                        return self.take_next(a, j, tag, cell)
            cpu_pause()
        return None

    cdef Message take_next(self, array_t *a, int peer, int tag, shmring_cell *cell):
        cdef Message message
        message = message_of(peer, cell.tag, cell.nbytes, cell.dtype)
        if not is_for(ANY, tag, peer, message.tag) or not can_hold(a, message.nbytes, message.code):
            return None
        take_message(&self.l, peer, message.nbytes, a.data)
        if message.nbytes <= BRIEF_NBYTES:
            pull(&self.l, peer)
        else:
            with nogil:
                pull(&self.l, peer)
        self.turn_of_source = peer + 1
        return message

    # ---- waiting ----

    cdef bint await_all(self, list requests, int64_t timeout_ns, bint has_spun=False) except -1:
        """Move and wait until all are over; whether they are, within ``timeout_ns`` (< 0: for ever).

        The caller has entered and leaves; between, the turn is given to others.
        """
        cdef int64_t deadline_ns = -1, tick_ns = FIRST_TICK_NS, now
        cdef int outcome
        cdef bint is_lost, only_dead = (<Request> requests[0]).kind == PROBE
        cdef Request r
        while True:
            self.attend()
            for r in requests:
                if not r.is_over:
                    break
            else:
                if self.nfollowers:
                    self.news.put(None)
                return True
            if timeout_ns == 0:
                with nogil:
                    outcome = pump(&self.l)
                    is_lost = outcome == 0 and has_lost_somebody(&self.l, only_dead)
                if is_lost:
                    self.engine.break_down()
                if outcome == 0:
                    return False
                continue
            outcome = UNREADY
            if not has_spun:
                with nogil:
                    outcome = spin(&self.l)
            has_spun = False
            if outcome == READY:
                continue
            if outcome == TROUBLE:
                self.engine.break_down()
            now = now_ns()
            if timeout_ns > 0:
                if deadline_ns < 0:
                    deadline_ns = now + min(timeout_ns, INT64_MAX - now)
                if now >= deadline_ns:
                    return False
            with nogil:
                is_lost = has_lost_somebody(&self.l, False)
            if is_lost:
                self.engine.break_down()
            self.is_told = True
            store_relaxed_u64(&self.engine.c.own.awaiting, signature_of(requests[0]))
            try:
                self.rest(tick_ns if timeout_ns < 0 else min(tick_ns, deadline_ns - now))
            except BaseException as error:
                if not self.engine.is_closed and self.engine.trouble is None:
                    self.give_up(requests, type(error).__name__)
                raise
            if self.engine.is_closed or self.engine.trouble is not None:
                self.engine.refuse()
            tick_ns = min(2 * tick_ns, self.l.group.tick_ns)

    cdef int rest(self, int64_t tick_ns) except -1:
        """Sleep without the turn until something may have come, then let Python handle signals.

        One thread dozes; the others follow it. A signal handler finds this thread in no call, so it may even close.
        """
        cdef int _i
        cdef uint64_t changes = self.l.changes
        cdef bint leads = not self.is_awaited
        try:
            if leads:
                self.is_awaited = True
                give_turn(&self.turn, self.turn_queue)
                with nogil:
                    sleep_until_news(&self.l, tick_ns, changes)
            else:
                wake_self(&self.l)      # it sleeps for less than what is awaited by now
                self.nfollowers += 1
                give_turn(&self.turn, self.turn_queue)
                try:
                    self.news.get(timeout=1e-9 * max(0, tick_ns))
                except Empty:
                    pass
                finally:
                    self.nfollowers -= 1
            self.engine.nvisitors -= 1
            try:
                PyErr_CheckSignals()
            finally:
                self.engine.nvisitors += 1
        finally:
            if leads:
                self.is_awaited = False
                for _i in range(self.nfollowers):
                    self.news.put(None)
            self.retake_turn()
        return 0

    cdef int retake_turn(self) except -1:
        """Take the turn, whatever signal handlers raise meanwhile; then raise it."""
        raised = None
        while True:
            try:
                take_turn(&self.turn, self.turn_queue, self.engine.name)
                break
            except BaseException as error:
                raised = error
        if raised is not None:
            raise raised
        return 0

    # ---- giving up ----

    cdef int give_up(self, list requests, str raised) except -1:
        """Undo what a call had begun, because a signal handler ``raised``, or, if that is None, time is up.

        A send whose first half has gone cannot be undone: the peer would take the next message for the second half.
        """
        cdef Request r, lost = None
        cdef bint undone = True
        for r in requests:
            if not r.is_over and not self.withdraw(r):
                undone = False
                lost = r
        if undone:
            if raised is None:
                raise MessageTimeoutError(f"{self.engine.name}: timed out waiting for {awaited(requests)}; "
                                          "nothing changed")
            return 0
        if raised is None:
            report_late(&self.engine.c.group, PUBLISHED, lost.peer, 0, signature_of(lost))
            self.engine.break_down()
        self.engine.abort(f"{raised} in the middle of a message")
        return 0


cdef uint64_t signature_of(Request r):
    """What other ranks are told that this one is in, if they ask why it does not come."""
    cdef int kind = KIND_SEND if r.kind == SEND else KIND_RECV if r.kind == RECV else KIND_PROBE
    return pack_signature(kind, 0, 0, r.peer, <uint64_t> (r.tag + 1))


cdef str awaited(list requests):
    cdef Request r
    cdef list parts = []
    for r in requests:
        if r.kind == SEND:
            parts.append(f"rank {r.peer} to take a message")
        else:
            parts.append(f"a message from {'anyone' if r.peer == ANY else f'rank {r.peer}'}"
                         f"{'' if r.tag == ANY else f' with tag {r.tag}'}")
    return " and ".join(parts)


cdef void run_callbacks(PointToPoint self) noexcept:
    """Outside of the turn. Nobody is there to catch what a callback raises."""
    cdef Request r
    while self.finished:
        r = self.finished.pop(0)
        callbacks, r.callbacks = r.callbacks, None
        for callback in callbacks:
            try:
                callback(r)
            except BaseException as error:
                report_unraisable(error, callback)
