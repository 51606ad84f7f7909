"""Functions that one thread of a process executes at a time (sync/turn.pxd)."""

from queue import SimpleQueue

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.base.signals cimport check_signals


cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_lock(pthread_mutex_t *mutex)

cdef extern from "_c/moment.h" nogil:
    struct timespec:
        pass
    const int WAITING_CLOCK
    timespec moment_in(int64_t ns)
    int pthread_mutex_clocklock(pthread_mutex_t *mutex, int clock, const timespec *until)

IS_FREE_THREADED = bool(FREE_THREADED)      # for Python code: whether the interpreter has no GIL

cdef enum:
    TICK_NS = 20000000      # of a wait for a shared turn, after which signals are handled


cdef int await_turn(turn_t *turn, object queue, object name) except -1:
    cdef timespec until
    cdef bint is_locked
    while True:
        if is_shared(turn) and pthread_mutex_trylock(&turn.mutex) == 0:
            return 0
        if not is_shared(turn) and not turn.is_taken:
            return 0
        if has_turn(turn):
            raise RuntimeError(f"{name}: a signal handler or callback made a call inside a call of its own thread")
        if is_shared(turn):
            with nogil:
                until = moment_in(TICK_NS)
                is_locked = pthread_mutex_clocklock(&turn.mutex, WAITING_CLOCK, &until) == 0
            if is_locked:
                return 0
            check_signals()
        else:
            turn.nwaiting += 1
            try:
                queue.get()
            finally:
                turn.nwaiting -= 1


cdef int share_turn(turn_t *turn, object queue, object name) except -1:
    """From now on threads without the GIL take it, too. Waits until it is free."""
    cdef int _thread
    if is_shared(turn):
        return 0
    take_turn(turn, queue, name)
    if not turn.by_mutex:      # else another thread has done it meanwhile
        pthread_mutex_lock(&turn.mutex)
        turn.by_mutex = True
        for _thread in range(turn.nwaiting):
            queue.put(None)
    give_turn(turn, queue)
    return 0


cdef bint await_shared_turn(turn_t *turn) noexcept nogil:
    cdef PyThreadState *state
    if has_turn(turn):
        return False
    state = drop_gil()
    pthread_mutex_lock(&turn.mutex)
    retake_gil(state)
    return True


cdef class Turn:
    """Runs functions, one at a time. What a signal handler raises anywhere leaves the turn free.

    Parameters
    ----------
    name : str
        For the error of a call inside a call.
    is_reentrant : bool, default False
        Whether the thread that has the turn may call again, as in a signal handler or a finalizer.
    """

    def __cinit__(self, str name not None, *, bint is_reentrant=False):
        self.queue = SimpleQueue()
        self.name = name
        self.is_reentrant = is_reentrant

    cpdef take(self):
        """Take the turn, once it is free; if this raises, it is not taken. For hooks that the interpreter calls."""
        if not self.is_reentrant or not has_turn(&self.turn):
            take_turn(&self.turn, self.queue, self.name)
        self.depth += 1

    cpdef give(self):
        """Give the turn that `take` has taken; no effect if this thread does not have it."""
        if not has_turn(&self.turn):
            return
        self.depth -= 1
        if self.depth == 0:
            give_turn(&self.turn, self.queue)

    def renew(self):
        """Make it free, in a forked child: the thread that had it is not here."""
        memset(&self.turn, 0, sizeof(turn_t))
        self.depth = 0
        self.queue = SimpleQueue()

    def run(self, function, *args):
        """Take the turn, call ``function(*args)``, give the turn, return the result."""
        self.take()
        try:
            return function(*args)
        finally:
            self.give()
