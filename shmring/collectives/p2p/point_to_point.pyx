"""Point-to-point calls of one communicator in one process.

A call first tries to finish at once, without a request and without the GIL: the pair queue has room, or the message is
there or arrives while spinning. What needs a request (a full pair queue, other requests that are pending, another
thread that sleeps for messages, a message that does not match) is done with the GIL, in the same turn: `Matching` has
the requests and messages of this rank, and `Progress` waits for them.

A thread without the GIL enters by `enter_free`, tries `send_whole` or `receive_free`, and leaves by `leave_free`; or it
takes the GIL, calls `visit`, goes on with requests, and leaves by `leave`.
"""

import numpy as np

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from shmring.core.c.atomics cimport cpu_pause, store_release_u64
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_CELL_NBYTES, SHMRING_PAIR_QUEUE_NCELLS, shmring_cell
from shmring.core.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.core.base.learner cimport tried_us
from shmring.collectives.engine.engine cimport Engine, is_troubled, timeline_of
from shmring.collectives.engine.outbox cimport pair_queue_offset
from shmring.collectives.engine.kinds cimport KIND_RECV, KIND_SEND
from shmring.collectives.engine.recording cimport message_started, note_message
from shmring.collectives.p2p.matching cimport Matching, PyList_GET_SIZE, has_requests
from shmring.collectives.p2p.pair_queue cimport (next_cell, pull, push, send_queue_t, spin, start_message, take_message,
                                     takes_whole, written)
from shmring.collectives.p2p.progress cimport Progress, awaited, give_message_turn, take_message_turn
from shmring.collectives.p2p.requests cimport (
    ANY, OBJECT_BUFFER, OBJECT_STREAM, PROBE, RECV, SEND, Message, Messages, Request, begin_wait, can_hold, check_apart,
    check_tag, is_for, known_code, message_of, request_of, run_callbacks, wait_t,
)
from shmring.core.sync.backoff cimport FRESH, deadline_of, left_until, patience_t
from shmring.core.sync.group cimport READY, UNREADY
from shmring.core.sync.long_waits cimport is_note_due, notes_t
from shmring.core.sync.turn cimport PyThreadState, drop_gil, give_shared_turn, retake_gil, take_shared_turn

from shmring.errors import MessageError, MessageTimeoutError, ObjectError
from shmring.core.kernel.reduce import STORES
from shmring.core.objects.codec import buffer_sizes, dump, load, require_pickle
from shmring.core.objects.open_files import STRANGERS

PARTS = "large", "small"       # of a byte ring, by enum shmring_part

cdef enum:
    BRIEF_NBYTES = 16384         # shorter messages are copied with the GIL held: releasing it takes as long


