"""Matches messages with requests, as in MPI: posted receives and unexpected messages.

Pending receives are *posted*, in order. The message at the head of a pair queue goes to the first posted receive with
its source and tag. If there is none, but another posted receive needs the messages behind it, it is copied to private
memory as an *unexpected* message; if no posted receive needs that queue, the message stays there, and a full queue
blocks its sender.

Callers have the turn (collectives/p2p/progress.pyx). Nothing here waits.
"""

cimport cython
from libc.string cimport memcpy

from shmring.core.arrays.array_view cimport copy_back
from shmring.collectives.engine.compiled_plan cimport STORES
from shmring.collectives.engine.engine cimport Engine, timeline_of
from shmring.collectives.engine.kinds cimport KIND_RECV, KIND_SEND
from shmring.collectives.engine.recording cimport message_started, note_message, timeline_t
from shmring.collectives.engine.outbox cimport pair_queue_ends_offset, pair_queue_offset
from shmring.collectives.p2p.pair_queue cimport (
    divide_ring, next_cell, pull, push, recv_queue_t, send_queue_t, start_message, take_message, wake_self,
)
from shmring.core.c.layout cimport SHMRING_PAIR_QUEUE_NCELLS, shmring_cell, shmring_pair_queue_end
from shmring.core.memory.mapping cimport Mapping
from shmring.collectives.p2p.requests cimport (ANY, PROBE, RECV, SEND, Message, Request, Unexpected, can_hold, is_for,
                                   message_of, misfit, unexpected_of)


