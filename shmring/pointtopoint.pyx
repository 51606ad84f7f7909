"""Point-to-point messages of one communicator in one process: which message goes where.

Receives that wait are *posted*, in order. A message at the head of a lane goes to the first posted receive that fits
it. If none does but somebody wants what comes behind it in that lane, it is put aside as a *parcel*, in private memory;
if nobody wants anything of that lane, it stays there, and a full lane holds its sender back.

Messages are moved by whichever thread is in a call: there is no thread of our own. Calls take turns; while one sleeps
the turn is free, so a blocked receive shuts out nobody. One thread at a time dozes on behalf of all.
"""

import copy
from queue import Empty, SimpleQueue

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from shmring.arrays cimport array_t, fast_array, give_back, source_array, target_array
from shmring.atomics cimport cpu_pause, store_relaxed_u64, store_release_u64
from shmring.blocks cimport allocate
from shmring.engine cimport Engine, lane_ends_offset, lane_offset
from shmring.faults cimport fault_point
from shmring.lanes cimport (LAPS_TO_TRY, doze, has_lost_somebody, inlet_t, next_cell, outlet_t, pull, pump, push,
                            rouse_self, run_lanes, start_message, take_message, takes_whole)
from shmring.layout cimport (SHMRING_CELL_NBYTES, SHMRING_LANE_NCELLS, shmring_cell,
                             shmring_lane_end)
from shmring.mapping cimport Mapping
from shmring.signature cimport KIND_PROBE, KIND_RECV, KIND_SEND, pack_signature
from shmring.wait cimport PUBLISHED, READY, TROUBLE, UNREADY, now_ns, report_late

from shmring.dtypes import DTYPE_CODES, DTYPES
from shmring.errors import BrokenError, ClosedError, MessageTimeoutError, MessageTooLongError
from shmring.unraisable import report_unraisable

ANY_SOURCE = ANY
ANY_TAG = ANY

cdef int BYTES = DTYPE_CODES["uint8"]

cdef enum:               # kinds of requests
    SEND = 0
    RECV = 1
    PROBE = 2

cdef int N_CODES = len(DTYPES)

cdef enum:
    OPAQUE_BYTES = -1            # the dtype of what is not in dtypes.DTYPES
    BRIEF_NBYTES = 16384         # is copied with the GIL held: about as long as it takes to give and get it back
    FIRST_TICK_NS = 1000000


# ---- what callers get ------------------------------------------------------------------------------------------------

@cython.final
@cython.freelist(64)
cdef class Message:
    """What is known of a message: where it came from and how long it is.

    Attributes
    ----------
    source : int
        The rank that sent it.
    tag : int
        What it was sent with.
    nbytes : int
        Its length in bytes.
    """

    @property
    def dtype(self):
        """The name of its element type; None if it is opaque bytes (structures and the like)."""
        return DTYPES[self.code].name if self.code >= 0 else None

    @property
    def count(self):
        """Its length in elements; in bytes if it is opaque."""
        return self.nbytes // DTYPES[self.code].itemsize if self.code >= 0 else self.nbytes

    def __eq__(self, other):
        if type(other) is not Message:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.source, self.tag, self.nbytes, self.code))

    def __reduce__(self):
        return _message, (self.source, self.tag, self.nbytes, self.code)

    def __repr__(self):
        return f"Message(source={self.source}, tag={self.tag}, nbytes={self.nbytes}, dtype={self.dtype!r})"


def _message(int source, int tag, uint64_t nbytes, int code):
    return message_of(source, tag, nbytes, code)


cdef inline Message message_of(int source, int tag, uint64_t nbytes, int code):
    cdef Message message = Message.__new__(Message)
    message.source = source
    message.tag = tag
    message.nbytes = nbytes
    message.code = code if code < N_CODES else OPAQUE_BYTES      # a peer wrote it, and it will be an index
    return message


