"""Queues: the interface of ``multiprocessing.Queue``, over a ring whose ends go from process to process.

A ring has one producer and one consumer at a time. Its counters always stand between two frames, so another process
can continue where the last one stopped, or died. The holder of a lock owns an end; when it dies, another process
inherits the lock (core/sync/lock.pyx). An item longer than the ring streams through it; a consumer that has its
beginning waits for the rest. An item that its producer gave up, or did not live to complete, is *torn*: the next
producer retracts it, or the next process that looks for an item. A consumer that has its beginning drops that.

A queue with `maxsize` counts the items in its ring and those that living processes are putting, each process in a word
of its own: the count of a process ends with the process. So a place is taken, and given back, by one store.

Event loops and `shmring.wait` wait for a descriptor, which all processes of the queue have: readable while the
*signal* is raised. A producer raises it before it puts an item, unless it is raised; a consumer clears it once the ring
is empty. Until a process calls `fileno` the signal stays raised, so neither side makes a system call. Processes that
share a name have no descriptor in common: there each has one of its own, which its waiter thread makes readable
(core/sync/notifier.pyx).

A process that has a queue without a name is a *prospect* (core/ring/prospects.pyx): it may put an item. Where there is
none any more, a consumer that waits learns so.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from libc.stdint cimport UINT32_MAX, int64_t, uint32_t, uint64_t

import os
import queue
import sys
from types import GenericAlias

from shmring.core.c.atomics cimport (compare_swap_u64, full_fence, load_acquire_u64, load_relaxed_u32, load_relaxed_u64,
                                 store_relaxed_u32, store_relaxed_u64, store_release_u64)
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_MEMBERS_MAX
from shmring.core.base.timeouts cimport forgiving_timeout_to_ns
from shmring.core.arrays cimport numpy_api as cnp
from shmring.channels.message_codec cimport encode, encode_pickled, message_t, pickle_object, unpickle_block
from shmring.channels.receiver cimport take_bytes
from shmring.channels.sender cimport put_bytes, too_many_blocks
from shmring.core.ring.blocking cimport CORRUPT, GONE, LATE, drive, shared_sleeper, wake_at_once
from shmring.core.ring.framing cimport PIECE, WORD_NBYTES, frame_t, kind_of, next_frame
from shmring.core.ring.prospects cimport Passage, arrive, prospects_of
from shmring.core.sync.backoff cimport (
    BROKEN, CHECK, TICK, back_off, before_wake, deadline_of, end_wait, is_past_deadline, left_until, patience_t,
    sem_post, sleeper_t,
)
from shmring.core.sync.group cimport READY, UNREADY
from shmring.core.sync.liveness cimport fork_generation
from shmring.core.sync.lock cimport (
    TICK_NS, is_gone, is_locked, is_member, lock_release, lock_try, lock_within, take_lock,
)
from shmring.core.sync.notifier cimport Notifier, disarm

from shmring.core.base.weak_set import WeakSet
from shmring.channels import aio
from shmring.channels.memory import QUEUE_CAPACITY_NBYTES, create_queue, open_queue
from shmring.channels.receiver import PickledContent
from shmring.errors import ClosedError, PeerLostError
from shmring.core.objects.codec import Dumped

cnp.import_array()

cdef extern from "Python.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd_write(int descriptor, uint64_t value)
    int eventfd_read(int descriptor, uint64_t *value)

cdef enum:
    RAISED = 1                 # values of the signal's word, beside 0: not raised
    UNSURE = 2

cdef enum:
    # Of join(): several processes may be in it, with one waiter word. And of a wait for a place, which the death of a
    # process gives back without a wake-up.
    LONGEST_SLEEP_NS = 20000000
    YIELDS = 4

# What the waiter thread of a process waits for, in a queue with a name.
ctypedef struct announced_t:
    const shmring_ring *ring
    sleeper_t sleeper

cdef object queues = WeakSet()      # of this process


cdef inline bint is_holder(const uint64_t *holder) noexcept nogil:
    """Whether the calling thread is the holder; no other thread stores its number."""
    return load_relaxed_u64(holder) == PyThread_get_thread_ident()


@cython.no_gc
cdef class Queue:
    """A queue between processes, to be used like `multiprocessing.Queue`: any number may put, and any number get.

    Parameters
    ----------
    maxsize : int, default 0
        The most items in the queue; 0 or less: as many as there is room for.
    capacity_nbytes : int, optional
        Memory for the items, reserved at once; by default 8 MiB. A longer item streams through it.
    allow_pickle : bool, optional
        Whether the queue carries items that must be pickled; unpickling runs code that the producer chose. By default
        the setting of the same name, in each process.
    name : str, optional
        Any text: processes of the same user that give the same name have the same queue. The first decides about
        ``maxsize`` and ``capacity_nbytes``; a later one that gives them, too, must give the same. None: processes get
        the queue through a fork, or in the arguments of a process of multiprocessing, by any start method.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    SegmentError
        The segment of that name does not belong to this user, or is not a queue like this one.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    A name exists as long as one object that was made with it is open; then the items are gone, too. Such a queue
    pickles as its name.

    Items keep their order; ``bytes`` and plain contiguous arrays are sent without pickle, all other items by pickle 5.
    If a process is killed in a call, at most the item of that call is lost.

    Differences from ``multiprocessing.Queue``: there is no feeder thread and no unbounded buffer, so `put` returns when
    the item is in shared memory, and waits while that is full; `put` raises for an item that cannot be pickled.
    """

    __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, maxsize=0, *, capacity_nbytes=None, allow_pickle=None, name=None):
        if self.q != NULL:
            raise RuntimeError("this queue was made already: __init__ makes it once")
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize={maxsize!r}: must be an int")
        if maxsize > sys.maxsize:
            raise ValueError(f"maxsize={maxsize}: must be at most {sys.maxsize}")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name={name!r}: must be a text that is not empty")
        maxsize = max(maxsize, 0)
        if name is not None:
            self.use(open_queue(name, capacity_nbytes, maxsize, allow_pickle))
        else:
            capacity_nbytes = QUEUE_CAPACITY_NBYTES if capacity_nbytes is None else capacity_nbytes
            self.use(create_queue(capacity_nbytes, maxsize, allow_pickle, with_signal=True))
        queues.add(self)

    def __dealloc__(self):
        self.leave_prospects()
        self.notifier = None           # it waits in a word of the queue

    def __reduce__(self):
        self.require_made()
        if self.has_name:
            return named, (type(self), self.memory.key, self.memory.maxsize, self.memory.capacity_nbytes)
        return adopted, (type(self), self.memory, Passage(self.prospects))

    cdef int use(self, memory) except -1:
        self.memory = memory
        self.mapping = memory.mapping
        self.maxsize = memory.maxsize or UNLIMITED
        self.descriptor = -1 if memory.signal is None else memory.signal.fd
        self.has_name = memory.key is not None
        if memory.signal is not None:
            self.prospects, self.is_prospect = prospects_of(memory.memory, 1), True
            self.prospects.add(0)
        self.make_ends()
        self.ring = <shmring_ring *>(self.mapping.address + <size_t>memory.ring_offset)
        self.q = <shmring_queue *>(self.mapping.address + <size_t>memory.queue_offset)
        self.member.table = self.q.members
        return 0

    cdef int require_made(self) except -1:
        if self.q == NULL:
            raise ClosedError(f"this {type(self).__name__} was not made: its __init__ has not run, or has failed")
        return 0

    cdef int make_ends(self) except -1:
        """Make the ends of this process, not used yet."""
        self.sending_thread = self.receiving_thread = self.placing_thread = self.told_thread = self.polling_thread = 0
        self.holds_receiving = False
        self.sender = Sender(self.memory, "sender")
        self.make_receiver()
        return 0

    cdef int make_receiver(self) except -1:
        self.receiver = Receiver(self.memory, "receiver")
        self.receiver.leaves_pickled = True
        self.receiver.prospects = self.prospects
        return 0

    cdef void leave_prospects(self) noexcept:
        if self.is_prospect:
            self.is_prospect = False
            self.prospects.remove(0)

    # ---- owning an end ----

    cdef bint lock(self, shmring_lock *lock, uint64_t *holder, int64_t timeout_ns) except -1:
        """Take the lock of an end, which its holder alone uses. False after the timeout."""
        if self.is_closed:
            raise ClosedError("this queue is closed")
        if is_holder(holder):
            raise RuntimeError("this thread is in the middle of the same call of this queue: a signal handler or "
                               "finalizer cannot repeat it")
        if not take_lock(lock, &self.member, timeout_ns, self.memory):
            return False
        store_relaxed_u64(holder, PyThread_get_thread_ident())
        return True

    cdef void unlock(self, shmring_lock *lock, uint64_t *holder) noexcept:
        store_relaxed_u64(holder, 0)
        lock_release(lock)

    cdef int have_sender(self) except -1:
        if not self.sender.is_taken:
            self.sender.prepare()
        if load_relaxed_u64(&self.q.is_putting):
            self.retract()
        self.sender.resume()
        return 0

    cdef void retract(self) noexcept:
        """`drop_torn` with the lock of the sending end held; nothing while another process is getting."""
        if is_locked(lock_within(&self.q.receiving, &self.member, GLANCE_NS)):
            self.drop_torn()
            lock_release(&self.q.receiving)

    cdef void drop_torn(self) noexcept:
        """Retract an item that was given up, or that its producer did not live to complete. With both locks held no
        other process uses the counters."""
        cdef uint64_t head
        head = load_relaxed_u64(&self.ring.heads[0].head)
        if <int64_t>(self.q.began - head) >= 0:
            store_release_u64(&self.ring.tail, self.q.began)
            fault_point("retract")
            store_release_u64(&self.ring.sent.messages, self.q.sent)
        else:                          # its beginning was received, and nothing follows it
            store_release_u64(&self.ring.heads[0].head, load_relaxed_u64(&self.ring.tail))
            self.settle()
            store_relaxed_u64(&self.q.getting, 0)
        store_release_u64(&self.q.is_putting, 0)

    cdef void settle(self) noexcept nogil:
        """With both locks held and an empty ring: count the last item of a process that died before it did."""
        store_release_u64(&self.ring.sent.messages, load_relaxed_u64(&self.ring.heads[0].received.messages))

    cdef int have_receiver(self) except -1:
        if not self.receiver.is_taken:
            self.receiver.prepare()
        self.receiver.resume()
        return self.settle_get()

    cdef int settle_get(self) noexcept:
        """Count the item of a process that died, or was interrupted, before it had counted that; then note where this
        process begins, unless it goes on with an item."""
        cdef uint64_t getting = load_relaxed_u64(&self.q.getting)
        cdef uint64_t head = load_relaxed_u64(&self.ring.heads[0].head)
        if self.receiver.target is not None and getting == self.member.id:
            return 0
        if getting and self.q.got_from != head:
            store_release_u64(&self.ring.heads[0].received.messages, self.q.got + 1)
        store_relaxed_u64(&self.q.getting, 0)
        fault_point("settle_get")
        self.q.got_from, self.q.got = head, load_relaxed_u64(&self.ring.heads[0].received.messages)
        # SYNC getting (meets: received_items)
        store_release_u64(&self.q.getting, self.member.id)
        return 0

    cdef void leave_receiver(self) noexcept:
        """Before the lock of the receiving end is released: all that was got is counted, unless it goes on."""
        if self.receiver.target is None:
            store_release_u64(&self.q.getting, 0)

    cdef bint is_given_up(self, bint drops_torn) except -1:
        """Whether no process is putting an item: it would have the lock. With the lock of the receiving end held; if
        ``drops_torn``, what such a process has begun is retracted."""
        if not is_locked(lock_try(&self.q.sending, &self.member)):
            return False
        if load_relaxed_u64(&self.ring.tail) == load_relaxed_u64(&self.ring.heads[0].head):
            self.settle()
        elif drops_torn and load_relaxed_u64(&self.q.is_putting):
            self.drop_torn()
        lock_release(&self.q.sending)
        return True

    cdef bint begin_get(self, int64_t timeout_ns) except -1:
        """Take the lock of the receiving end, unless `hold_receiving` has taken it for this thread."""
        return ((self.holds_receiving and is_holder(&self.receiving_thread))
                or self.lock(&self.q.receiving, &self.receiving_thread, timeout_ns))

    cdef void end_get(self) noexcept:
        self.leave_receiver()
        if not (self.holds_receiving and is_holder(&self.receiving_thread)):
            self.unlock(&self.q.receiving, &self.receiving_thread)

    # ---- places ----

    cdef void keep(self, int64_t n) noexcept nogil:
        """Count so many items more, or less, that this process is putting, or keeps until there is room."""
        cdef uint64_t number = self.member.id & UINT32_MAX, found, value, known
        cdef uint64_t *at = &self.q.kept[number - 1]
        if self.member.joined != fork_generation() + 1:        # a forked child that goes on in its parent's call
            return
        while n > 0:
            known = load_relaxed_u64(&self.q.nkeepers)
            if known >= number or compare_swap_u64(&self.q.nkeepers, known, number):
                break
        while True:
            found = load_relaxed_u64(at)
            value = found if found >> 32 == self.member.id >> 32 else self.member.id >> 32 << 32
            # SYNC kept (meets: kept_items). An item that is counted here no longer is in the ring.
            if compare_swap_u64(at, found, value + <uint64_t>n):
                return

    cdef int take_place(self, int64_t timeout_ns) except -1:
        """Count an item of this process, in a queue with `maxsize` once there are fewer. The caller gives the place
        back by `give_place`, when the item is in the ring, or was given up."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef bint is_busy = False
        cdef gate_t gate
        if not self.lock(&self.q.placing, &self.placing_thread, timeout_ns or GLANCE_NS):
            raise queue.Full(f"there are {placed_items(self)} items in it, and maxsize={self.maxsize}")
        try:
            if not has_place(self):
                # An item of another process counts twice while that process stores it: for an instant.
                timeout_ns = left_until(deadline_ns, timeout_ns) or (GLANCE_NS if kept_items(self.q) else 0)
                gate = gate_t(has_place, &self.q.place_awaited, &self.q.place_given, self.sender.watch.spin_ns)
                if timeout_ns == 0 or drive(await_gate, self, &gate, timeout_ns, &is_busy,
                                            self.memory.writes_notes) == LATE:
                    raise queue.Full(f"there are {placed_items(self)} items in it, and maxsize={self.maxsize}")
            self.keep(1)
        finally:
            self.unlock(&self.q.placing, &self.placing_thread)

    cdef void give_place(self) noexcept nogil:
        self.keep(-1)
        before_wake()
        wake_at_once(&self.q.place_awaited, &self.q.place_given)

    # ---- putting ----

    def put(self, obj, block=True, timeout=None):
        """Put an item.

        Parameters
        ----------
        obj : object
            Anything that pickles. It may be changed after the call.
        block : bool, default True
            Whether to wait for room.
        timeout : float, optional
            Seconds to wait; None for ever, 0 or less not at all.

        Raises
        ------
        queue.Full
            No room in time. Nothing was put.
        ValueError
            The item is longer than half the capacity, and the call may not wait. Nothing was put.
        ObjectError
            The item does not pickle. Nothing was put.
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = forgiving_timeout_to_ns(timeout) if block else 0
        self.require_made()
        self.put_content(content_of(obj, self.memory), timeout_ns)     # pickling may take long, or fail

    cdef int put_content(self, content, int64_t timeout_ns, const uint32_t *cancelled=NULL) except -1:
        """Put bytes, an array or a `Dumped`; raises as `put`.

        With ``cancelled`` an item that has begun to stream has no timeout, and goes on until that word is not 0.
        """
        cdef int64_t deadline_ns
        self.require_made()
        if is_holder(&self.receiving_thread) and not self.holds_receiving:
            timeout_ns = 0                         # a handler in the middle of get(): no consumer can make room
        if self.maxsize == UNLIMITED:
            return self.put_placed(content, timeout_ns, cancelled)
        deadline_ns = deadline_of(timeout_ns)
        self.take_place(timeout_ns)
        try:
            # No time left is passed on as 1 ns: with 0 a long item is refused.
            return self.put_placed(content, max(left_until(deadline_ns, timeout_ns), <int64_t>1) if timeout_ns > 0
                                   else timeout_ns, cancelled)
        finally:
            self.give_place()

    cdef int put_placed(self, content, int64_t timeout_ns, const uint32_t *cancelled) except -1:
        """`put_content` of an item that has its place."""
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef bint is_begun = False
        if not self.lock(&self.q.sending, &self.sending_thread, timeout_ns or GLANCE_NS):
            raise queue.Full("another producer was putting an item all the time")
        try:
            self.have_sender()
            self.raise_signal()
            fault_point("putting")
            self.q.sent = load_relaxed_u64(&self.ring.sent.messages)
            self.q.began = load_relaxed_u64(&self.ring.tail)
            # SYNC began (meets: is_first_ready)
            store_release_u64(&self.q.is_putting, 1)
            is_begun = True
            self.sender.cancelled = cancelled
            self.send_content(content, timeout_ns, deadline_ns)
            fault_point("put")
            store_release_u64(&self.q.is_putting, 0)
            if self.has_name:
                before_wake()
                wake_at_once(&self.q.watched, NULL)
        except BaseException:
            if is_begun:
                self.retract()         # else the next producer does
            raise
        finally:
            self.sender.cancelled = NULL
            self.unlock(&self.q.sending, &self.sending_thread)

    cdef int send_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1:
        cdef message_t m
        cdef int64_t left
        cdef uint64_t nbytes
        cdef bint has_blocks
        cdef int outcome = READY
        if PyBytes_CheckExact(content) and put_bytes(self.sender, content):
            return 0
        if isinstance(content, Dumped):
            _keeper = encode_pickled(content, &m)
        else:
            _keeper = encode(content, &m)
        if timeout_ns == 0 and m.load.nbytes > self.sender.longest:
            raise ValueError(f"an item of {m.load.nbytes} bytes cannot be put without waiting: at most "
                             f"{self.sender.longest} bytes, half of the capacity, can")
        nbytes = m.load.nbytes
        has_blocks = isinstance(content, Dumped) and content.flight is not None
        if not has_blocks and nbytes <= self.sender.piece and self.sender.send_message(&m, 0) == READY:
            return 0
        self.drop_remains()
        if has_blocks:
            outcome = self.sender.leave_blocks(content.flight, &m, timeout_ns != 0,
                                               left_until(deadline_ns, timeout_ns))
        if outcome == READY:
            left = left_until(deadline_ns, timeout_ns)
            # No time left is passed on as 1 ns: with 0 no message is streamed.
            outcome = self.sender.send_message(&m, max(left, <int64_t>1) if timeout_ns > 0 else left)
        if outcome == LATE:
            raise self.full_error(nbytes)
        if outcome != READY:
            raise too_many_blocks()
        if has_blocks:
            self.sender.hold_blocks(content.flight)
        return 0

    cdef int drop_remains(self) except -1:
        """Make room of the rest of an item that a consumer was getting when it died: there may be no other consumer."""
        if self.count() == 0 and self.is_there():
            self.is_ready()
        return 0

    cdef object full_error(self, uint64_t nbytes):
        # Up to where this item began: pieces of it may be in the ring, or received.
        cdef int64_t used = max(<int64_t>(self.q.began - load_acquire_u64(&self.ring.heads[0].head)), <int64_t>0)
        return queue.Full(f"no room for an item of {nbytes} bytes: {self.count()} items, which no process has got yet, "
                          f"take {used * WORD_NBYTES} of {self.ring.nslots * WORD_NBYTES} bytes. Start the consumers "
                          "first, or make the queue with a larger capacity_nbytes")

    def put_nowait(self, obj):
        """Put an item if there is room now. Raises as `put`.

        Parameters
        ----------
        obj : object
            As in `put`.
        """
        self.put(obj, False)

    # ---- getting ----

    def get(self, block=True, timeout=None):
        """Get the next item, and remove it.

        Parameters
        ----------
        block : bool, default True
            Whether to wait for an item.
        timeout : float, optional
            Seconds to wait for the beginning of an item; None for ever, 0 or less not at all. The rest is awaited until
            its producer completes the item, gives it up, or dies.

        Returns
        -------
        object
            A copy of the item; its arrays own their memory.

        Raises
        ------
        queue.Empty
            No item came in time.
        ObjectError
            The item cannot be unpickled here. It was removed.
        PeerLostError
            There is no item, and none can come: no other process has the queue any more, and this one has no other
            thread and gave no timeout. Or `poll`, `wait` or the descriptor had told this thread of an item, and its
            producer died before it was complete; the queue is usable.
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = forgiving_timeout_to_ns(timeout) if block else 0
        item = self.get_content(timeout_ns)
        if isinstance(item, PickledContent):
            return unpickle_block(item.block, self.memory, item.flight)
        return item

    cdef object get_content(self, int64_t timeout_ns):
        """Get bytes, an array or a `PickledContent`; raises as `get`."""
        cdef int64_t deadline_ns
        self.require_made()
        if is_holder(&self.sending_thread) or is_holder(&self.placing_thread):
            timeout_ns = 0                         # a handler in the middle of put(): no producer can go on
            if self.count() == 0:
                raise queue.Empty
        deadline_ns = deadline_of(timeout_ns)
        if not self.begin_get(timeout_ns or (GLANCE_NS if self.count() else 0)):
            raise queue.Empty
        try:
            self.have_receiver()
            fault_point("getting")
            item = self.next_item(timeout_ns, deadline_ns)
            fault_point("got")
            self.clear_signal()
        except queue.Empty:
            self.clear_signal()
            raise
        finally:
            self.end_get()
        self.told_thread = 0
        if self.maxsize != UNLIMITED:      # after the fence of `lock_release`
            wake_at_once(&self.q.place_awaited, &self.q.place_given)
        return item

    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns):
        cdef uint64_t head
        cdef int outcome
        cdef bint found = False
        while True:
            head = load_relaxed_u64(&self.ring.heads[0].head)
            if self.receiver.target is None and self.receiver.kept is None:
                if (self.ring.sent.messages != self.ring.heads[0].received.messages
                        and load_acquire_u64(&self.ring.tail) == head):
                    self.is_given_up(False)  # a producer is about to put, or died before it had counted its item
                if timeout_ns < 0 and self.polling_thread and is_holder(&self.polling_thread):
                    self.await_announced(head)
                outcome = self.await_beginning(head, left_until(deadline_ns, timeout_ns))
                if outcome == LATE:
                    raise queue.Empty
                if outcome == GONE:
                    raise self.none_left()
                item = take_bytes(self.receiver)
                if item is not None:
                    return item
                if not self.is_at_beginning():
                    continue
            # A part of an item has come; the rest comes unless the producer gives it up.
            item = self.receiver.next_message(0, &found)
            while not found and self.receiver.target is not None:
                item = self.receiver.next_message(TICK_NS, &found)
                if not found and self.is_given_up(False):
                    item = self.receiver.next_message(0, &found)      # the rest may have come before that
                    if not found:
                        self.drop_beginning()
                        if timeout_ns < 0 and (is_holder(&self.told_thread) or is_holder(&self.polling_thread)):
                            self.told_thread = 0
                            self.clear_signal()
                            raise self.torn_error()
            if found:
                return item

    cdef bint is_at_beginning(self) except -1:
        """Whether an item begins at the next frame. Pieces of one whose beginning is not here are dropped; `settle_get`
        has counted it."""
        cdef frame_t f
        cdef bint found
        if next_frame(&self.receiver.c, &f) != 1 or kind_of(f.word) != PIECE:
            return self.receiver.is_at_beginning()
        store_relaxed_u64(&self.q.getting, 0)
        found = self.receiver.is_at_beginning()
        self.settle_get()
        return found

    cdef int await_beginning(self, uint64_t head, int64_t timeout_ns) except -1:
        """READY: an item has begun at ``head``; LATE; or GONE: none can come. Of an item that has begun no more comes
        once its producer is dead, which its lock tells; so only this wait looks for other processes."""
        if self.prospects is not None:
            self.receiver.watch.prospects = &self.prospects.known
        try:
            return self.receiver.wait_for(&self.ring.tail, head + 1, head + 1, timeout_ns)
        finally:
            self.receiver.watch.prospects = NULL

    cdef object none_left(self):
        if self.is_closed:
            return ClosedError("this queue is closed")
        return PeerLostError("no item can come into this queue: nothing is in it, and the other processes that had it "
                             "have ended, closed or dropped it", -1, 0)

    cdef int await_announced(self, uint64_t head) except -1:
        """While the descriptor is readable: wait for the beginning of the item that it announces, or for the death of
        its producer."""
        while load_relaxed_u32(&self.q.is_polled) and load_relaxed_u32(&self.q.signal):
            if self.receiver.wait_for(&self.ring.tail, head + 1, head + 1, TICK_NS) != LATE:
                return 0
            if self.is_given_up(False) and load_acquire_u64(&self.ring.tail) == head:
                self.clear_signal()
                raise self.torn_error()
        return 0

    cdef int drop_beginning(self) except -1:
        """Drop what has come of an item that was given up; the lock of the receiving end is held."""
        self.is_given_up(True)
        self.make_receiver()
        store_relaxed_u64(&self.q.getting, 0)
        self.have_receiver()
        return 0

    cdef object torn_error(self):
        """The error of a call that was not to wait, as this thread knew of an item of which no more comes."""
        return PeerLostError("an item had begun, and its producer has died, or has given the item up, before it was "
                             "complete: the item is dropped. The queue is usable")

    def get_nowait(self):
        """Get the next item if there is one. Raises as `get`.

        Returns
        -------
        object
            As `get` returns.
        """
        return self.get(False)

    # ---- waiting without getting ----

    def poll(self, timeout=0):
        """Whether there is an item, or one that a living process goes on to put. Another may get it at any time.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for an item; None for ever.

        Returns
        -------
        bool

        Raises
        ------
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = forgiving_timeout_to_ns(timeout)
        if not self.await_item(timeout_ns, deadline_of(timeout_ns)):
            return False
        self.told_thread = PyThread_get_thread_ident()
        return True

    cdef bint await_item(self, int64_t timeout_ns, int64_t deadline_ns) except -1:
        cdef uint64_t head
        cdef int outcome
        if self.is_there() and self.is_ready():
            return True
        if self.is_closed:
            raise ClosedError("this queue is closed")
        if timeout_ns == 0:
            self.clear_signal()
            # In this order: items put before the end are not lost.
            return self.is_over() or (self.is_there() and self.is_ready())
        if not self.begin_get(timeout_ns):
            return self.is_there()
        try:
            self.have_receiver()
            while True:
                head = self.receiver.c.head
                outcome = self.await_beginning(head, left_until(deadline_ns, timeout_ns))
                if outcome != READY:
                    return outcome != LATE
                if self.is_first_ready():
                    return True
        finally:
            self.end_get()

    cdef bint is_there(self) except -1:
        """Whether anything is there to be received."""
        self.require_made()
        return (self.receiver.target is not None or self.receiver.kept is not None
                or load_acquire_u64(&self.ring.tail) != load_acquire_u64(&self.ring.heads[0].head))

    cdef bint is_ready(self) except -1:
        """Of what is there: whether a call can get it, unless its producer dies before it is complete."""
        if is_holder(&self.receiving_thread) and not self.holds_receiving:
            return True
        if not self.begin_get(0):
            return True                    # another process or thread is getting it
        try:
            return self.is_first_ready()
        finally:
            self.end_get()

    cdef bint is_first_ready(self) except -1:
        """`is_ready` with the lock of the receiving end held. What is torn is dropped."""
        self.have_receiver()
        if self.receiver.target is not None:
            if self.receiver.has_next(0) or not self.is_given_up(False) or self.receiver.has_next(0):
                return True
            self.drop_beginning()
        if self.receiver.kept is not None:
            return True
        if not self.is_at_beginning():
            return False
        # SYNC began (meets: put_placed). A producer stores where its item begins before it stores a part of it.
        if not load_acquire_u64(&self.q.is_putting) or <int64_t>(self.q.began - self.receiver.c.head) > 0:
            return True
        if not self.is_given_up(True):
            return True
        self.receiver.resume()
        return self.is_there()

    cdef bint is_over(self) noexcept:
        """Whether no process can put an item any more; False except in pipes."""
        return False

    def get_async(self):
        """Await the next item, in an event loop of asyncio.

        Returns
        -------
        coroutine
            Returns and raises as `get`. If it is cancelled, no item was removed.
        """
        return aio.when_ready(self, lambda timeout: self.get(timeout=timeout), is_shared=True)

    def put_async(self, obj):
        """Await room for an item, and put it, in an event loop of asyncio.

        Parameters
        ----------
        obj : object
            As in `put`; it must not be changed before the coroutine has ended.

        Returns
        -------
        coroutine
            Raises as `put`. If it is cancelled, nothing was put.
        """
        return aio.put(AsyncPut(self, obj))

    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when there may be an item.

        Returns
        -------
        int
            An eventfd that all processes of the queue share: readable exactly while there is an item, or the beginning
            of one that a process goes on to put. It is closed with the last object of this process that shares the
            memory. Of a queue with a name each object has one of its own, closed with it: once readable, it stays so
            until a call of this object has found no item.

        Raises
        ------
        ClosedError
            The queue was closed here; a ``ValueError``.

        Notes
        -----
        After the first such call in any process, an item put into the empty queue costs two short system calls.
        """
        self.require_made()
        if self.is_closed:
            raise ClosedError("this queue is closed")
        self.polling_thread = PyThread_get_thread_ident()
        if self.is_there():
            self.is_ready()                # what is torn makes no descriptor readable
        if self.has_name and self.notifier is None:
            self.notifier = Notifier(sizeof(announced_t))
            self.descriptor = self.notifier.notice.descriptor
        self.watch()
        return self.descriptor

    # ---- the signal: what makes the descriptor readable ----

    cdef int watch(self) except -1:
        """Make the descriptor readable exactly while there is an item, or no process left that could put one."""
        if self.notifier is None:
            store_relaxed_u32(&self.q.is_polled, 1)
        full_fence()        # another consumer releases its item, and then loads the word
        return self.clear_signal()

    # The word is stored with `sending` held only. The signal is raised before the item is committed, so while the
    # descriptor is not readable the ring is empty.
    cdef int raise_signal(self) except -1:
        if load_relaxed_u32(&self.q.signal) != RAISED:
            store_relaxed_u32(&self.q.signal, UNSURE)      # this process may die between the two
            self.write_signal()
            fault_point("signal")
            store_relaxed_u32(&self.q.signal, RAISED)
        return 0

    cdef int clear_signal(self) except -1:
        """Clear the signal of an empty queue, after a call has got an item or found none. No effect, and no system
        call, until a process has called `fileno`."""
        if self.notifier is not None and not self.is_there():
            self.await_news()
        if not load_relaxed_u32(&self.q.is_polled) or not load_relaxed_u32(&self.q.signal) or self.is_there():
            return 0
        if not is_locked(lock_within(&self.q.sending, &self.member, GLANCE_NS)):     # an item is about to come
            return 0
        # No producer is between its signal and its item. Between these stores this process may die: then the next
        # producer raises the signal, and the next consumer clears it.
        if not self.is_there():
            store_relaxed_u32(&self.q.signal, UNSURE)
            fault_point("unsignal")
            self.read_signal()
            store_relaxed_u32(&self.q.signal, 0)
        lock_release(&self.q.sending)
        return 0

    @cython.critical_section
    cdef int await_news(self) except -1:
        """Let the waiter thread of this process make its descriptor readable once there is an item."""
        cdef announced_t *known = <announced_t *>self.notifier.memory
        if self.notifier.is_armed():
            return 0
        known.ring = self.ring
        known.sleeper = shared_sleeper(&self.q.watched, LONGEST_SLEEP_NS)
        return self.notifier.arm(&known.sleeper, is_anything_there)

    cdef int write_signal(self) except -1:
        eventfd_write(self.descriptor, 1)
        return 0

    cdef void read_signal(self) noexcept:
        cdef uint64_t count
        eventfd_read(self.descriptor, &count)

    # ---- state ----

    def qsize(self):
        """The number of items in the queue, which other processes may change at any time.

        An item counts from the end of `put` to the end of `get`. One of which a living process has got a part, and goes
        on with in its next `get`, counts.
        """
        return min(self.count(), <uint64_t>sys.maxsize)

    def empty(self):
        """Whether the queue has no item. Other processes may put one at any time."""
        return self.count() == 0

    def full(self):
        """Whether the queue has `maxsize` items, those that are being put included. Other processes may get one at any
        time."""
        self.require_made()
        return not has_place(self)

    cdef uint64_t count(self) except? 0:
        self.require_made()
        return ring_items(self)

    # ---- leaving ----

    def close(self):
        """Close the queue in this process. It stays open in others, and keeps its items."""
        if self.is_closed:
            return
        self.is_closed = True
        self.leave_prospects()
        if self.notifier is not None:
            disarm(&self.notifier.notice)
        if self.q != NULL:
            self.memory.leave()

    def join_thread(self):
        """Return at once: `put` has stored all items in shared memory. For programs written for multiprocessing."""

    def cancel_join_thread(self):
        """Do nothing: there is no thread to be joined. For programs written for multiprocessing."""

    def __repr__(self):
        if self.q == NULL:
            return f"<shmring.{type(self).__name__}, not made>"
        name = "" if self.memory.key is None else f" {self.memory.key!r}"
        most = "" if self.maxsize == UNLIMITED else f" of at most {self.maxsize}"
        state = ", closed here" if self.is_closed else ""
        return f"<shmring.{type(self).__name__}{name}, {self.qsize()}{most} items{state}>"