@cython.final
cdef class PointToPoint(Messages):
    """The sends, receives and probes of one rank of a communicator on one machine.

    Parameters
    ----------
    engine : Engine
        The engine of the communicator.
    """

    def __cinit__(self, Engine engine not None):
        self.engine = engine
        self.matching = Matching(engine)
        self.progress = Progress(engine, self.matching)
        self.rank = self.matching.rank
        self.size = self.matching.size
        self.begun_objects = {}

    cpdef list stats(self):
        """Statistics of the pair queues to other ranks that carried long messages; see `Communicator.stats`."""
        cdef send_queue_t *queue
        cdef uint64_t ring_nbytes = self.matching.queues.ring_nbytes
        cdef int j
        found = []
        for j in range(self.size):
            queue = &self.matching.queues.send[j]
            if queue.has_bytes:
                found.append({
                    "dst": j,
                    "nbytes": ring_nbytes,
                    "laps": (written(queue) + ring_nbytes - 1) // ring_nbytes,
                    "stores": STORES[queue.laps.kind],
                    "part": PARTS[queue.laps.part],
                    "tried_us": tried_us(&queue.laps.learner, 0, STORES) | tried_us(&queue.laps.learner, 1, PARTS),
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
        self.progress.end_waits()
        finished = None
        if self.matching.finished:
            finished, self.matching.finished = self.matching.finished, []
        give_message_turn(self.engine)
        if finished is not None:
            run_callbacks(finished)

    cdef bint enter_free(self) noexcept nogil:
        """As `enter`, and leaves by `leave_free`. False, without the turn: the communicator is unusable, or this thread
        has the turn."""
        if self.engine.is_inherited or not take_shared_turn(&self.engine.message_turn):
            return False
        if not self.engine.is_usable():
            give_shared_turn(&self.engine.message_turn)
            return False
        return True

    cdef void leave_free(self) noexcept nogil:
        if PyList_GET_SIZE(<PyObject *> self.matching.finished):
            with gil:
                visit(self)
                self.leave()
            return
        self.progress.end_waits()
        give_shared_turn(&self.engine.message_turn)

    # ---- calls: each enters and leaves ----

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1:
        if not 0 <= peer < self.size and not (any_is_allowed and peer == ANY):
            raise ValueError(f"rank {peer}: must be from 0 to {self.size - 1}"
                             f"{', or ANY_SOURCE' if any_is_allowed else ''}")
        return 0

    cpdef send(self, x, int dst, int tag, int64_t timeout_ns):
        cdef array_t a
        cdef wait_t wait
        self.check_peer(dst, False)
        check_tag(tag, False)
        keeper = source_array(x, &a, True)
        begin_wait(&wait, timeout_ns)
        self.enter()
        try:
            self.transmit(&a, x, keeper, dst, tag, &wait)
        finally:
            self.leave()

    cpdef recv(self, x, int src, int tag, int64_t timeout_ns):
        cdef array_t a
        self.check_peer(src, True)
        check_tag(tag, True)
        keeper = target_array(x, &a, True)
        return self.receive(&a, x, keeper, src, tag, timeout_ns)

    cdef Message receive(self, array_t *a, object x, object keeper, int peer, int tag, int64_t timeout_ns):
        """Receive into ``a``, the memory of ``x``, which ``keeper`` owns."""
        cdef arrival_t found
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        self.enter()
        try:
            if self.receive_at_once(a, peer, tag, &wait.patience, &found) != READY:
                return self.await_message(None, request_of(self, RECV, peer, tag, a, x, keeper), &found, &wait)
        finally:
            self.leave()
        if keeper is not x:
            copy_back(keeper)
        return message_of(found.source, found.tag, found.nbytes, found.code)

    cpdef sendrecv(self, x, int dst, int tag, out, int src, int out_tag, int64_t timeout_ns):
        cdef array_t a, b
        cdef Request s = None
        cdef arrival_t found
        cdef wait_t wait
        self.check_peer(dst, False)
        self.check_peer(src, True)
        check_tag(tag, False)
        check_tag(out_tag, True)
        keeper = source_array(x, &a, True)
        out_keeper = target_array(out, &b, True)
        check_apart(&a, &b)
        begin_wait(&wait, timeout_ns)
        found.source = ANY
        self.enter()
        try:
            if not self.send_at_once(&a, dst, tag):
                s = request_of(self, SEND, dst, tag, &a, x, keeper)
                self.matching.start_send(s)
            if s is not None or self.receive_at_once(&b, src, out_tag, &wait.patience, &found) != READY:
                return self.await_message(s, request_of(self, RECV, src, out_tag, &b, out, out_keeper), &found, &wait)
        finally:
            self.leave()
        if out_keeper is not out:
            copy_back(out_keeper)
        return message_of(found.source, found.tag, found.nbytes, found.code)

    cpdef isend(self, x, int dst, int tag):
        cdef array_t a
        cdef Request r
        self.check_peer(dst, False)
        check_tag(tag, False)
        keeper = source_array(x, &a, True)
        r = request_of(self, SEND, dst, tag, &a, x, keeper)
        self.enter()
        try:
            self.begin_send(r)
        finally:
            self.leave()
        return r

    cpdef irecv(self, x, int src, int tag):
        cdef array_t a
        cdef Request r
        self.check_peer(src, True)
        check_tag(tag, True)
        keeper = target_array(x, &a, True)
        r = request_of(self, RECV, src, tag, &a, x, keeper)
        self.enter()
        try:
            self.begin_receive(r, NULL)
        finally:
            self.leave()
        return r

    cpdef probe(self, int src, int tag, int64_t timeout_ns):
        """None if no message arrived in time."""
        cdef Request r
        cdef wait_t wait
        self.check_peer(src, True)
        check_tag(tag, True)
        r = request_of(self, PROBE, src, tag, NULL, None, None)
        begin_wait(&wait, timeout_ns)
        self.enter()
        try:
            self.matching.start_recv(r)
            if not self.await_all([r], &wait):
                self.matching.withdraw(r)
                return None
            return r.message
        finally:
            self.leave()

    # ---- their parts that need requests; the caller has entered ----

    cdef bint await_all(self, list requests, wait_t *wait) except -1:
        return self.progress.await_all(requests, wait)

    cdef int transmit(self, array_t *a, object x, object keeper, int peer, int tag, wait_t *wait) except -1:
        """Send ``a``, the memory of ``x``, which ``keeper`` owns."""
        cdef Request r
        if not self.send_at_once(a, peer, tag):
            r = request_of(self, SEND, peer, tag, a, x, keeper)
            self.matching.start_send(r)
            if not self.await_all([r], wait):
                self.progress.give_up([r], None)
        return 0

    cdef Message await_message(self, Request s, Request r, arrival_t *begun, wait_t *wait):
        """Receive by ``r``, which goes on with the message that has begun, if any; the send ``s``, if any, ends as
        well."""
        cdef list requests = [r] if s is None else [r, s]
        self.matching.continue_receive(r, message_begun(begun))
        if not self.await_all(requests, wait):
            self.progress.give_up(requests, None)
        if r.error is not None:
            raise r.error
        return r.message

    cdef int begin_send(self, Request r) except -1:
        if self.send_at_once(&r.a, r.peer, r.tag):
            return self.matching.finish(r, None)
        return self.matching.start_send(r)

    cdef int begin_receive(self, Request r, arrival_t *begun) except -1:
        self.matching.continue_receive(r, message_begun(begun))
        self.matching.match_and_finish()
        return 0

    # ---- objects: several messages, of which none may be lost or fall between those of another object ----

    cpdef send_object(self, obj, int dst, int tag, int64_t timeout_ns):
        require_pickle(self.engine.config.allow_pickle)
        self.check_peer(dst, False)
        header, buffers = dump(obj, self.rank, refusal=None if self.engine.family[dst] else STRANGERS)
        self.send_parts([header, *buffers], dst, tag, timeout_ns)

    cpdef recv_object(self, int src, int tag, int64_t timeout_ns):
        """Parts of an object that is not complete in time are kept for the next call."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef Message message
        cdef list parts
        require_pickle(self.engine.config.allow_pickle)
        while True:
            message = self.probe(src, tag, left_until(deadline_ns, timeout_ns))
            if message is None:
                raise MessageTimeoutError(f"{self.engine.name}: no complete object arrived in time; nothing is lost")
            if not message.is_object:
                raise MessageError(f"the next message from rank {message.source} with tag {message.tag} is an array of "
                                   f"{message.dtype or 'opaque bytes'}, not an object: receive it with recv()")
            src, tag = message.source, message.tag      # the other parts have the same
            parts = self.begun_objects.setdefault((src, tag), [])
            self.recv_part(parts, message, left_until(deadline_ns, timeout_ns))
            try:
                nparts = 1 + len(buffer_sizes(parts[0], src))
            except ObjectError as error:
                self.engine.abort(str(error))
                raise
            if len(parts) == nparts:
                del self.begun_objects[src, tag]
                return load(parts[0], parts[1:], src)

    cdef int send_parts(self, list parts, int peer, int tag, int64_t timeout_ns) except -1:
        """Send the header of an object, and its out-of-band buffers. They are queued together: no other message to
        ``peer`` comes between them."""
        cdef array_t a
        cdef wait_t wait
        cdef list requests = []
        cdef Request r
        cdef uint64_t longest = 0
        self.check_peer(peer, False)
        check_tag(tag, False)
        for part in parts:
            keeper = source_array(part, &a, False)
            a.dtype = OBJECT_BUFFER if requests else OBJECT_STREAM
            longest = max(longest, <uint64_t> a.nbytes)
            requests.append(request_of(self, SEND, peer, tag, &a, part, keeper))
        begin_wait(&wait, timeout_ns)
        self.enter()
        try:
            if peer != self.rank:
                self.open_pair_queue(peer, longest)
            for r in requests:
                self.matching.start_send(r)
            if not self.await_all(requests, &wait):
                self.progress.give_up(requests, None)
        finally:
            self.leave()
        return 0

    cdef int recv_part(self, list parts, Message message, int64_t timeout_ns) except -1:
        """Receive the next part of an object, which `probe` has described, and append it to ``parts``."""
        cdef array_t a
        part = np.empty(message.nbytes, np.uint8)
        keeper = target_array(part, &a, False)
        a.dtype = OBJECT_BUFFER if parts else OBJECT_STREAM
        self.receive(&a, part, keeper, message.source, message.tag, timeout_ns)
        parts.append(part)
        return 0

    cdef int open_pair_queue(self, int peer, uint64_t nbytes) except -1:
        """Reserve the memory that the pair queue to ``peer`` still lacks for a message of ``nbytes`` bytes."""
        cdef send_queue_t *queue = &self.matching.queues.send[peer]
        cdef size_t start = pair_queue_offset(self.engine.config, self.size, peer)
        cdef size_t cells_nbytes = SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell)
        segment = self.engine.segments[self.rank]
        if not queue.is_open:
            if queue.filled_by == NULL:
                queue.filled_by = <uint64_t *> self.matching.heap.allocate(SHMRING_PAIR_QUEUE_NCELLS, sizeof(uint64_t))
            segment.reserve(start, cells_nbytes)
            queue.is_open = True
            fault_point("open")
            # SYNC opened (meets: next_cell in collectives/p2p/pair_queue.pyx). From now on the peer may load its cells.
            store_release_u64(&queue.own.opened, 1)
        if nbytes > SHMRING_CELL_NBYTES and not queue.has_bytes:
            segment.reserve(start + cells_nbytes, self.matching.queues.ring_nbytes)
            queue.has_bytes = True
        return 0

    # ---- at once: without requests, the latter four without the GIL ----

    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1:
        """Send if all of the message fits the pair queue now; else False, and nothing is sent."""
        cdef send_queue_t *queue = &self.matching.queues.send[peer]
        if peer == self.rank:
            return False
        if not queue.is_open or (not queue.has_bytes and a.nbytes > SHMRING_CELL_NBYTES):
            self.open_pair_queue(peer, a.nbytes)
        return self.send_whole(a, peer, tag)

    cdef bint send_whole(self, array_t *a, int peer, int tag) noexcept nogil:
        """Send if all of the message fits the memory that the pair queue has; else False, and nothing is sent."""
        cdef send_queue_t *queue = &self.matching.queues.send[peer]
        cdef int64_t started_ns = message_started(timeline_of(self.engine))
        cdef PyThreadState *state
        if (queue.nqueued or not queue.is_open or (not queue.has_bytes and a.nbytes > SHMRING_CELL_NBYTES)
                or not takes_whole(&self.matching.queues, peer, a.data, a.nbytes)):
            return False
        start_message(&self.matching.queues, peer, a.data, a.nbytes, tag, a.dtype)
        state = drop_gil() if a.nbytes > BRIEF_NBYTES else NULL
        push(&self.matching.queues, peer)
        retake_gil(state)
        note_message(timeline_of(self.engine), KIND_SEND, peer, tag, a.nbytes, queue.number, started_ns)
        return True

    cdef int receive_at_once(self, array_t *a, int peer, int tag, patience_t *patience,
                             arrival_t *found) noexcept nogil:
        """Receive a message that is there or arrives while spinning, if no request is pending. NULL: looks once.

        READY: received. UNREADY: not; ``found.source`` is ANY, or the source of a message that has begun.
        """
        cdef PyThreadState *state
        found.started_ns = message_started(timeline_of(self.engine))
        found.source = ANY
        if has_requests(self.matching):
            return UNREADY
        if not self.take(a, peer, tag, 1 if patience == NULL else self.engine.c.brief_looks, found):
            if patience == NULL:
                return UNREADY
            self.matching.count_posted(peer, 1)
            state = drop_gil()
            spin(&self.matching.queues, patience)
            retake_gil(state)
            self.matching.count_posted(peer, -1)
            if not self.take(a, peer, tag, 1, found):
                return UNREADY
        return self.pull_taken(patience, found)

    cdef int receive_free(self, array_t *a, int peer, int tag, wait_t *wait, arrival_t *found) noexcept nogil:
        """As `receive_at_once`; then sleep until the message comes, for a thread that shares its turn.

        UNREADY also after the timeout, and if the communicator is broken: a request then gives the error. While this
        thread sleeps, others have the turn; `Engine.close` waits for it.
        """
        cdef bint sleeps, has_news
        cdef notes_t notes = notes_t(0, 0)
        if self.receive_at_once(a, peer, tag, &wait.patience, found) == READY:
            return READY
        while found.source == ANY and not has_requests(self.matching) and not self.matching.has_sleeper:
            self.matching.count_posted(peer, 1)
            sleeps = self.progress.before_sleep(wait, awaited(KIND_RECV, peer, tag)) == UNREADY
            has_news = sleeps and self.progress.sleep_free(wait)
            self.matching.count_posted(peer, -1)
            if not sleeps or not self.engine.is_usable():
                break
            if is_note_due(&notes, wait.began_ns):
                self.progress.note_wait(peer, wait.began_ns)
            if self.take(a, peer, tag, 1, found):
                return self.pull_taken(&wait.patience, found)
            if has_news:      # a message that does not match
                break
        return UNREADY

    cdef bint take(self, array_t *a, int peer, int tag, int looks, arrival_t *found) noexcept nogil:
        """Take the message if its first cell is there within ``looks`` polls and it fits; the caller pulls it."""
        cdef int _look, j, k
        for _look in range(looks):
            if peer != ANY:
                if next_cell(&self.matching.queues, peer) != NULL:
                    return self.take_next(a, peer, tag, found)
            else:
                for k in range(self.size):
                    j = (self.matching.next_source + k) % self.size
                    if next_cell(&self.matching.queues, j) != NULL:
                        return self.take_next(a, j, tag, found)
            cpu_pause()
        return False

    cdef bint take_next(self, array_t *a, int peer, int tag, arrival_t *found) noexcept nogil:
        cdef shmring_cell *cell = next_cell(&self.matching.queues, peer)
        cdef int its_tag = cell.tag, code = known_code(cell.dtype)
        cdef uint64_t nbytes = cell.nbytes
        if not is_for(ANY, tag, peer, its_tag) or not can_hold(a, nbytes, code):
            return False
        found.source, found.tag, found.nbytes, found.code = peer, its_tag, nbytes, code
        take_message(&self.matching.queues, peer, nbytes, a.data)
        self.matching.next_source = peer + 1
        return True

    cdef int pull_taken(self, patience_t *patience, arrival_t *found) noexcept nogil:
        """Receive what comes of a message while spinning; READY if that is all of it."""
        cdef PyThreadState *state = drop_gil() if found.nbytes > BRIEF_NBYTES else NULL
        pull(&self.matching.queues, found.source)
        if self.matching.queues.recv[found.source].is_busy and patience != NULL:
            if state == NULL:
                state = drop_gil()
            patience.stage = FRESH
            spin(&self.matching.queues, patience)
        retake_gil(state)
        if self.matching.queues.recv[found.source].is_busy:
            return UNREADY
        note_message(timeline_of(self.engine), KIND_RECV, found.source, found.tag, found.nbytes,
                     self.matching.queues.recv[found.source].number, found.started_ns)
        return READY


cdef inline Message message_begun(arrival_t *begun):
    if begun == NULL or begun.source == ANY:
        return None
    return message_of(begun.source, begun.tag, begun.nbytes, begun.code)