@cython.final
cdef class Request:
    """A send or receive under way; made by `Communicator.isend` and `Communicator.irecv`.

    It proceeds while some thread of this process is in a point-to-point call of the same communicator, `done` and
    `wait` included, and at no other time. Until it is done, what is sent must not be changed, and what is received
    into must not be used. Any thread may ask.
    """

    cdef int settle(self, int64_t timeout_ns) except -1:
        """Wait until it is over, however it ends, for at most ``timeout_ns``."""
        cdef bint came
        if self.is_over:
            return 0
        try:
            self.owner.enter()
            try:
                came = self.owner.await_all([self], timeout_ns)
            finally:
                self.owner.leave()
        except (BrokenError, ClosedError) as error:
            if not self.is_over:
                self.error = error
                self.is_over = True
            return 0
        if not came:
            raise MessageTimeoutError(f"{self!r}: not done in time; it goes on")
        return 0

    def wait(self, timeout=None):
        """Wait until it is done.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever. If they pass the request goes on, and `wait` may be called again.

        Returns
        -------
        Message or None
            What was received; None for a send.

        Raises
        ------
        MessageTimeoutError
            It is not done; nothing changed.
        MessageTooLongError, TypeError
            The message does not fit the array. It stays receivable.
        PeerLostError, AbortedError, CollectiveTimeoutError, ClosedError
            The communicator is broken or closed.
        """
        self.settle(-1 if timeout is None else <int64_t> (max(0.0, min(float(timeout), 9e9)) * 1e9))
        if self.error is not None:
            raise copy.copy(self.error)
        return self.message

    def result(self, timeout=None):
        """The same as `wait`, under the name that futures have for it.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever.

        Returns
        -------
        Message or None
        """
        return self.wait(timeout)

    def exception(self, timeout=None):
        """Wait until it is done and tell how it failed.

        Parameters
        ----------
        timeout : float, optional
            Seconds; None for ever.

        Returns
        -------
        Exception or None
            What `wait` would raise; None if all went well.
        """
        self.settle(-1 if timeout is None else <int64_t> (max(0.0, min(float(timeout), 9e9)) * 1e9))
        return self.error

    def done(self):
        """Whether it is over, with or without success; moves what can be moved first, without waiting."""
        if not self.is_over:
            try:
                self.settle(0)
            except MessageTimeoutError:
                pass
        return self.is_over

    def add_done_callback(self, callback):
        """Have ``callback(request)`` called once it is over; at once if it is.

        Parameters
        ----------
        callback : callable
            Called by the thread that finds it over, outside of any turn: it may make calls.
        """
        if self.is_over:
            callback(self)
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def __await__(self):
        return _wait_among_tasks(self).__await__()

    def __repr__(self):
        whom = "anyone" if self.peer == ANY else f"rank {self.peer}"
        what = f"isend to {whom}" if self.kind == SEND else f"irecv from {whom}"
        state = "under way" if not self.is_over else "done" if self.error is None else type(self.error).__name__
        return f"<Request: {what}, tag {'any' if self.tag < 0 else self.tag}, {self.a.nbytes} bytes, {state}>"


async def _wait_among_tasks(request):
    """Ask again and again, at first at every turn of the event loop, then every millisecond."""
    import asyncio
    pause_s = 0.0
    while not request.done():
        await asyncio.sleep(pause_s)
        pause_s = min(0.001, 2 * pause_s + 1e-5)
    return request.wait(0)


@cython.final
cdef class Parcel:
    """A message put aside in private memory, or on its way there."""

    def __dealloc__(self):
        free(self.content)


cdef Parcel parcel_of(Message message):
    cdef Parcel parcel = Parcel.__new__(Parcel)
    parcel.message = message
    parcel.content = <char *> malloc(max(message.nbytes, <uint64_t> 1))
    if parcel.content == NULL:
        raise MemoryError(f"no memory to put aside a message of {message.nbytes} bytes from rank {message.source}")
    return parcel