cdef class JoinableQueue(Queue):
    """A `Queue` with items that are reported done, to be used like `multiprocessing.JoinableQueue`."""

    def task_done(self):
        """Report that an item that was got has been processed.

        Raises
        ------
        ValueError
            All items that were ever put have been reported done.
        """
        cdef uint64_t done
        self.require_made()
        while True:
            done = load_acquire_u64(&self.q.done)
            if done >= load_acquire_u64(&self.ring.sent.messages):
                raise ValueError("task_done() called too many times")
            if compare_swap_u64(&self.q.done, done, done + 1):
                break
        before_wake()
        if is_done(self):
            wake_at_once(&self.q.joining, &self.q.joined)

    def join(self):
        """Wait until all items that were ever put have been reported done."""
        cdef bint is_busy = False
        cdef gate_t gate
        self.require_made()
        gate = gate_t(is_done, &self.q.joining, &self.q.joined, 0)
        drive(await_gate, self, &gate, -1, &is_busy, self.memory.writes_notes)
        sem_post(&self.q.joined)           # for the next process in join(), if there is one


# ---- counts, and waits for them ----

# Items that living processes are putting, or keep until there is room.
cdef uint64_t kept_items(shmring_queue *q) noexcept nogil:
    cdef uint64_t i, word, found = 0
    for i in range(min(load_relaxed_u64(&q.nkeepers), <uint64_t>SHMRING_MEMBERS_MAX)):
        # SYNC kept (meets: keep). Before the counters of the ring: an item on its way counts twice, not never.
        word = load_acquire_u64(&q.kept[i])
        if word & UINT32_MAX and not is_gone(q.members, word >> 32 << 32 | (i + 1)):
            found += word & UINT32_MAX
    return found


