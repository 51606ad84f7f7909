"""Point-to-point calls of one communicator in one process.

A call first tries to finish at once, without a request: the pair queue has room, or the message is there or arrives
while spinning. Otherwise it makes a `Request` and waits for that (`Progress`).
"""

import numpy as np

cimport cython
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport cpu_pause, store_relaxed_u64, store_release_u64
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport SHMRING_CELL_NBYTES, SHMRING_PAIR_QUEUE_NCELLS, shmring_cell
from shmring.arrays.array_view cimport array_t, copy_back, fast_array, source_array, target_array
from shmring.arrays.store_tuning cimport trials_us
from shmring.engine.engine cimport Engine, is_troubled, timeline_of
from shmring.engine.outbox cimport pair_queue_offset
from shmring.engine.signature cimport KIND_RECV, KIND_SEND
from shmring.engine.recording cimport message_started, note_message
from shmring.p2p.all_queues cimport spin
from shmring.p2p.pair_queue cimport next_cell, pull, push, send_queue_t, start_message, take_message, takes_whole
from shmring.p2p.progress cimport Progress, give_message_turn, take_message_turn
from shmring.p2p.requests cimport (ANY, OBJECT_BUFFER, OBJECT_STREAM, PROBE, RECV, SEND, Message, Request, can_hold,
                                   check_apart, check_tag, is_for, known_code, message_of, request_of)
from shmring.sync.group cimport UNREADY

from shmring.base.unraisable import report_unraisable
from shmring.kernel.reduce import STORES

cdef enum:
    BRIEF_NBYTES = 16384         # shorter messages are copied with the GIL held: releasing it takes as long