cdef Request request_of(PointToPoint owner, int kind, int peer, int tag, array_t *a, object x, object keeper):
    cdef Request r = Request.__new__(Request)
    r.owner = owner
    r.kind = kind
    r.peer = peer
    r.tag = tag
    if a != NULL:
        r.a = a[0]
    else:
        memset(&r.a, 0, sizeof(array_t))
    r.array = x
    r.keeper = keeper
    return r


# ---- what goes with what ---------------------------------------------------------------------------------------------

cdef inline bint is_for(int peer, int tag, int source, int its_tag) noexcept nogil:
    return (peer == ANY or peer == source) and (tag == its_tag or (tag == ANY and its_tag >= 0))


cdef inline bint can_hold(array_t *a, uint64_t nbytes, int dtype) noexcept nogil:
    return nbytes <= a.nbytes and (dtype == a.dtype or (dtype == OPAQUE_BYTES and a.dtype == BYTES)
                                   or (dtype == BYTES and a.dtype == OPAQUE_BYTES))


cdef object misfit(PointToPoint self, array_t *a, Message message):
    """Why the message cannot go into the array."""
    cdef str where = f"{self.engine.name}: the message from rank {message.source} with tag {message.tag}"
    if message.nbytes > a.nbytes:
        return MessageTooLongError(f"{where} has {message.nbytes} bytes, the array to receive it {a.nbytes}; it stays "
                                   "receivable", message.source, message.tag, message.nbytes)
    found = DTYPES[a.dtype].name if a.dtype >= 0 else "opaque bytes"
    return TypeError(f"{where} is of {message.dtype or 'opaque bytes'}, the array to receive it of {found}; it stays "
                     "receivable")


cdef inline int check_tag(int tag, bint any_is_allowed) except -1:
    if tag < 0 and not (any_is_allowed and tag == ANY):
        raise ValueError(f"tag={tag}: must be from 0 to {MOST_TAG}{', or ANY_TAG' if any_is_allowed else ''}")
    return 0


