"""Matching: which message goes where.

Receives that wait are *posted*, in order. A message at the head of a lane goes to the first posted receive that fits
it. If none does but somebody wants what comes behind it in that lane, it is put aside as a *unexpected*, in private memory;
if nobody wants anything of that lane, it stays there, and a full lane holds its sender back.

Who calls here has the turn (p2p/progress.pyx).
"""

from libc.string cimport memcpy

from shmring.arrays.array_view cimport copy_back
from shmring._runtime cimport allocate
from shmring.engine.engine cimport Engine
from shmring.engine.outbox cimport pair_queue_ends_offset, pair_queue_offset
from shmring.p2p.pair_queue cimport (LAPS_TO_TRY, recv_queue_t, next_cell, send_queue_t, pull, push, wake_self, start_message,
                            take_message)
from shmring._c.layout cimport SHMRING_PAIR_QUEUE_NCELLS, shmring_cell, shmring_pair_queue_end
from shmring.memory.mapping cimport Mapping
from shmring.p2p.requests cimport (ANY, PROBE, RECV, SEND, Message, Unexpected, Request, Waiter, can_hold, is_for, message_of,
                               misfit, unexpected_of)


cdef class Matching(Waiter):
    """The messages of one rank that are under way, and the requests that wait for some.

    Parameters
    ----------
    engine : Engine
        Of the communicator.
    """

    def __cinit__(self, Engine engine):
        cdef int size = engine.c.group.size, rank = engine.c.group.rank, j
        cdef size_t ends = pair_queue_ends_offset(engine.config)
        cdef size_t cells_nbytes = SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell)
        cdef char *own = (<Mapping> engine.segments[rank].mapping).address
        cdef char *theirs
        cdef send_queue_t *o
        cdef recv_queue_t *i
        self.engine = engine
        self.blocks = []
        self.rank = rank
        self.size = size
        self.posted = []
        self.unexpected_list = []
        self.outgoing = [[] for _ in range(size)]
        self.incoming = [None] * size
        self.finished = []
        self.l.group = &engine.c.group
        self.l.learns_stores = engine.learns_stores
        self.l.ring_nbytes = engine.config.pair_queue_limit(size)
        # A message lies in the sender's array and in the receiver's: two of half the last-level cache fill it.
        self.l.past_cache_nbytes = engine.c.output_streaming_nbytes // 2
        self.l.out = <send_queue_t *> allocate(self.blocks, size, sizeof(send_queue_t))
        self.l.into = <recv_queue_t *> allocate(self.blocks, size, sizeof(recv_queue_t))
        for j in range(size):
            theirs = (<Mapping> engine.segments[j].mapping).address
            o = &self.l.out[j]
            o.cells = <shmring_cell *> (own + pair_queue_offset(engine.config, size, j))
            o.bytes = <char *> o.cells + cells_nbytes
            o.own = <shmring_pair_queue_end *> (own + ends) + j
            o.stores.tries = LAPS_TO_TRY
            o.streams = engine.config.streaming == 1
            o.peers = <shmring_pair_queue_end *> (theirs + ends) + rank
            i = &self.l.into[j]
            i.cells = <shmring_cell *> (theirs + pair_queue_offset(engine.config, size, rank))
            i.bytes = <char *> i.cells + cells_nbytes
            i.own = o.own
            i.peers = o.peers

    # ---- requests begin and wait ----

    cdef int start_send(self, Request r) except -1:
        cdef send_queue_t *o = &self.l.out[r.peer]
        cdef Unexpected unexpected
        if r.peer == self.rank:
            # To oneself through private memory: it never waits, whatever its size.
            unexpected = unexpected_of(message_of(self.rank, r.tag, r.a.nbytes, r.a.dtype))
            memcpy(unexpected.content, r.a.data, r.a.nbytes)
            unexpected.is_whole = True
            self.unexpected_list.append(unexpected)
            self.offer(unexpected)
            return self.finish(r, None)
        self.outgoing[r.peer].append(r)
        self.nunderway += 1
        o.nqueued += 1
        if o.nqueued == 1:
            start_message(&self.l, r.peer, r.a.data, r.a.nbytes, r.tag, r.a.dtype)
            self.move(r.peer, False)
        return 0

    cdef int go_on_receiving(self, Request r, Message message) except -1:
        """Queue what ``recv_soon`` did not finish; ``message`` is what it began."""
        if message is None:
            return self.start_recv(r)
        r.message = message
        self.incoming[message.source] = r
        self.nunderway += 1
        return 0

    cdef int start_recv(self, Request r) except -1:
        cdef Unexpected unexpected = self.find_unexpected(r)
        if unexpected is not None:
            return self.open_unexpected(unexpected, r)
        self.post(r)
        return 0

    cdef Unexpected find_unexpected(self, Request r):
        cdef Unexpected unexpected
        for unexpected in self.unexpected_list:
            if unexpected.claimant is None and is_for(r.peer, r.tag, unexpected.message.source, unexpected.message.tag):
                return unexpected
        return None

    cdef int open_unexpected(self, Unexpected unexpected, Request r) except -1:
        """Give the unexpected to the request, once it is whole; what does not fit it stays a unexpected."""
        if r.kind == PROBE:
            return self.finish(r, unexpected.message)
        if not can_hold(&r.a, unexpected.message.nbytes, unexpected.message.code):
            self.fail(r, misfit(self.engine.name, &r.a, unexpected.message))
            return 0
        if not unexpected.is_whole:
            unexpected.claimant = r
            return 0
        memcpy(r.a.data, unexpected.content, unexpected.message.nbytes)
        self.unexpected_list.remove(unexpected)
        return self.finish(r, unexpected.message)

    cdef int offer(self, Unexpected unexpected) except -1:
        """Give a new unexpected to the first posted request that it fits."""
        cdef Request r
        for r in list(self.posted):
            if is_for(r.peer, r.tag, unexpected.message.source, unexpected.message.tag):
                self.unpost(r)
                self.open_unexpected(unexpected, r)
                if r.kind == RECV and r.error is None:
                    break
        return 0

    cdef void post(self, Request r):
        self.posted.append(r)
        self.want(r.peer, 1)

    cdef void unpost(self, Request r):
        self.posted.remove(r)
        self.want(r.peer, -1)

    cdef void want(self, int peer, int more) noexcept:
        """Count who asks for what comes next from that peer, or from anybody."""
        if peer == ANY:
            self.l.nwanted += more
        else:
            self.l.into[peer].nwanted += more

    # ---- what only the interpreter can decide ----

    cdef bint attend(self) except -1:
        """Finish what is over, begin what is next. Whether anything was to be done."""
        cdef int k, j
        cdef bint did = False
        cdef list queue
        cdef shmring_cell *cell
        cdef Request r
        cdef Unexpected unexpected
        for k in range(self.size):
            j = (self.turn_of_source + k) % self.size
            while self.l.out[j].nqueued and not self.l.out[j].is_busy:
                queue = self.outgoing[j]
                r = queue.pop(0)
                self.l.out[j].nqueued -= 1
                self.nunderway -= 1
                self.finish(r, None)
                did = True
                if queue:
                    r = queue[0]
                    start_message(&self.l, j, r.a.data, r.a.nbytes, r.tag, r.a.dtype)
                    self.move(j, False)
            while True:
                whose = self.incoming[j]
                if whose is not None:
                    if self.l.into[j].is_busy:
                        break
                    self.incoming[j] = None
                    self.nunderway -= 1
                    did = True
                    if type(whose) is Request:
                        self.finish(<Request> whose, (<Request> whose).message)
                    else:
                        unexpected = whose
                        unexpected.is_whole = True
                        if unexpected.claimant is not None:
                            r = unexpected.claimant
                            unexpected.claimant = None
                            self.open_unexpected(unexpected, r)
                if not (self.l.into[j].nwanted or self.l.nwanted):
                    break
                cell = next_cell(&self.l, j)
                if cell == NULL or not self.match_next(j, cell):
                    break
                did = True
        return did

    cdef bint match_next(self, int peer, shmring_cell *cell) except -1:
        """Decide where the message that begins with ``cell`` goes. False: it stays, nobody wants what is behind it."""
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
                self.turn_of_source = peer + 1
                self.begin(peer, message, r, r.a.data)
                return True
            else:
                self.fail(r, misfit(self.engine.name, &r.a, message))
        if not (self.l.into[peer].nwanted or self.l.nwanted):
            return False
        unexpected = unexpected_of(message)
        self.unexpected_list.append(unexpected)
        self.begin(peer, message, unexpected, unexpected.content)
        return True

    cdef int begin(self, int peer, Message message, object whose, void *target) except -1:
        self.incoming[peer] = whose
        self.nunderway += 1
        take_message(&self.l, peer, message.nbytes, target)
        return self.move(peer, True)

    cdef int move(self, int peer, bint inwards) except -1:
        with nogil:
            if inwards:
                pull(&self.l, peer)
            else:
                push(&self.l, peer)
        return 0

    cdef int finish(self, Request r, Message message) except -1:
        r.message = message
        r.is_over = True
        if r.kind == RECV:
            copy_back(r.keeper)
        self.settled(r)
        return 0

    cdef void fail(self, Request r, object error):
        r.error = error
        r.is_over = True
        self.settled(r)

    cdef void settled(self, Request r):
        r.keeper = r.array = None
        if r.callbacks is not None:
            self.finished.append(r)
        if self.is_awaited:
            wake_self(&self.l)     # it may be what the sleeping thread waits for

    cdef bint withdraw(self, Request r) except -1:
        """Whether the request could be taken back. A message that is half in is put aside."""
        cdef Unexpected unexpected
        cdef list queue
        cdef recv_queue_t *i
        cdef send_queue_t *o
        cdef Request first
        if r.kind == SEND:
            queue = self.outgoing[r.peer]
            o = &self.l.out[r.peer]
            if queue[0] is r and o.done > 0:
                return False
            is_first = queue[0] is r
            queue.remove(r)
            o.nqueued -= 1
            self.nunderway -= 1
            if is_first:
                o.is_busy = False
                if queue:
                    first = queue[0]
                    start_message(&self.l, r.peer, first.a.data, first.a.nbytes, first.tag, first.a.dtype)
            return True
        if r in self.posted:
            self.unpost(r)
            return True
        for unexpected in self.unexpected_list:
            if unexpected.claimant is r:
                unexpected.claimant = None
                self.offer(unexpected)
                return True
        for whose in self.incoming:
            if whose is r:
                i = &self.l.into[r.message.source]
                unexpected = unexpected_of(r.message)
                memcpy(unexpected.content, i.target, i.done)
                i.target = unexpected.content
                self.unexpected_list.append(unexpected)
                self.incoming[r.message.source] = unexpected
                r.message = None
                self.offer(unexpected)
                return True
        return True
