"""Queues: the interface of ``multiprocessing.Queue``, over a ring whose ends go from process to process.

A ring has one producer and one consumer at a time. Its counters always stand between two frames, so another process
can continue where the last one stopped, or died. The holder of a robust lock owns an end: when the holder dies, the
kernel passes the lock on. An item longer than the ring streams through it; a consumer that has its beginning waits for
the rest. The next producer retracts an item that its producer gave up, or did not live to complete, or cuts it if a
consumer has its beginning already.

Event loops and `shmring.wait` wait for a descriptor, which all processes of the queue have: readable while the
*signal* is raised. A producer raises it before it puts an item, unless it is raised; a consumer clears it once the ring
is empty. Until a process calls `fileno` the signal stays raised, so neither side makes a system call.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from libc.stdint cimport int64_t, uint64_t

import os
import queue
import sys

from shmring._c.atomics cimport (compare_swap_u64, full_fence, load_acquire_u64, load_relaxed_u32, load_relaxed_u64,
                                 store_relaxed_u32, store_relaxed_u64, store_release_u64)
from shmring._c.faults cimport fault_point
from shmring.base.timeouts cimport timeout_to_ns
from shmring.arrays cimport numpy_api as cnp
from shmring.channels.message_codec cimport encode, encode_pickled, message_t, pickle_object, unpickle_block
from shmring.channels.receiver cimport take_bytes
from shmring.channels.robust cimport TICK_NS, is_locked, lock_release, lock_try, lock_within, take_lock
from shmring.channels.sender cimport put_bytes
from shmring.ring.blocking cimport LATE, drive, wake_at_once
from shmring.ring.framing cimport WORD_NBYTES
from shmring.sync.backoff cimport (TICK, back_off, before_wake, deadline_of, end_wait, left_until, patience_t, sem_post,
                                   sleeper_t)
from shmring.sync.group cimport READY, UNREADY

from shmring.base.weak_set import WeakSet
from shmring.channels import aio
from shmring.channels.memory import create_queue
from shmring.channels.receiver import PickledContent
from shmring.errors import ClosedError
from shmring.objects.codec import Dumped

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
    LONGEST_SLEEP_NS = 20000000        # of join(): several processes may be in it, with one waiter word

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
    capacity_nbytes : int, default 8 MiB
        Memory for the items, reserved at once. A longer item streams through it.
    allow_pickle : bool, optional
        Whether the queue carries items that must be pickled; unpickling runs code that the producer chose. By default
        the setting of the same name, in each process.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    Processes get the queue through a fork, or in the arguments of a process of multiprocessing, by any start method.
    Items keep their order; ``bytes`` and plain contiguous arrays are sent without pickle, all other items by pickle 5.
    If a process is killed in a call, at most the item of that call is lost.

    Differences from ``multiprocessing.Queue``: there is no feeder thread and no unbounded buffer, so `put` returns when
    the item is in shared memory, and waits while that is full; `put` raises for an item that cannot be pickled.
    """

    def __init__(self, maxsize=0, *, capacity_nbytes=8 << 20, allow_pickle=None):
        if self.q != NULL:
            raise RuntimeError("this queue was made already: __init__ makes it once")
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize={maxsize!r}: must be an int")
        if maxsize > sys.maxsize:
            raise ValueError(f"maxsize={maxsize}: must be at most {sys.maxsize}")
        self.use(create_queue(capacity_nbytes, max(maxsize, 0), allow_pickle, with_signal=True))
        queues.add(self)

    def __reduce__(self):
        self.require_made()
        return adopted, (type(self), self.memory)

    cdef int use(self, memory) except -1:
        self.memory = memory
        self.mapping = memory.mapping
        self.maxsize = memory.maxsize or <uint64_t>1 << 63
        self.descriptor = -1 if memory.signal is None else memory.signal.fd
        self.make_ends()
        self.ring = <shmring_ring *>(self.mapping.address + <size_t>memory.ring_offset)
        self.q = <shmring_queue *>(self.mapping.address + <size_t>memory.queue_offset)
        return 0

    cdef int require_made(self) except -1:
        if self.q == NULL:
            raise ClosedError(f"this {type(self).__name__} was not made: its __init__ has not run, or has failed")
        return 0

    cdef int make_ends(self) except -1:
        """Make the ends of this process, not used yet."""
        self.sending_thread = self.receiving_thread = 0
        self.sender = Sender(self.memory, "sender")
        self.make_receiver()
        return 0

    cdef int make_receiver(self) except -1:
        self.receiver = Receiver(self.memory, "receiver")
        self.receiver.leaves_pickled = True
        return 0

    # ---- owning an end ----

    cdef bint lock(self, pthread_mutex_t *lock, uint64_t *holder, int64_t timeout_ns) except -1:
        """Take the lock of an end, which its holder alone uses. False after the timeout."""
        if self.is_closed:
            raise ClosedError("this queue is closed")
        if is_holder(holder):
            raise RuntimeError("this thread is in the middle of the same call of this queue: a signal handler or "
                               "finalizer cannot repeat it")
        if not take_lock(lock, timeout_ns, self.memory):
            return False
        store_relaxed_u64(holder, PyThread_get_thread_ident())
        return True

    cdef void unlock(self, pthread_mutex_t *lock, uint64_t *holder) noexcept:
        store_relaxed_u64(holder, 0)
        lock_release(lock)

    cdef int have_sender(self) except -1:
        if not self.sender.is_taken:
            self.sender.prepare()
        self.sender.resume(load_relaxed_u64(&self.q.is_putting) and not self.retract())
        return 0

    cdef bint retract(self) noexcept:
        """Retract an item that was given up, or that its producer did not live to complete. False: another process is
        getting, and needs a CUT."""
        cdef uint64_t head
        if not is_locked(lock_within(&self.q.receiving, GLANCE_NS)):
            return False
        # With both locks held, no other process uses the counters.
        head = load_relaxed_u64(&self.ring.heads[0].head)
        if <int64_t>(self.q.began - head) >= 0:
            store_release_u64(&self.ring.tail, self.q.began)
            fault_point("retract")
            store_release_u64(&self.ring.sent.messages, self.q.sent)
        else:                          # its beginning was received, and nothing follows it
            store_release_u64(&self.ring.heads[0].head, load_relaxed_u64(&self.ring.tail))
            self.settle()
        store_release_u64(&self.q.is_putting, 0)
        lock_release(&self.q.receiving)
        return True

    cdef void settle(self) noexcept nogil:
        """With both locks held and an empty ring: count the last item of a process that died before it did."""
        store_release_u64(&self.ring.sent.messages, load_relaxed_u64(&self.ring.heads[0].received.messages))

    cdef int have_receiver(self) except -1:
        if not self.receiver.is_taken:
            self.receiver.prepare()
        self.receiver.resume()
        return 0

    cdef bint is_given_up(self) except -1:
        """Whether no process is putting an item: it would have the lock."""
        if not is_locked(lock_try(&self.q.sending)):
            return False
        if load_relaxed_u64(&self.ring.tail) == load_relaxed_u64(&self.ring.heads[0].head):
            self.settle()
        lock_release(&self.q.sending)
        return True

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
            Seconds to wait; None for ever.

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
        cdef int64_t timeout_ns = timeout_to_ns(timeout) if block else 0
        self.require_made()
        self.put_content(content_of(obj, self.memory), timeout_ns)     # pickling may take long, or fail

    cdef int put_content(self, content, int64_t timeout_ns) except -1:
        """Put bytes, an array or a `Dumped`; raises as `put`."""
        cdef int64_t deadline_ns
        cdef bint is_begun = False
        self.require_made()
        if is_holder(&self.receiving_thread):
            timeout_ns = 0                         # a handler in the middle of get(): no consumer can make room
        deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.sending, &self.sending_thread, timeout_ns or GLANCE_NS):
            raise queue.Full("another producer was putting an item all the time")
        try:
            self.have_sender()
            self.await_place(timeout_ns, deadline_ns)
            self.raise_signal()
            fault_point("putting")
            self.q.sent = load_relaxed_u64(&self.ring.sent.messages)
            self.q.began = load_relaxed_u64(&self.ring.tail)
            store_release_u64(&self.q.is_putting, 1)
            is_begun = True
            self.send_content(content, timeout_ns, deadline_ns)
            fault_point("put")
            store_release_u64(&self.q.is_putting, 0)
        except BaseException:
            if is_begun:
                self.retract()         # else the next producer does
            raise
        finally:
            self.unlock(&self.q.sending, &self.sending_thread)

    cdef int send_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1:
        cdef message_t m
        cdef int64_t left
        cdef uint64_t nbytes
        if PyBytes_CheckExact(content) and put_bytes(self.sender, content):
            return 0
        _keeper = encode_pickled(content, &m) if isinstance(content, Dumped) else encode(content, &m)
        if timeout_ns == 0 and m.load.nbytes > self.sender.longest:
            raise ValueError(f"an item of {m.load.nbytes} bytes cannot be put without waiting: at most "
                             f"{self.sender.longest} bytes, half of the capacity, can")
        left = left_until(deadline_ns, timeout_ns)
        # No time left is passed on as 1 ns: with 0 no message is streamed.
        nbytes = m.load.nbytes
        if self.sender.send_message(&m, max(left, <int64_t>1) if timeout_ns > 0 else left) == LATE:
            raise self.full_error(nbytes)
        return 0

    cdef int await_place(self, int64_t timeout_ns, int64_t deadline_ns) except -1:
        """Wait until the queue has fewer items than `maxsize`."""
        cdef uint64_t received
        self.sender.unsent_nbytes = 0      # the wait is not for room in the ring
        while True:
            received = load_acquire_u64(&self.ring.heads[0].received.messages)
            if self.count() < self.maxsize:
                return 0
            if self.sender.wait_for(&self.ring.heads[0].received.messages, received + 1,
                                    load_relaxed_u64(&self.ring.heads[0].head),
                                    left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Full(f"there are {self.count()} items in it, and maxsize={self.maxsize}")

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
            Seconds to wait for the beginning of an item; None for ever. The rest is awaited until its producer
            completes the item, gives it up, or dies.

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
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout) if block else 0
        item = self.get_content(timeout_ns)
        if isinstance(item, PickledContent):
            return unpickle_block(item.block, self.memory)
        return item

    cdef object get_content(self, int64_t timeout_ns):
        """Get bytes, an array or a `PickledContent`; raises as `get`."""
        cdef int64_t deadline_ns
        self.require_made()
        if is_holder(&self.sending_thread):        # a handler in the middle of put(): no producer can go on
            timeout_ns = 0
            if self.count() == 0:
                raise queue.Empty
        deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.receiving, &self.receiving_thread, timeout_ns or (GLANCE_NS if self.count() else 0)):
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
            self.unlock(&self.q.receiving, &self.receiving_thread)
        return item

    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns):
        cdef uint64_t head
        cdef bint found = False
        while True:
            head = load_relaxed_u64(&self.ring.heads[0].head)
            if self.receiver.target is None and self.receiver.kept is None:
                if (self.ring.sent.messages != self.ring.heads[0].received.messages
                        and load_acquire_u64(&self.ring.tail) == head):
                    self.is_given_up()       # a producer is about to put, or died before it had counted its item
                if self.receiver.wait_for(&self.ring.tail, head + 1, head + 1,
                                          left_until(deadline_ns, timeout_ns)) == LATE:
                    raise queue.Empty
                item = take_bytes(self.receiver)
                if item is not None:
                    return item
            # A part of an item has come; the rest comes unless the producer gives it up.
            item = self.receiver.next_message(0, &found)
            while not found and self.receiver.target is not None:
                item = self.receiver.next_message(TICK_NS, &found)
                if not found and self.is_given_up():
                    item = self.receiver.next_message(0, &found)      # the rest may have come before that
                    if not found:
                        self.make_receiver()
                        self.have_receiver()
            if found:
                return item

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
        """Whether there is an item, or the beginning of one. Another process may get it at any time.

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
        cdef int64_t timeout_ns = timeout_to_ns(timeout), deadline_ns = deadline_of(timeout_ns)
        cdef uint64_t head
        if self.is_there():
            return True
        if self.is_closed:
            raise ClosedError("this queue is closed")
        if timeout_ns == 0:
            self.clear_signal()
            return self.is_over() or self.is_there()     # in this order: items put before the end are not lost
        if not self.lock(&self.q.receiving, &self.receiving_thread, timeout_ns):
            return self.is_there()
        try:
            self.have_receiver()
            head = self.receiver.c.head
            return self.receiver.wait_for(&self.ring.tail, head + 1, head + 1,
                                          left_until(deadline_ns, timeout_ns)) != LATE
        finally:
            self.unlock(&self.q.receiving, &self.receiving_thread)

    cdef bint is_there(self) except -1:
        self.require_made()
        return (self.receiver.target is not None or self.receiver.kept is not None
                or load_acquire_u64(&self.ring.tail) != load_acquire_u64(&self.ring.heads[0].head))

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
            Raises as `put`. If it is cancelled while there is no room, the item may still be put for a short time.
        """
        return aio.put(self, obj)

    def fileno(self):
        """A descriptor for ``select``, ``poll``, ``epoll`` and event loops: readable when there may be an item.

        Returns
        -------
        int
            An eventfd that all processes of the queue share: readable exactly while there is an item, or the beginning
            of one. It is closed with the last object of this process that shares the memory.

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
        self.watch()
        return self.descriptor

    # ---- the signal: what makes the descriptor readable ----

    cdef int watch(self) except -1:
        """Make the descriptor readable exactly while there is an item, or no process left that could put one."""
        store_relaxed_u32(&self.q.is_polled, 1)
        full_fence()        # another consumer releases its item, and then loads the word
        return self.clear_signal()

    # The word is stored with `sending` held only. The signal is raised before the item is committed, so while the
    # descriptor is not readable the ring is empty.
    cdef int raise_signal(self) except -1:
        if load_relaxed_u32(&self.q.signal) != RAISED:
            self.write_signal()
            fault_point("signal")
            store_relaxed_u32(&self.q.signal, RAISED)
        return 0

    cdef int clear_signal(self) except -1:
        """Clear the signal of an empty queue, after a call has got an item or found none. No effect, and no system
        call, until a process has called `fileno`."""
        if not load_relaxed_u32(&self.q.is_polled) or not load_relaxed_u32(&self.q.signal) or self.is_there():
            return 0
        if not is_locked(lock_within(&self.q.sending, GLANCE_NS)):     # an item is about to come
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

    cdef int write_signal(self) except -1:
        eventfd_write(self.descriptor, 1)
        return 0

    cdef void read_signal(self) noexcept:
        cdef uint64_t count
        eventfd_read(self.descriptor, &count)

    # ---- state ----

    def qsize(self):
        """The number of items in the queue, which other processes may change at any time.

        One too many if a consumer was killed before it had counted the item it took, until the queue is next empty.
        """
        return min(self.count(), <uint64_t>sys.maxsize)

    def empty(self):
        """Whether the queue has no item. Other processes may put one at any time."""
        return self.count() == 0

    def full(self):
        """Whether the queue has `maxsize` items. Other processes may get one at any time."""
        return self.count() >= self.maxsize

    cdef uint64_t count(self) except? 0:
        self.require_made()
        # The receiver's count first: there are never fewer than none.
        cdef uint64_t received = load_acquire_u64(&self.ring.heads[0].received.messages)
        cdef uint64_t sent = load_acquire_u64(&self.ring.sent.messages)
        # A process that was killed may not have counted its last item; but an empty ring has nothing in it.
        if load_acquire_u64(&self.ring.tail) == load_acquire_u64(&self.ring.heads[0].head):
            return 0
        return max(<int64_t>0, <int64_t>(sent - received))

    # ---- leaving ----

    def close(self):
        """Close the queue in this process. It stays open in others, and keeps its items."""
        self.is_closed = True

    def join_thread(self):
        """Return at once: `put` has stored all items in shared memory. For programs written for multiprocessing."""

    def cancel_join_thread(self):
        """Do nothing: there is no thread to be joined. For programs written for multiprocessing."""

    def __repr__(self):
        if self.q == NULL:
            return f"<shmring.{type(self).__name__}, not made>"
        return f"<shmring.{type(self).__name__} of {self.qsize()} items{', closed here' if self.is_closed else ''}>"


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
        if done + 1 >= load_acquire_u64(&self.ring.sent.messages):
            wake_at_once(&self.q.joining, &self.q.joined)

    def join(self):
        """Wait until all items that were ever put have been reported done."""
        cdef bint is_busy = False
        self.require_made()
        drive(await_done, self, NULL, -1, &is_busy, True)


cdef int await_done(object joined, void *what, patience_t *patience) noexcept nogil:
    """A step of `join` (ring/blocking.pxd)."""
    cdef shmring_queue *q = (<JoinableQueue>joined).q
    cdef sleeper_t sleeper = sleeper_t(word=&q.joining, what=1, wake=&q.joined, next=NULL, spin_ns=0, yields=0,
                                       tick_ns=LONGEST_SLEEP_NS, spin=NULL)
    while load_acquire_u64(&q.done) < load_acquire_u64(&(<JoinableQueue>joined).ring.sent.messages):
        if back_off(patience, &sleeper) == TICK:
            return UNREADY
    end_wait(patience, &sleeper)
    sem_post(&q.joined)                # for the next process in join(), if there is one
    return READY


cdef object content_of(object item, object memory):
    """The content that is sent for an item: bytes and plain arrays themselves, a pickle of any other."""
    if PyBytes_CheckExact(item) or (cnp.PyArray_CheckExact(item) and cnp.PyArray_IS_C_CONTIGUOUS(item)
                                    and not item.dtype.hasobject and item.dtype.isbuiltin != 2):
        return item
    return pickle_object(item, memory)


def adopted(kind, memory):
    """The queue in memory that another process has passed on."""
    cdef Queue found = kind.__new__(kind)
    found.use(memory)
    queues.add(found)
    return found


def _after_fork():
    cdef Queue inherited
    for inherited in list(queues):
        inherited.make_ends()


os.register_at_fork(after_in_child=_after_fork)