@cython.final
cdef class PointToPoint:
    """The sends, receives and probes of one rank.

    Parameters
    ----------
    engine : Engine
        Of the communicator.
    """

    def __cinit__(self, Engine engine):
        cdef int size = engine.c.circle.size, rank = engine.c.circle.rank, j
        cdef size_t ends = lane_ends_offset(engine.config)
        cdef size_t cells_nbytes = SHMRING_LANE_NCELLS * sizeof(shmring_cell)
        cdef char *own = (<Mapping> engine.segments[rank].mapping).address
        cdef char *theirs
        cdef outlet_t *o
        cdef inlet_t *i
        self.engine = engine
        self.blocks = []
        self.rank = rank
        self.size = size
        self.posted = []
        self.parcels = []
        self.outgoing = [[] for _ in range(size)]
        self.incoming = [None] * size
        self.finished = []
        self.turn = SimpleQueue()      # as in engine.pyx: no semaphores
        self.news = SimpleQueue()
        self.l.circle = &engine.c.circle
        self.l.learns_stores = engine.learns_stores
        self.l.ring_nbytes = engine.config.lane_limit(size)
        # A message lies in the sender's array and in the receiver's: two of half the last-level cache fill it.
        self.l.past_cache_nbytes = engine.c.output_streaming_nbytes // 2
        self.l.out = <outlet_t *> allocate(self.blocks, size, sizeof(outlet_t))
        self.l.into = <inlet_t *> allocate(self.blocks, size, sizeof(inlet_t))
        for j in range(size):
            theirs = (<Mapping> engine.segments[j].mapping).address
            o = &self.l.out[j]
            o.cells = <shmring_cell *> (own + lane_offset(engine.config, size, j))
            o.bytes = <char *> o.cells + cells_nbytes
            o.own = <shmring_lane_end *> (own + ends) + j
            o.stores.tries = LAPS_TO_TRY
            o.streams = engine.config.streaming == 1
            o.peers = <shmring_lane_end *> (theirs + ends) + rank
            i = &self.l.into[j]
            i.cells = <shmring_cell *> (theirs + lane_offset(engine.config, size, rank))
            i.bytes = <char *> i.cells + cells_nbytes
            i.own = o.own
            i.peers = o.peers

    def stats(self):
        """What is known of the lanes to other ranks that carried long messages; see `MessageCalls.stats`."""
        cdef outlet_t *o
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
            self.take_turn()
            if e.trouble is not None:
                self.give_turn()
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
        self.give_turn()
        self.engine.nvisitors -= 1
        if self.finished:
            run_callbacks(self)

    cdef int take_turn(self) except -1:
        while self.is_busy:     # read and written with the GIL held
            if self.holder == PyThread_get_thread_ident():
                raise RuntimeError(f"{self.engine.name}: a call inside a point-to-point call of the same thread")
            self.nwaiting += 1
            try:
                self.turn.get()
            finally:
                self.nwaiting -= 1
        self.is_busy = True
        self.holder = PyThread_get_thread_ident()
        return 0

    cdef void give_turn(self) noexcept:
        self.is_busy = False
        if self.nwaiting > 0:
            self.turn.put(None)

    # ---- calls: at once if possible ----

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
            give_back(keeper)
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
            give_back(kept)
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

    cdef int open_lane(self, int peer, uint64_t nbytes) except -1:
        """Give the lane to ``peer`` what memory it still needs for a message of so many bytes."""
        cdef outlet_t *o = &self.l.out[peer]
        cdef size_t start = lane_offset(self.engine.config, self.size, peer)
        cdef size_t cells_nbytes = SHMRING_LANE_NCELLS * sizeof(shmring_cell)
        segment = self.engine.segments[self.rank]
        if not o.is_open:
            if o.filled_by == NULL:
                o.filled_by = <uint64_t *> allocate(self.blocks, SHMRING_LANE_NCELLS, sizeof(uint64_t))
            segment.reserve(start, cells_nbytes)
            o.is_open = True
            fault_point("open")
            # SYNC opened (meets: next_cell in lanes.pyx). From here on the peer may read there.
            store_release_u64(&o.own.opened, 1)
        if nbytes > SHMRING_CELL_NBYTES and not o.has_bytes:
            segment.reserve(start + cells_nbytes, self.l.ring_nbytes)
            o.has_bytes = True
        return 0

    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1:
        """Send what needs no waiting: False if the lane cannot take it to its end now, and nothing of it is in."""
        cdef outlet_t *o = &self.l.out[peer]
        if peer == self.rank:
            return False
        if not o.is_open or (not o.has_bytes and a.nbytes > SHMRING_CELL_NBYTES):
            self.open_lane(peer, a.nbytes)
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
        if self.posted or self.parcels or self.nunderway:
            return None
        message = self.recv_at_once(a, peer, tag, self.engine.c.brief_looks)
        if message is None:
            self.want(peer, 1)
            with nogil:
                has_spun[0] = run_lanes(&self.l) == UNREADY
            self.want(peer, -1)
            message = self.recv_at_once(a, peer, tag, 1)
        if message is not None and self.l.into[message.source].is_busy:
            with nogil:
                has_spun[0] = run_lanes(&self.l) == UNREADY
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

    # ---- calls: the long way ----

    cdef int start_send(self, Request r) except -1:
        cdef outlet_t *o = &self.l.out[r.peer]
        cdef Parcel parcel
        if r.peer == self.rank:
            # To oneself through private memory: it never waits, whatever its size.
            parcel = parcel_of(message_of(self.rank, r.tag, r.a.nbytes, r.a.dtype))
            memcpy(parcel.content, r.a.data, r.a.nbytes)
            parcel.is_whole = True
            self.parcels.append(parcel)
            self.offer(parcel)
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
        cdef Parcel parcel = self.find_parcel(r)
        if parcel is not None:
            return self.open_parcel(parcel, r)
        self.post(r)
        return 0

    cdef Parcel find_parcel(self, Request r):
        cdef Parcel parcel
        for parcel in self.parcels:
            if parcel.claimant is None and is_for(r.peer, r.tag, parcel.message.source, parcel.message.tag):
                return parcel
        return None

    cdef int open_parcel(self, Parcel parcel, Request r) except -1:
        """Give the parcel to the request, once it is whole; what does not fit it stays a parcel."""
        if r.kind == PROBE:
            return self.finish(r, parcel.message)
        if not can_hold(&r.a, parcel.message.nbytes, parcel.message.code):
            self.fail(r, misfit(self, &r.a, parcel.message))
            return 0
        if not parcel.is_whole:
            parcel.claimant = r
            return 0
        memcpy(r.a.data, parcel.content, parcel.message.nbytes)
        self.parcels.remove(parcel)
        return self.finish(r, parcel.message)

    cdef int offer(self, Parcel parcel) except -1:
        """Give a new parcel to the first posted request that it fits."""
        cdef Request r
        for r in list(self.posted):
            if is_for(r.peer, r.tag, parcel.message.source, parcel.message.tag):
                self.unpost(r)
                self.open_parcel(parcel, r)
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
        cdef Parcel parcel
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
                        parcel = whose
                        parcel.is_whole = True
                        if parcel.claimant is not None:
                            r = parcel.claimant
                            parcel.claimant = None
                            self.open_parcel(parcel, r)
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
        cdef Parcel parcel
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
                self.fail(r, misfit(self, &r.a, message))
        if not (self.l.into[peer].nwanted or self.l.nwanted):
            return False
        parcel = parcel_of(message)
        self.parcels.append(parcel)
        self.begin(peer, message, parcel, parcel.content)
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
            give_back(r.keeper)
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
            rouse_self(&self.l)     # it may be what the thread that dozes waits for

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
                    self.break_down()
                if outcome == 0:
                    return False
                continue
            outcome = UNREADY
            if not has_spun:
                with nogil:
                    outcome = run_lanes(&self.l)
            has_spun = False
            if outcome == READY:
                continue
            if outcome == TROUBLE:
                self.break_down()
            now = now_ns()
            if timeout_ns > 0:
                if deadline_ns < 0:
                    deadline_ns = now + min(timeout_ns, INT64_MAX - now)
                if now >= deadline_ns:
                    return False
            with nogil:
                is_lost = has_lost_somebody(&self.l, False)
            if is_lost:
                self.break_down()
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
            tick_ns = min(2 * tick_ns, self.l.circle.tick_ns)

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
                self.give_turn()
                with nogil:
                    doze(&self.l, tick_ns, changes)
            else:
                rouse_self(&self.l)      # it sleeps for less than what is awaited by now
                self.nfollowers += 1
                self.give_turn()
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
                self.take_turn()
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
            report_late(&self.engine.c.circle, PUBLISHED, lost.peer, 0, signature_of(lost))
            self.break_down()
        self.engine.abort(f"{raised} in the middle of a message")
        return 0

    cdef bint withdraw(self, Request r) except -1:
        """Whether the request could be taken back. A message that is half in is put aside."""
        cdef Parcel parcel
        cdef list queue
        cdef inlet_t *i
        cdef outlet_t *o
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
        for parcel in self.parcels:
            if parcel.claimant is r:
                parcel.claimant = None
                self.offer(parcel)
                return True
        for whose in self.incoming:
            if whose is r:
                i = &self.l.into[r.message.source]
                parcel = parcel_of(r.message)
                memcpy(parcel.content, i.target, i.done)
                i.target = parcel.content
                self.parcels.append(parcel)
                self.incoming[r.message.source] = parcel
                r.message = None
                self.offer(parcel)
                return True
        return True

    cdef int break_down(self) except -1:
        if self.engine.trouble is None:
            self.engine.trouble = self.engine.diagnose()
        raise copy.copy(self.engine.trouble)


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
