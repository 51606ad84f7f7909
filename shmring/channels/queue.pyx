"""Queues: the interface of ``multiprocessing.Queue`` over a ring whose ends go from process to process.

A ring has one producer and one consumer at a time. Its counters always stand between two messages, so another process
can continue where the last one stopped, or died. The holder of a robust lock owns an end: when the holder dies, the
kernel passes the lock on. A message that a dead producer had not completed is retracted, or cut as in a channel.
"""

from cpython.bytes cimport PyBytes_CheckExact
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t

import os
import queue
import sys
import weakref

cimport numpy as cnp

from shmring._c.atomics cimport (compare_swap_u32, compare_swap_u64, full_fence, load_acquire_u64, load_relaxed_u32,
                              load_relaxed_u64, store_release_u64)
from shmring._c.faults cimport fault_point
from shmring._c.layout cimport pthread_mutex_t, sem_t, shmring_queue, shmring_ring
from shmring._runtime cimport timeout_to_ns
from shmring.channels.endpoint cimport deadline_of, left_until
from shmring.channels.message_codec cimport encode, encode_pickled, message_t, pickle_object, unpickle_content
from shmring.channels.message_reader cimport MessageReader, take_bytes
from shmring.channels.message_writer cimport MessageWriter, put_bytes
from shmring.memory.mapping cimport Mapping
from shmring.ring.blocking cimport LATE
from shmring.sync.backoff cimport before_wake, sem_post, sleep_on

from shmring.channels.message_reader import PickledContent
from shmring.channels.queue_memory import create_queue
from shmring.errors import ClosedError

cnp.import_array()

cdef extern from "robust.h" nogil:
    const int LOCK_LATE
    int lock_try(pthread_mutex_t *lock)
    int lock_within(pthread_mutex_t *lock, int64_t ns)
    void lock_release(pthread_mutex_t *lock)

cdef extern from "<semaphore.h>" nogil:
    int sem_getvalue(sem_t *sem, int *value)

cdef enum:
    TICK_NS = 50000000         # between two looks at signals, and at the liveness of the other side
    GLANCE_NS = 1000000        # for another process to complete an operation that does not wait

cdef object queues = weakref.WeakSet()      # of this process


