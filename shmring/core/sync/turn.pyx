"""Functions that one thread of a process executes at a time (core/sync/turn.pxd)."""

from libc.string cimport memset

from shmring.core.c.atomics cimport add_u32, full_fence, subtract_one_u32
from shmring.core.base.signals cimport check_signals
from shmring.core.sync.backoff cimport sem_post, sleep_on

IS_FREE_THREADED = bool(FREE_THREADED)      # for Python code: whether the interpreter has no GIL

cdef enum:
    TICK_NS = 20000000      # of a wait, after which signals are handled


cdef int await_turn(turn_t *turn, object name) except -1:
    """Wait for a turn that is taken."""
    if has_turn(turn):
        raise RuntimeError(f"{name}: a signal handler or callback made a call inside a call of its own thread")
    add_u32(&turn.nwaiting, 1)
    try:
        while True:
            # SYNC given (meets: give_shared_turn)
            full_fence()
            if seize(turn):
                return 0
            with nogil:
                sleep_on(&turn.given, TICK_NS)
            check_signals()
    except BaseException:
        sem_post(&turn.given)      # this thread may have taken the post that another one waits for
        raise
    finally:
        subtract_one_u32(&turn.nwaiting)


cdef bint await_shared_turn(turn_t *turn) noexcept nogil:
    cdef PyThreadState *state
    if has_turn(turn):
        return False
    state = drop_gil()
    add_u32(&turn.nwaiting, 1)
    while True:
        # SYNC given (meets: give_shared_turn)
        full_fence()
        if seize(turn):
            break
        sleep_on(&turn.given, -1)
    subtract_one_u32(&turn.nwaiting)
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
        self.name = name
        self.is_reentrant = is_reentrant

    cpdef take(self):
        """Take the turn, once it is free; if this raises, it is not taken. For hooks that the interpreter calls."""
        if not self.is_reentrant or not has_turn(&self.turn):
            take_turn(&self.turn, self.name)
        self.depth += 1

    cpdef give(self):
        """Give the turn that `take` has taken; no effect if this thread does not have it."""
        if not has_turn(&self.turn):
            return
        self.depth -= 1
        if self.depth == 0:
            give_turn(&self.turn)

    @property
    def is_taken(self):
        """Whether a thread has the turn."""
        return self.depth > 0

    def renew(self):
        """Make it free, in a forked child: the thread that had it is not here."""
        memset(&self.turn, 0, sizeof(turn_t))
        self.depth = 0

    def run(self, function, *args):
        """Take the turn, call ``function(*args)``, give the turn, return the result."""
        self.take()
        try:
            return function(*args)
        finally:
            self.give()
