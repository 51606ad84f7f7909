"""Queues: the interface of ``multiprocessing.Queue`` over a ring whose ends go from process to process.
"""

cimport cython
from cpython.bytes cimport PyBytes_CheckExact
from libc.stdint cimport int64_t, uint64_t

import os
import queue
import sys
import weakref

from shmring._c.atomics cimport compare_swap_u64, load_acquire_u64, load_relaxed_u64, store_release_u64
from shmring._c.faults cimport fault_point
from shmring.base.timeouts cimport timeout_to_ns
from shmring.arrays cimport numpy_api as cnp
from shmring.channels.message_codec cimport encode, encode_pickled, message_t, pickle_object, unpickle_content
from shmring.channels.message_reader cimport take_bytes
from shmring.channels.message_writer cimport put_bytes
from shmring.channels.queue_ends cimport GLANCE_NS, PUTTING, NO_ITEM, VOID, QueueEnds, is_holder, tick_until
from shmring.ring.blocking cimport LATE
from shmring.sync.backoff cimport deadline_of, left_until

from shmring.objects.codec import Dumped
from shmring.channels.message_reader import PickledContent
from shmring.channels.queue_memory import create_queue

cnp.import_array()

cdef object queues = weakref.WeakSet()      # of this process


@cython.no_gc
cdef class Queue(QueueEnds):
    """A queue between processes, to be used like `multiprocessing.Queue`: any number may put, and any number get.

    Parameters
    ----------
    maxsize : int, default 0
        How many items may be in it; 0 or less: as many as there is room for.
    capacity_nbytes : int, default 8 MiB
        Memory for what is in it, reserved at once. An item may be longer.
    allow_pickle : bool, optional
        Whether it carries what must be pickled; unpickling runs code that the producer chose. By default the setting of
        the same name, in each process.

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

    def __init__(self, maxsize=0, *, capacity_nbytes=8 << 20, allow_pickle=None):
        if self.q != NULL:
            raise RuntimeError("this queue was made already: __init__ makes it once")
        if not isinstance(maxsize, int):
            raise TypeError(f"maxsize={maxsize!r}: must be an int")
        if maxsize > sys.maxsize:
            raise ValueError(f"maxsize={maxsize}: must be at most {sys.maxsize}")
        self.use(create_queue(capacity_nbytes, max(maxsize, 0), allow_pickle))
        queues.add(self)

    def __reduce__(self):
        self.require_made()
        return _adopted, (type(self), self.memory)

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
        cdef int64_t deadline_ns
        cdef bint is_begun = False
        self.require_made()
        content = content_of(obj, self.memory)     # pickling may take long, or fail
        if is_holder(&self.receiving_thread):
            timeout_ns = 0                         # a handler in the middle of get(): no consumer can make room
        deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.sending, &self.sending_thread, timeout_ns or GLANCE_NS):
            raise queue.Full
        try:
            self.have_sender()
            self.await_place(timeout_ns, deadline_ns)
            fault_point("putting")
            self.q.sent = load_relaxed_u64(&self.ring.sent.messages)
            is_begun = True
            while True:
                self.q.began = load_relaxed_u64(&self.ring.tail)
                store_release_u64(&self.q.item_state, PUTTING)
                self.put_content(content, timeout_ns, deadline_ns)
                fault_point("put")
                if compare_swap_u64(&self.q.item_state, PUTTING, NO_ITEM) or self.complete(timeout_ns, deadline_ns):
                    return
                store_release_u64(&self.ring.sent.messages, self.q.sent)
        except BaseException:
            if is_begun:
                store_release_u64(&self.ring.sent.messages, self.q.sent)
                store_release_u64(&self.q.item_state, VOID)
            raise
        finally:
            self.unlock(&self.q.sending, &self.sending_thread)

    cdef int put_content(self, content, int64_t timeout_ns, int64_t deadline_ns) except -1:
        cdef message_t m
        cdef int64_t left
        if PyBytes_CheckExact(content) and put_bytes(self.sender, content):
            return 0
        _keeper = encode_pickled(content, &m) if isinstance(content, Dumped) else encode(content, &m)
        left = left_until(deadline_ns, timeout_ns)
        # A timeout that is over is not passed on as 0, with which no message is streamed.
        if self.sender.send_message(&m, max(left, <int64_t>1) if timeout_ns > 0 else left) == LATE:
            raise queue.Full
        return 0

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
        cdef int64_t deadline_ns
        self.require_made()
        if is_holder(&self.sending_thread):
            timeout_ns = 0                         # a handler in the middle of put(): no producer can go on
        deadline_ns = deadline_of(timeout_ns)
        if not self.lock(&self.q.receiving, &self.receiving_thread, timeout_ns or (GLANCE_NS if self.count() else 0)):
            raise queue.Empty
        try:
            self.have_receiver()
            fault_point("getting")
            item = self.next_item(timeout_ns, deadline_ns)
            fault_point("got")
        except BaseException:
            self.hold_item()
            raise
        finally:
            self.unlock(&self.q.receiving, &self.receiving_thread)
        if isinstance(item, PickledContent):
            return unpickle_content(item.content, item.stream_nbytes, self.memory)
        return item

    cdef object next_item(self, int64_t timeout_ns, int64_t deadline_ns):
        cdef uint64_t head
        cdef int64_t left
        cdef bint found = False
        while self.receiver.kept is None:
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
            # A part of an item has come, and the rest will, unless it is given up.
            while not found and self.receiver.target is not None:
                left = tick_until(deadline_ns, timeout_ns)
                if left == 0 and self.hold_item():
                    raise queue.Empty
                item = self.receiver.next_message(left, &found)
                if not found and self.is_no_producer():
                    item = self.receiver.next_message(0, &found)      # the rest may have come before it left
                    if not found and self.receiver.target is not None:
                        self.make_receiver()
                        self.have_receiver()
            if found:
                return item
        return self.receiver.next_message(0, &found)

    def get_nowait(self):
        """Get the next item if there is one. Raises as `get`.

        Returns
        -------
        object
            As of `get`.
        """
        return self.get(False)

    # ---- state ----

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
        if self.q == NULL:
            return f"<shmring.{type(self).__name__}, not made>"
        return f"<shmring.{type(self).__name__} of {self.qsize()} items{', closed here' if self.is_closed else ''}>"


cdef object content_of(object item, object memory):
    """What is sent of an item: bytes and plain arrays as they are, all else pickled."""
    if PyBytes_CheckExact(item) or (cnp.PyArray_CheckExact(item) and cnp.PyArray_IS_C_CONTIGUOUS(item)
                                    and not item.dtype.hasobject and item.dtype.isbuiltin != 2):
        return item
    return pickle_object(item, memory)


def _adopted(kind, memory):
    """The queue of a memory that came from another process."""
    cdef Queue adopted = kind.__new__(kind)
    adopted.use(memory)
    queues.add(adopted)
    return adopted


def _after_fork():
    cdef Queue inherited
    for inherited in list(queues):
        inherited.make_ends()


os.register_at_fork(after_in_child=_after_fork)