cdef class Queue:
    """A queue between processes, to be used like `multiprocessing.Queue`: any number may put, and any number get.

    Parameters
    ----------
    maxsize : int, default 0
        How many items may be in it; 0 or less: as many as there is room for.
    capacity_nbytes : int, default 8 MiB
        Memory for what is in it, reserved at once. An item may be longer.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    Processes get it through a fork, or in the arguments of a process of multiprocessing, by any start method. Items
    come out in the order in which they went in; ``bytes`` and plain contiguous arrays go without pickle, all else by
    pickle 5. A process that is killed in the middle of a call takes nothing with it but what it was just putting or
    getting.

    What is different from ``multiprocessing.Queue``: there is no feeder thread and no unbounded buffer, so `put`
    returns when the item is in shared memory, and waits while that is full; an item that cannot be pickled makes `put`
    raise.
    """

    cdef object memory
    cdef shmring_queue *q
    cdef shmring_ring *ring
    cdef MessageWriter sender
    cdef MessageReader receiver
    cdef bint is_closed
    cdef uint64_t maxsize
    cdef object __weakref__

    def __init__(self, maxsize=0, *, capacity_nbytes=8 << 20):
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize={maxsize!r}: must be an int")
        self.use(create_queue(capacity_nbytes, max(maxsize, 0)))

    cdef int use(self, memory) except -1:
        cdef Mapping mapping = memory.mapping
        self.memory = memory
        self.maxsize = memory.maxsize or <uint64_t>1 << 63
        self.q = <shmring_queue *>(mapping.address + <size_t>memory.queue_offset)
        self.ring = <shmring_ring *>(mapping.address + <size_t>memory.ring_offset)
        queues.add(self)
        self.make_ends()
        return 0

    cdef int make_ends(self) except -1:
        """The ends of this process, not used yet."""
        self.sender = MessageWriter(self.memory, "sender")
        self.make_receiver()
        return 0

    cdef int make_receiver(self) except -1:
        self.receiver = MessageReader(self.memory, "receiver")
        self.receiver.leaves_pickled = True
        return 0

    def __reduce__(self):
        return _adopted, (type(self), self.memory)

    # ---- owning an end ----

    cdef bint lock(self, pthread_mutex_t *lock, int64_t timeout_ns) except -1:
        """False if time ran out. Its holder owns that end: no other process, and no other thread, uses it."""
        cdef int64_t deadline_ns, left
        cdef int outcome
        if self.is_closed:
            raise ClosedError("this queue is closed")
        outcome = lock_try(lock)
        if outcome == LOCK_LATE and timeout_ns != 0:
            deadline_ns = deadline_of(timeout_ns)
            while outcome == LOCK_LATE:
                left = TICK_NS if timeout_ns < 0 else min(<int64_t>TICK_NS, left_until(deadline_ns, timeout_ns))
                if left <= 0:
                    break
                with nogil:
                    outcome = lock_within(lock, left)
                if outcome == LOCK_LATE:
                    PyErr_CheckSignals()
        if outcome < 0:
            raise OSError(-outcome, os.strerror(-outcome))
        return outcome != LOCK_LATE

    cdef int have_sender(self) except -1:
        if not self.sender.is_taken:
            self.sender.prepare()
        cdef bint is_midway = load_relaxed_u64(&self.q.is_midway)
        self.sender.resume(is_midway and not self.take_back())
        return 0

    cdef bint take_back(self) except -1:
        """Retract an item that was given up, or that its producer did not live to complete. False: another process is
        getting, and will skip it."""
        cdef int outcome = lock_within(&self.q.receiving, GLANCE_NS)
        if outcome == LOCK_LATE or outcome < 0:
            return False
        # With both locks held, no other process uses the counters.
        if <int64_t>(self.q.began - load_relaxed_u64(&self.ring.head)) >= 0:
            store_release_u64(&self.ring.tail, self.q.began)
            fault_point("retract")
            store_release_u64(&self.ring.sent.messages, self.q.sent)
        else:                          # its beginning was received, and nothing follows it
            store_release_u64(&self.ring.head, load_relaxed_u64(&self.ring.tail))
            self.settle()
        lock_release(&self.q.receiving)
        return True

    cdef void settle(self) noexcept nogil:
        """Both locks held, the ring empty: a process that died may not have counted its last item."""
        store_release_u64(&self.ring.sent.messages, load_relaxed_u64(&self.ring.received.messages))

    cdef int have_receiver(self) except -1:
        if not self.receiver.is_taken:
            self.receiver.prepare()
        self.receiver.resume()
        return 0

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
        ObjectError
            It does not pickle. Nothing was put.
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout) if block else 0
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        cdef message_t m
        cdef int64_t left
        cdef bint is_bytes = PyBytes_CheckExact(obj)
        _keeper = None if is_bytes else encode_item(obj, &m, self.memory)     # pickling may take long, or fail
        if not self.lock(&self.q.sending, timeout_ns or GLANCE_NS):
            raise queue.Full
        try:
            self.have_sender()
            self.await_place(timeout_ns, deadline_ns)
            fault_point("putting")
            self.q.began = load_relaxed_u64(&self.ring.tail)
            self.q.sent = load_relaxed_u64(&self.ring.sent.messages)
            store_release_u64(&self.q.is_midway, 1)
            if not is_bytes or not put_bytes(self.sender, obj):
                if is_bytes:
                    _keeper = encode(obj, &m)
                left = left_until(deadline_ns, timeout_ns)
                # A timeout that is over is not passed on as 0, with which no message is streamed.
                if self.sender.send_message(&m, max(left, <int64_t>1) if timeout_ns > 0 else left) == LATE:
                    raise queue.Full
            fault_point("put")
            store_release_u64(&self.q.is_midway, 0)
        finally:
            lock_release(&self.q.sending)

    cdef int await_place(self, int64_t timeout_ns, int64_t deadline_ns) except -1:
        """Wait until fewer items than `maxsize` are in it."""
        cdef uint64_t received
        while True:
            received = load_acquire_u64(&self.ring.received.messages)
            if self.count() < self.maxsize:
                return 0
            if self.sender.wait_for(&self.ring.received.messages, received + 1, load_relaxed_u64(&self.ring.head),
                                    left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Full

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
            Whether to wait for one.
        timeout : float, optional
            Seconds to wait for one to come; None for ever.

        Returns
        -------
        object
            As it was put; arrays own their memory.

        Raises
        ------
        queue.Empty
            None came in time.
        ObjectError
            It cannot be made here. It was removed.
        ClosedError
            The queue was closed here; a ``ValueError``.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout) if block else 0
        cdef int64_t deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.receiving, timeout_ns or (GLANCE_NS if self.count() else 0)):
            raise queue.Empty
        try:
            self.have_receiver()
            fault_point("getting")
            item = self.next_item(timeout_ns, deadline_ns)
            fault_point("got")
        finally:
            lock_release(&self.q.receiving)
        if isinstance(item, PickledContent):
            return unpickle_content(item.content, item.stream_nbytes, self.memory)
        return item

    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns):
        cdef uint64_t head
        cdef bint found = False
        while True:
            head = load_relaxed_u64(&self.ring.head)
            if self.ring.sent.messages != self.ring.received.messages and load_acquire_u64(&self.ring.tail) == head:
                self.is_no_producer()        # one is about to put, or died
            if self.receiver.wait_for(&self.ring.tail, head + 1, head + 1,
                                      left_until(deadline_ns, timeout_ns)) == LATE:
                raise queue.Empty
            item = take_bytes(self.receiver)
            if item is not None:
                return item
            item = self.receiver.next_message(0, &found)
            # A part of an item has come: stay until it is complete or given up, so that no other process gets the rest.
            while not found and self.receiver.target is not None:
                item = self.receiver.next_message(TICK_NS, &found)
                if not found and self.is_no_producer():
                    item = self.receiver.next_message(0, &found)      # the rest may have come before it left
                    if not found and self.receiver.target is not None:
                        self.make_receiver()
                        self.have_receiver()
            if found:
                return item

    cdef bint is_no_producer(self) except -1:
        """Whether no process is in the middle of an item: it would have the lock."""
        cdef int outcome = lock_try(&self.q.sending)
        if outcome == LOCK_LATE or outcome < 0:
            return False
        if load_relaxed_u64(&self.ring.tail) == load_relaxed_u64(&self.ring.head):
            self.settle()
        lock_release(&self.q.sending)
        return True

    def get_nowait(self):
        """Get the next item if there is one. Raises as `get`.

        Returns
        -------
        object
            As of `get`.
        """
        return self.get(False)

    # ---- state ----

    cdef uint64_t count(self) noexcept:
        # The receiver's count first: there are never fewer than none.
        cdef uint64_t received = load_acquire_u64(&self.ring.received.messages)
        cdef uint64_t sent = load_acquire_u64(&self.ring.sent.messages)
        # A process that was killed may not have counted its last item; but an empty ring has nothing in it.
        if load_acquire_u64(&self.ring.tail) == load_acquire_u64(&self.ring.head):
            return 0
        return max(<int64_t>0, <int64_t>(sent - received))

    def qsize(self):
        """How many items are in it; a moment later it may be another number.

        One too many if a consumer was killed before it had counted the item it took, until the queue is next empty.
        """
        return min(self.count(), <uint64_t>sys.maxsize)

    def empty(self):
        """Whether there is none in it; a moment later there may be one."""
        return self.count() == 0

    def full(self):
        """Whether there are `maxsize` items in it; a moment later there may be fewer."""
        return self.count() >= self.maxsize

    # ---- leaving ----

    def close(self):
        """Close the queue in this process. Others go on; what is in it stays."""
        self.is_closed = True

    def join_thread(self):
        """Return at once: what was put is in shared memory already. For programs written for multiprocessing."""

    def cancel_join_thread(self):
        """Do nothing: there is no thread to be joined. For programs written for multiprocessing."""

    def __repr__(self):
        return f"<shmring.{type(self).__name__} of {self.qsize()} items{', closed here' if self.is_closed else ''}>"


