"""What `put` of a queue of `shmring.multiprocessing` has left to a thread: items of one process that wait for room.

A signal handler may raise between any two instructions of Python code, also between taking a lock and the block that
releases it. So no lock of Python's is used, and what belongs together is done in compiled code, which no handler
interrupts: an item has its place of `maxsize` and is in the ring or the backlog, or neither; a thread runs and is known
to run, or neither.
"""

cimport cython
from libc.stdint cimport uint32_t

import queue
from _thread import start_new_thread

from shmring.core.c.atomics cimport add_u32, load_relaxed_u32, subtract_one_u32
from shmring.core.base.timeouts cimport forgiving_timeout_to_ns
from shmring.channels.half_pipe cimport HalfPipe
from shmring.channels.queue cimport UNLIMITED
from shmring.core.sync.liveness cimport fork_generation


@cython.final
cdef class Backlog:
    """The items, in order, and the thread that sends them.

    Parameters
    ----------
    pipe : HalfPipe
        Where they go.
    """

    cdef object __weakref__
    cdef HalfPipe pipe
    cdef object contents           # None at the end
    cdef object ended              # has a token once the thread has ended
    cdef uint32_t count            # of items that are not in the ring yet
    cdef uint32_t generation
    cdef bint has_thread

    def __cinit__(self, HalfPipe pipe not None):
        pipe.require_made()
        self.pipe = pipe
        self.renew()

    cdef int renew(self) except -1:
        """Begin anew, also in a forked child: the items are its parent's, whose thread is not here."""
        self.contents, self.ended = queue.SimpleQueue(), queue.SimpleQueue()
        self.count, self.has_thread, self.generation = 0, False, fork_generation()
        return 0

    def put(self, content, timeout, feeding):
        """Send content, now or once there is room.

        ``timeout`` is for a place of `maxsize`: ``queue.Full``. ``feeding()`` gives the function of the thread, and its
        arguments. Raises as `HalfPipe.send`; then the item was not put.
        """
        cdef bint is_placed = self.pipe.maxsize != UNLIMITED
        if self.generation != fork_generation():
            self.renew()
        if is_placed:
            self.pipe.take_place(forgiving_timeout_to_ns(timeout))
        try:
            if not load_relaxed_u32(&self.count) and self.put_now(content):
                return
            function, args = feeding()             # code of Python: from here on no handler runs
            with cython.critical_section(self):    # two threads may put
                if not self.has_thread:
                    start_new_thread(function, args)
                    self.has_thread = True
            if not is_placed:
                self.pipe.keep(1)
            is_placed = False                      # the thread gives the place back
            add_u32(&self.count, 1)
            self.contents.put(content)
        finally:
            if is_placed:
                self.pipe.give_place()

    cdef bint put_now(self, content) except -1:
        try:
            self.pipe.send_placed(content, 0)
        except queue.Full:
            return False
        except ValueError:                         # longer than can go without waiting
            return False
        return True

    # ---- for the thread ----

    def next(self):
        """Wait for the next item; None: there will be no more."""
        return self.contents.get()

    def send(self, content):
        """Send the item that `next` has given. Raises as `HalfPipe.send`; it counts no longer in either case."""
        try:
            self.pipe.send_placed(content, -1)
        finally:
            self.pipe.give_place()
            subtract_one_u32(&self.count)

    def leave(self):
        """The last call of the thread."""
        self.ended.put(None)

    # ---- leaving ----

    def end(self):
        """No more items are put: the thread ends when it has sent all."""
        if self.has_thread and self.generation == fork_generation():
            self.contents.put(None)

    def join(self):
        """Wait until the thread has ended, which `end` has caused."""
        if self.has_thread and self.generation == fork_generation():
            self.ended.put(self.ended.get())