@cython.final
cdef class PointToPoint(Progress):
    """The sends, receives and probes of one rank.

    Parameters
    ----------
    engine : Engine
        The engine of the communicator.
    """

    def stats(self):
        """Statistics of the pair queues to other ranks that carried long messages; see `Communicator.stats`."""
        cdef send_queue_t *queue
        cdef int j
        found = []
        for j in range(self.size):
            queue = &self.queues.send[j]
            if queue.has_bytes:
                found.append({
                    "dst": j,
                    "nbytes": self.queues.ring_nbytes,
                    "laps": (queue.filled + self.queues.ring_nbytes - 1) // self.queues.ring_nbytes,
                    "stores": STORES[queue.laps.kind],
                    "trial_us": trials_us(&queue.laps.trials) if self.queues.learns_stores else None,
                })
        return found

    # ---- enter and leave ----

    cdef int enter(self) except -1:
        cdef Engine e = self.engine
        if e.is_closed or is_troubled(e) or e.is_inherited:
            e.refuse()
        if take_message_turn(e) and (e.is_closed or is_troubled(e)):
            give_message_turn(e)      # so that the next waiting thread raises, too
            e.refuse()
        return 0

    cdef void leave(self) noexcept:
        if self.awaiting_is_posted:
            self.awaiting_is_posted = False
            if not self.engine.is_closed:      # a signal handler may have closed it
                store_relaxed_u64(&self.engine.c.own.awaiting, 0)
        finished = None
        if self.finished:
            finished, self.finished = self.finished, []
        give_message_turn(self.engine)
        if finished is not None:
            run_callbacks(finished)

    # ---- calls ----

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1:
        if not 0 <= peer < self.size and not (any_is_allowed and peer == ANY):
            raise ValueError(f"rank {peer}: must be from 0 to {self.size - 1}"
                             f"{', or ANY_SOURCE' if any_is_allowed else ''}")
        return 0

    cdef int send(self, object x, int peer, int tag, int64_t timeout_ns) except -1:
        cdef array_t a
        self.check_peer(peer, False)
        check_tag(tag, False)
        keeper = x if fast_array(x, &a, False) else source_array(x, &a, True)
        self.enter()
        try:
            self.transmit(&a, x, keeper, peer, tag, timeout_ns)
        finally:
            self.leave()
        return 0

    cdef Message recv(self, object x, int peer, int tag, int64_t timeout_ns):
        cdef array_t a
        self.check_peer(peer, True)
        check_tag(tag, True)
        keeper = x if fast_array(x, &a, True) else target_array(x, &a, True)
        return self.receive(&a, x, keeper, peer, tag, timeout_ns)

    cdef Message receive(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns):
        """Receive into ``a``, the memory of ``x``, which ``keeper`` owns."""
        cdef Message message
        cdef bint has_spun = False
        self.enter()
        try:
            message = self.recv_spinning(a, peer, tag, &has_spun)
            if message is None or self.queues.recv[message.source].is_busy:
                return self.await_message(None, request_of(self, RECV, peer, tag, a, x, keeper), message, timeout_ns,
                                          has_spun)
        finally:
            self.leave()
        if keeper is not x:
            copy_back(keeper)
        return message

    cdef Message sendrecv(self, object x, int peer, int tag, object out, int source, int out_tag, int64_t timeout_ns):
        cdef array_t a, b
        cdef Request s = None
        cdef Message message = None
        cdef bint has_spun = False
        self.check_peer(peer, False)
        self.check_peer(source, True)
        check_tag(tag, False)
        check_tag(out_tag, True)
        keeper = x if fast_array(x, &a, False) else source_array(x, &a, True)
        out_keeper = out if fast_array(out, &b, True) else target_array(out, &b, True)
        check_apart(&a, &b)
        self.enter()
        try:
            if not self.send_at_once(&a, peer, tag):
                s = request_of(self, SEND, peer, tag, &a, x, keeper)
                self.start_send(s)
            else:
                message = self.recv_spinning(&b, source, out_tag, &has_spun)
            if message is None or self.queues.recv[message.source].is_busy:
                return self.await_message(s, request_of(self, RECV, source, out_tag, &b, out, out_keeper), message,
                                          timeout_ns, has_spun)
        finally:
            self.leave()
        if out_keeper is not out:
            copy_back(out_keeper)
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
            self.begin_send(r)
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
            self.begin_receive(r, None)
        finally:
            self.leave()
        return r

    # ---- their parts that need requests; the caller has entered ----

    cdef int transmit(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns) except -1:
        """Send ``a``, the memory of ``x``, which ``keeper`` owns."""
        cdef Request r
        if not self.send_at_once(a, peer, tag):
            r = request_of(self, SEND, peer, tag, a, x, keeper)
            self.start_send(r)
            if not self.await_all([r], timeout_ns):
                self.give_up([r], None)
        return 0

    cdef Message await_message(self, Request s, Request r, Message begun, int64_t timeout_ns, bint has_spun):
        """Receive by ``r``, which goes on with ``begun`` if that is a message; the send ``s``, if any, ends as well."""
        cdef list requests = [r] if s is None else [r, s]
        self.continue_receive(r, begun)
        if not self.await_all(requests, timeout_ns, has_spun):
            self.give_up(requests, None)
        if r.error is not None:
            raise r.error
        return r.message

    cdef int begin_send(self, Request r) except -1:
        if self.send_at_once(&r.a, r.peer, r.tag):
            return self.finish(r, None)
        return self.start_send(r)

    cdef int begin_receive(self, Request r, Message begun) except -1:
        self.continue_receive(r, begun)
        self.match_and_finish()
        return 0

    cdef Message probe(self, int peer, int tag, int64_t timeout_ns):
        """None if no message arrived in time."""
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

    # ---- objects: several messages, of which none may be lost or fall between those of another object ----

    cdef int send_object(self, list parts, int peer, int tag, int64_t timeout_ns) except -1:
        """Send the pickle stream of an object, and its out-of-band buffers. They are queued together: no other message
        to ``peer`` comes between them."""
        cdef array_t a
        cdef list requests = []
        cdef Request r
        cdef uint64_t longest = 0
        self.check_peer(peer, False)
        check_tag(tag, False)
        for part in parts:
            keeper = source_array(part, &a)
            a.dtype = OBJECT_BUFFER if requests else OBJECT_STREAM
            longest = max(longest, <uint64_t> a.nbytes)
            requests.append(request_of(self, SEND, peer, tag, &a, part, keeper))
        self.enter()
        try:
            if peer != self.rank:
                self.open_pair_queue(peer, longest)
            for r in requests:
                self.start_send(r)
            if not self.await_all(requests, timeout_ns):
                self.give_up(requests, None)
        finally:
            self.leave()
        return 0

    cdef int recv_part(self, list parts, Message message, int64_t timeout_ns) except -1:
        """Receive the next part of an object, which `probe` has described, and append it to ``parts``."""
        cdef array_t a
        part = np.empty(message.nbytes, np.uint8)
        keeper = target_array(part, &a)
        a.dtype = OBJECT_BUFFER if parts else OBJECT_STREAM
        self.receive(&a, part, keeper, message.source, message.tag, timeout_ns)
        parts.append(part)
        return 0

    cdef int open_pair_queue(self, int peer, uint64_t nbytes) except -1:
        """Reserve the memory that the pair queue to ``peer`` still lacks for a message of ``nbytes`` bytes."""
        cdef send_queue_t *queue = &self.queues.send[peer]
        cdef size_t start = pair_queue_offset(self.engine.config, self.size, peer)
        cdef size_t cells_nbytes = SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell)
        segment = self.engine.segments[self.rank]
        if not queue.is_open:
            if queue.filled_by == NULL:
                queue.filled_by = <uint64_t *> self.heap.allocate(SHMRING_PAIR_QUEUE_NCELLS, sizeof(uint64_t))
            segment.reserve(start, cells_nbytes)
            queue.is_open = True
            fault_point("open")
            # SYNC opened (meets: next_cell in p2p/pair_queue.pyx). From now on the peer may load its cells.
            store_release_u64(&queue.own.opened, 1)
        if nbytes > SHMRING_CELL_NBYTES and not queue.has_bytes:
            segment.reserve(start + cells_nbytes, self.queues.ring_nbytes)
            queue.has_bytes = True
        return 0

    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1:
        """Send if all of the message fits the pair queue now; else False, and nothing is sent."""
        cdef send_queue_t *queue = &self.queues.send[peer]
        cdef int64_t started = message_started(timeline_of(self.engine))
        if peer == self.rank:
            return False
        if not queue.is_open or (not queue.has_bytes and a.nbytes > SHMRING_CELL_NBYTES):
            self.open_pair_queue(peer, a.nbytes)
        if not self.start_whole(a, peer, tag):
            return False
        if a.nbytes <= BRIEF_NBYTES:
            push(&self.queues, peer)
        else:
            with nogil:
                push(&self.queues, peer)
        note_message(timeline_of(self.engine), KIND_SEND, peer, tag, a.nbytes, queue.number, started)
        return True

    cdef bint start_whole(self, array_t *a, int peer, int tag) noexcept nogil:
        """Start a message that fits the pair queue as it is, to be pushed by the caller; else False."""
        cdef send_queue_t *queue = &self.queues.send[peer]
        if (queue.nqueued or not queue.is_open or (not queue.has_bytes and a.nbytes > SHMRING_CELL_NBYTES)
                or not takes_whole(&self.queues, peer, a.data, a.nbytes)):
            return False
        start_message(&self.queues, peer, a.data, a.nbytes, tag, a.dtype)
        return True

    cdef Message recv_spinning(self, array_t *a, int peer, int tag, bint *has_spun):
        """The message, if it arrives while spinning and no request is pending; else None.

        It is complete unless the pair queue is still busy with it; then the caller continues.
        """
        cdef arrival_t found
        cdef int64_t started = message_started(timeline_of(self.engine))
        if self.posted or self.unexpected or self.nunderway:
            return None
        if not self.take_at_once(a, peer, tag, self.engine.c.brief_looks, &found):
            self.count_posted(peer, 1)
            with nogil:
                has_spun[0] = spin(&self.queues) == UNREADY
            self.count_posted(peer, -1)
            if not self.take_at_once(a, peer, tag, 1, &found):
                return None
        if found.nbytes <= BRIEF_NBYTES:
            pull(&self.queues, found.source)
        else:
            with nogil:
                pull(&self.queues, found.source)
        if self.queues.recv[found.source].is_busy:
            with nogil:
                has_spun[0] = spin(&self.queues) == UNREADY
        if not self.queues.recv[found.source].is_busy:
            self.note_received(&found, started)
        return message_of(found.source, found.tag, found.nbytes, found.code)

    cdef void note_received(self, arrival_t *found, int64_t started_ns) noexcept nogil:
        """Record a message that came without a request."""
        note_message(timeline_of(self.engine), KIND_RECV, found.source, found.tag, found.nbytes,
                     self.queues.recv[found.source].number, started_ns)

    cdef bint take_at_once(self, array_t *a, int peer, int tag, int looks, arrival_t *found) noexcept nogil:
        """Take the message if its first cell is there within ``looks`` polls and it fits; the caller pulls it."""
        cdef shmring_cell *cell
        cdef int _look, j, k
        for _look in range(looks):
            if peer != ANY:
                cell = next_cell(&self.queues, peer)
                if cell != NULL:
                    return self.take_next(a, peer, tag, cell, found)
            else:
                for k in range(self.size):
                    j = (self.next_source + k) % self.size
                    cell = next_cell(&self.queues, j)
                    if cell != NULL:
                        return self.take_next(a, j, tag, cell, found)
            cpu_pause()
        return False

    cdef bint take_next(self, array_t *a, int peer, int tag, shmring_cell *cell, arrival_t *found) noexcept nogil:
        found.source = peer
        found.tag = cell.tag
        found.nbytes = cell.nbytes
        found.code = known_code(cell.dtype)
        if not is_for(ANY, tag, peer, found.tag) or not can_hold(a, found.nbytes, found.code):
            return False
        take_message(&self.queues, peer, found.nbytes, a.data)
        self.next_source = peer + 1
        return True


cdef void run_callbacks(list finished) noexcept:
    """Without the turn. No caller can catch what a callback raises, so it is reported as unraisable."""
    cdef Request r
    for r in finished:
        callbacks, r.callbacks = r.callbacks, None
        for callback in callbacks:
            try:
                callback(r)
            except BaseException as error:
                report_unraisable(error, callback)