cdef class JoinableQueue(Queue):
    """A `Queue` whose items are reported done, to be used like `multiprocessing.JoinableQueue`."""

    def task_done(self):
        """Report that an item that was got has been processed.

        Raises
        ------
        ValueError
            More were reported done than were ever put.
        """
        cdef uint64_t done
        cdef int value = 0
        while True:
            done = load_acquire_u64(&self.q.done)
            if done >= load_acquire_u64(&self.ring.sent.messages):
                raise ValueError("task_done() called too many times")
            if compare_swap_u64(&self.q.done, done, done + 1):
                break
        # SYNC joined (meets: join).
        before_wake()
        if done + 1 >= load_acquire_u64(&self.ring.sent.messages):
            sem_getvalue(&self.q.joined, &value)
            while value < <int>load_relaxed_u32(&self.q.joiners):
                sem_post(&self.q.joined)
                value += 1

    def join(self):
        """Wait until all items that were ever put have been reported done."""
        while not self.is_done():
            add_u32(&self.q.joiners, 1)
            # SYNC joined (meets: task_done).
            full_fence()
            if not self.is_done():
                with nogil:
                    sleep_on(&self.q.joined, TICK_NS)
            add_u32(&self.q.joiners, <uint32_t>-1)
            PyErr_CheckSignals()

    cdef bint is_done(self) noexcept:
        return load_acquire_u64(&self.q.done) >= load_acquire_u64(&self.ring.sent.messages)


cdef void add_u32(uint32_t *word, uint32_t value) noexcept nogil:
    cdef uint32_t old
    while True:
        old = load_relaxed_u32(word)
        if compare_swap_u32(word, old, old + value):
            return


cdef object encode_item(object item, message_t *m, object memory):
    """Plain arrays as they are, all else by pickle."""
    if (cnp.PyArray_CheckExact(item) and cnp.PyArray_IS_C_CONTIGUOUS(item)
            and not item.dtype.hasobject and item.dtype.isbuiltin != 2):
        return encode(item, m)
    return encode_pickled(pickle_object(item, memory), m)


def _adopted(kind, memory):
    """The queue of a memory that came from another process."""
    cdef Queue adopted = kind.__new__(kind)
    adopted.use(memory)
    return adopted


def _after_fork():
    cdef Queue inherited
    for inherited in list(queues):
        inherited.make_ends()


os.register_at_fork(after_in_child=_after_fork)