# Items that were ever received, that of a process included which died before it had counted it.
cdef uint64_t received_items(Queue target) noexcept nogil:
    cdef shmring_queue *q = target.q
    # SYNC getting (meets: settle_get)
    cdef uint64_t getting = load_acquire_u64(&q.getting)
    cdef uint64_t received = load_acquire_u64(&target.ring.heads[0].received.messages)
    if (getting and is_member(getting) and is_gone(q.members, getting) and received == q.got
            and load_acquire_u64(&target.ring.heads[0].head) != q.got_from):
        received += 1
    return received


# Items in the ring.
cdef uint64_t ring_items(Queue target) noexcept nogil:
    # The receiver's count first: there are never fewer than none.
    cdef uint64_t received = received_items(target)
    cdef uint64_t sent = load_acquire_u64(&target.ring.sent.messages)
    # A process that was killed may not have counted its last item; but an empty ring has nothing in it.
    if load_acquire_u64(&target.ring.tail) == load_acquire_u64(&target.ring.heads[0].head):
        return 0
    return max(<int64_t>0, <int64_t>(sent - received))


# Items that have a place; one on its way into the ring counts twice for an instant.
cdef uint64_t placed_items(Queue target) noexcept nogil:
    cdef uint64_t kept = kept_items(target.q)
    return min(kept + ring_items(target), target.maxsize)