@cython.final
cdef class Matching:
    """The pending messages and requests of one rank, and its pair queues.

    Parameters
    ----------
    engine : Engine
        The engine of the communicator.
    """

    def __cinit__(self, Engine engine not None):
        cdef int size = engine.c.group.size, rank = engine.c.group.rank, j
        cdef size_t ends = pair_queue_ends_offset(engine.config)
        cdef size_t cells_nbytes = SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell)
        cdef char *own = (<Mapping> engine.mappings[rank]).address
        cdef char *theirs
        cdef send_queue_t *o
        cdef recv_queue_t *i
        self.engine = engine
        self.heap = Heap()
        self.rank = rank
        self.size = size
        self.posted = []
        self.unexpected = []
        self.outgoing = [[] for _ in range(size)]
        self.incoming = [None] * size
        self.finished = []
        self.queues.group = &engine.c.group
        self.queues.learns_stores = engine.variants.learns >> STORES & 1
        self.queues.ring_nbytes = engine.config.pair_queue_limit(size)
        # A message is in the sender's and in the receiver's array: two of half the last-level cache fill it.
        self.queues.past_cache_nbytes = engine.c.output_streaming_nbytes // 2
        self.queues.send = <send_queue_t *> self.heap.allocate(size, sizeof(send_queue_t))
        self.queues.recv = <recv_queue_t *> self.heap.allocate(size, sizeof(recv_queue_t))
        for j in range(size):
            theirs = (<Mapping> engine.mappings[j]).address
            o = &self.queues.send[j]
            o.cells = <shmring_cell *> (own + pair_queue_offset(engine.config, size, j))
            divide_ring(o.parts, <char *> o.cells + cells_nbytes, self.queues.ring_nbytes)
            o.own = <shmring_pair_queue_end *> (own + ends) + j
            o.laps.kind = engine.variants.stores
            o.peers = <shmring_pair_queue_end *> (theirs + ends) + rank
            i = &self.queues.recv[j]
            i.cells = <shmring_cell *> (theirs + pair_queue_offset(engine.config, size, rank))
            divide_ring(i.parts, <char *> i.cells + cells_nbytes, self.queues.ring_nbytes)
            i.own = o.own
            i.peers = o.peers

    # ---- starting requests ----

    cdef int start_send(self, Request r) except -1:
        cdef send_queue_t *o = &self.queues.send[r.peer]
        cdef Unexpected unexpected
        r.started_ns = message_started(timeline_of(self.engine))
        if r.peer == self.rank:
            # A message to this rank itself goes through private memory and never blocks.
            unexpected = unexpected_of(message_of(self.rank, r.tag, r.a.nbytes, r.a.dtype))
            o.number += 1
            unexpected.message.number = o.number
            memcpy(unexpected.content, r.a.data, r.a.nbytes)
            unexpected.is_whole = True
            self.add_unexpected(unexpected)
            self.offer(unexpected)
            return self.finish(r, None)
        self.outgoing[r.peer].append(r)
        self.nunderway += 1
        o.nqueued += 1
        if o.nqueued == 1:
            start_message(&self.queues, r.peer, r.a.data, r.a.nbytes, r.tag, r.a.dtype)
            with nogil:
                push(&self.queues, r.peer)
        return 0

    cdef int continue_receive(self, Request r, Message message) except -1:
        """Make a request for what `receive_at_once` did not finish; ``message`` is what it began, if anything."""
        if message is None:
            return self.start_recv(r)
        r.started_ns = message_started(timeline_of(self.engine))
        message.number = self.queues.recv[message.source].number
        r.message = message
        self.incoming[message.source] = r
        self.nunderway += 1
        return 0

    cdef int start_recv(self, Request r) except -1:
        cdef Unexpected unexpected = self.find_unexpected(r)
        r.started_ns = message_started(timeline_of(self.engine))
        if unexpected is not None:
            return self.deliver(unexpected, r)
        self.post(r)
        return 0

    cdef Unexpected find_unexpected(self, Request r):
        cdef Unexpected unexpected
        for unexpected in self.unexpected:
            if unexpected.claimant is None and is_for(r.peer, r.tag, unexpected.message.source, unexpected.message.tag):
                return unexpected
        return None

    cdef int deliver(self, Unexpected unexpected, Request r) except -1:
        """Give an unexpected message to the request once it is complete. If it does not fit, it stays unexpected."""
        if r.kind == PROBE:
            return self.finish(r, unexpected.message)
        if not can_hold(&r.a, unexpected.message.nbytes, unexpected.message.code):
            self.fail(r, misfit(self.engine.name, &r.a, unexpected.message))
            return 0
        if not unexpected.is_whole:
            unexpected.claimant = r
            return 0
        memcpy(r.a.data, unexpected.content, unexpected.message.nbytes)
        self.unexpected.remove(unexpected)
        return self.finish(r, unexpected.message)

    cdef int offer(self, Unexpected unexpected) except -1:
        """Give a new unexpected message to the first posted request with its source and tag."""
        cdef Request r
        for r in list(self.posted):
            if is_for(r.peer, r.tag, unexpected.message.source, unexpected.message.tag):
                self.unpost(r)
                self.deliver(unexpected, r)
                if r.kind == RECV and r.error is None:
                    break
        return 0

    cdef int add_unexpected(self, Unexpected unexpected) except -1:
        self.unexpected.append(unexpected)
        if self.has_sleeper:
            wake_self(&self.queues)     # a thread without the GIL sleeps without a request (await_alone)
        return 0

    cdef int put_back(self, Request r) except -1:
        """Undo a receive: put the message back among the unexpected ones, because the receiving call is about to raise.
        It goes before those that its source sent later. The caller still holds the memory."""
        cdef Unexpected unexpected = unexpected_of(r.message), other
        cdef Py_ssize_t place = 0
        for other in self.unexpected:
            if other.message.source == r.message.source and other.message.number > r.message.number:
                break
            place += 1
        memcpy(unexpected.content, r.a.data, r.message.nbytes)
        unexpected.is_whole = True
        self.unexpected.insert(place, unexpected)
        return self.offer(unexpected)

    cdef void post(self, Request r):
        self.posted.append(r)
        self.count_posted(r.peer, 1)

    cdef void unpost(self, Request r):
        self.posted.remove(r)
        self.count_posted(r.peer, -1)

    cdef void count_posted(self, int peer, int change) noexcept nogil:
        """Count the requests posted for that peer, or for any source."""
        if peer == ANY:
            self.queues.nposted += change
        else:
            self.queues.recv[peer].nposted += change

    # ---- matching ----

    cdef bint match_and_finish(self) except -1:
        """Finish what is complete, start what is next. Whether there was anything to do."""
        cdef int k, j
        cdef bint did = False
        cdef shmring_cell *cell
        cdef Request r
        cdef Unexpected unexpected
        for k in range(self.size):
            j = (self.next_source + k) % self.size
            while self.queues.send[j].nqueued and not self.queues.send[j].is_busy:
                r = self.outgoing[j][0]
                self.finish(r, None)
                self.dequeue(r)
                did = True
                if self.queues.send[j].is_busy:
                    with nogil:
                        push(&self.queues, j)
            while True:
                receiver = self.incoming[j]
                if receiver is not None:
                    if self.queues.recv[j].is_busy:
                        break
                    self.incoming[j] = None
                    self.nunderway -= 1
                    did = True
                    if type(receiver) is Request:
                        self.finish(<Request> receiver, (<Request> receiver).message)
                    else:
                        unexpected = receiver
                        unexpected.is_whole = True
                        if unexpected.claimant is not None:
                            r = unexpected.claimant
                            unexpected.claimant = None
                            self.deliver(unexpected, r)
                if not (self.queues.recv[j].nposted or self.queues.nposted):
                    break
                cell = next_cell(&self.queues, j)
                if cell == NULL or not self.match_next(j, cell):
                    break
                did = True
        return did

    cdef bint match_next(self, int peer, shmring_cell *cell) except -1:
        """Match the message that begins with ``cell``. False: it stays, as no request needs the messages behind it."""
        cdef Message message = message_of(peer, cell.tag, cell.nbytes, cell.dtype)
        cdef Request r
        cdef Unexpected unexpected
        for r in list(self.posted):
            if not is_for(r.peer, r.tag, peer, message.tag):
                continue
            self.unpost(r)
            if r.kind == PROBE:
                self.finish(r, message)
            elif can_hold(&r.a, message.nbytes, message.code):
                r.message = message
                self.next_source = peer + 1
                self.begin(peer, message, r, r.a.data)
                return True
            else:
                self.fail(r, misfit(self.engine.name, &r.a, message))
        if not (self.queues.recv[peer].nposted or self.queues.nposted):
            return False
        unexpected = unexpected_of(message)
        self.add_unexpected(unexpected)
        self.begin(peer, message, unexpected, unexpected.content)
        return True

    cdef int begin(self, int peer, Message message, object receiver, void *target) except -1:
        self.incoming[peer] = receiver
        self.nunderway += 1
        take_message(&self.queues, peer, message.nbytes, target)
        message.number = self.queues.recv[peer].number
        with nogil:
            pull(&self.queues, peer)
        return 0

    cdef int dequeue(self, Request r) except -1:
        """Remove a queued send. If it was the first, start the next message, of which nothing is pushed yet."""
        cdef list queue = self.outgoing[r.peer]
        cdef send_queue_t *o = &self.queues.send[r.peer]
        cdef bint is_first = queue[0] is r
        queue.remove(r)
        o.nqueued -= 1
        self.nunderway -= 1
        if is_first:
            o.is_busy = False
            if queue:
                r = queue[0]
                start_message(&self.queues, r.peer, r.a.data, r.a.nbytes, r.tag, r.a.dtype)
        return 0

    cdef int finish(self, Request r, Message message) except -1:
        with cython.critical_section(r):
            r.message = message
            if r.kind == RECV:
                try:
                    copy_back(r.keeper)
                except Exception as error:      # of this request alone; any thread may be the one that finishes it
                    r.error = error
            r.is_over = True
            self.record(r)
            self.settled(r)
        return 0

    cdef void record(self, Request r) noexcept:
        """In the timeline of this rank."""
        cdef timeline_t *t = timeline_of(self.engine)
        cdef Message m = r.message
        if r.kind == SEND:
            note_message(t, KIND_SEND, r.peer, r.tag, r.a.nbytes, self.queues.send[r.peer].number, r.started_ns)
        elif r.kind == RECV:
            note_message(t, KIND_RECV, m.source, m.tag, m.nbytes, m.number, r.started_ns)

    cdef void fail(self, Request r, object error):
        with cython.critical_section(r):
            r.error = error
            r.is_over = True
            self.settled(r)

    cdef void settled(self, Request r):
        """In the critical section of the request, as `Request.add_done_callback`, which runs without the turn."""
        r.keeper = r.array = None
        if r.callbacks is not None:
            self.finished.append(r)
        if self.has_sleeper:
            wake_self(&self.queues)     # the sleeping thread may wait for this request

    cdef bint withdraw(self, Request r) except -1:
        """Withdraw a request; False if it is partly sent. A partly received message becomes unexpected."""
        cdef Unexpected unexpected
        cdef recv_queue_t *i
        if r.kind == SEND:
            if self.outgoing[r.peer][0] is r and self.queues.send[r.peer].done > 0:
                return False
            self.dequeue(r)
            return True
        if r in self.posted:
            self.unpost(r)
            return True
        for unexpected in self.unexpected:
            if unexpected.claimant is r:
                unexpected.claimant = None
                self.offer(unexpected)
                return True
        for receiver in self.incoming:
            if receiver is r:
                i = &self.queues.recv[r.message.source]
                unexpected = unexpected_of(r.message)
                memcpy(unexpected.content, i.target, i.done)
                i.target = unexpected.content
                self.unexpected.append(unexpected)
                self.incoming[r.message.source] = unexpected
                r.message = None
                self.offer(unexpected)
                return True
        return True