cdef bint has_place(Queue target) noexcept nogil:
    return placed_items(target) < target.maxsize


cdef bint is_done(Queue target) noexcept nogil:
    cdef uint64_t kept = kept_items(target.q)
    return load_acquire_u64(&target.q.done) >= load_acquire_u64(&target.ring.sent.messages) + kept


cdef int await_gate(object target, void *what, patience_t *patience) noexcept nogil:
    """A step of a wait (core/ring/blocking.pxd) for what the counts of a queue must fulfil; ``what``: a gate_t."""
    cdef gate_t *gate = <gate_t *>what
    cdef sleeper_t sleeper = sleeper_t(word=gate.word, what=1, wake=gate.wake, next=NULL, spin_ns=gate.spin_ns,
                                       yields=YIELDS, tick_ns=LONGEST_SLEEP_NS, spin=NULL, looks=0)
    cdef int step, outcome = READY
    while not gate.is_open(<Queue>target):
        step = back_off(patience, &sleeper)
        if step == BROKEN:
            return CORRUPT
        if step >= CHECK and is_past_deadline(patience):
            outcome = READY if gate.is_open(<Queue>target) else LATE
            break
        if step == TICK:
            return UNREADY
    end_wait(patience, &sleeper)
    return outcome


@cython.final
cdef class AsyncPut:
    """One item that a task puts: at once, or by a thread that waits for room until the task gives up."""

    cdef Queue target
    cdef object content
    cdef uint32_t is_cancelled
    cdef bint has_thread

    def __init__(self, Queue target not None, obj):
        target.require_made()
        self.target, self.content = target, content_of(obj, target.memory)

    cdef Queue made(self):
        if self.target is None:
            raise TypeError("this AsyncPut was not initialized: make it of a queue and an item")
        return self.target

    def put_now(self):
        """Put it if that needs no wait, and return whether it did."""
        try:
            self.made().put_content(self.content, 0)
        except queue.Full:
            return False
        except ClosedError:
            raise
        except ValueError:             # longer than half of the capacity: only a call that may wait puts it
            return False
        return True

    def put(self):
        """In a thread: put it, and return whether it did."""
        cdef Queue target = self.made()
        if not self.begin():
            return False
        while not load_relaxed_u32(&self.is_cancelled):
            try:
                target.put_content(self.content, TICK_NS, &self.is_cancelled)
                return True
            except queue.Full:
                pass
        return False

    @cython.critical_section
    cdef bint begin(self) noexcept:
        self.has_thread = not self.is_cancelled
        return self.has_thread

    @cython.critical_section
    def give_up(self):
        """Have the thread end at its next tick, and return whether it has begun at all."""
        store_relaxed_u32(&self.is_cancelled, 1)
        return self.has_thread


cdef bint is_anything_there(void *what) noexcept nogil:
    cdef const shmring_ring *ring = (<announced_t *>what).ring
    return load_acquire_u64(&ring.tail) != load_acquire_u64(&ring.heads[0].head)


cdef object content_of(object item, object memory):
    """The content that is sent for an item: bytes and plain arrays themselves, a pickle of any other."""
    if PyBytes_CheckExact(item) or (cnp.PyArray_CheckExact(item) and cnp.PyArray_IS_C_CONTIGUOUS(item)
                                    and not item.dtype.hasobject and item.dtype.isbuiltin != 2):
        return item
    return pickle_object(item, memory)


def adopted(kind, memory, passed=None):
    """The queue in memory that another process has passed on."""
    cdef Queue found = kind.__new__(kind)
    found.use(memory)
    if found.prospects is not None:
        arrive(found.prospects, passed)
    queues.add(found)
    return found


def named(kind, name, maxsize, capacity_nbytes):
    """The queue of a name that another process has passed on."""
    return kind(maxsize, capacity_nbytes=capacity_nbytes, name=name)


def _after_fork():
    cdef Queue inherited
    for inherited in list(queues):
        inherited.notifier = None
        inherited.make_ends()


os.register_at_fork(after_in_child=_after_fork)
