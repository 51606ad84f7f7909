# The turn that the threads of one process take: one thread at a time is in a call.
#
# A thread that has to wait for the turn counts itself and sleeps on the semaphore, which the thread that gives the turn
# posts if there is a count: the handshake of core/c/backoff.h. No lock of Python's: a signal handler may raise between
# any two instructions of Python code, also between taking a lock and the block that releases it. In CPython 3.14 that
# holds even for the `with` statement and a lock that is written in C.
#
# The GIL guards all fields. Once threads without the GIL take the turn, too (`share_turn`), and from the start in an
# interpreter without the GIL, the fields are atomic. A thread never sleeps with the GIL held (without one: attached to
# the interpreter), so the thread that has the turn can always take the GIL.
from libc.stdint cimport uint32_t, uint64_t

from shmring.core.c.atomics cimport (
    compare_swap_u32, full_fence, load_relaxed_u32, load_relaxed_u64, store_relaxed_u32, store_relaxed_u64,
    store_release_u32,
)
from shmring.core.c.layout cimport sem_t
from shmring.core.sync.backoff cimport sem_post

cdef extern from "<pthread.h>" nogil:
    ctypedef size_t pthread_t
    pthread_t pthread_self()

cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState:
        pass
    PyThreadState *PyGILState_GetThisThreadState()
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)

cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030d0000
    #define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
    #endif
    #ifdef Py_GIL_DISABLED
    enum { FREE_THREADED = 1 };
    #else
    enum { FREE_THREADED = 0 };
    #endif
    """
    const bint FREE_THREADED        # whether the interpreter has no GIL
    PyThreadState *PyThreadState_GetUnchecked() nogil

# Zeros are a turn that is free.
ctypedef struct turn_t:
    uint32_t is_taken
    bint by_threads_without_gil    # from now on, `share_turn`
    uint64_t holder                # the thread that has it; shared: 0 if none
    uint32_t nwaiting              # threads that sleep on the semaphore, or are about to
    sem_t given


cdef int await_turn(turn_t *turn, object name) except -1
# For threads without the GIL; False: the calling thread has the turn already.
cdef bint await_shared_turn(turn_t *turn) noexcept nogil


cdef inline bint is_shared(const turn_t *turn) noexcept nogil:
    """Whether threads without the GIL take it, too."""
    return FREE_THREADED or turn.by_threads_without_gil


cdef inline bint is_taken(const turn_t *turn) noexcept nogil:
    """Whether a thread has it, which may change at any time if the turn is shared."""
    return load_relaxed_u32(&turn.is_taken)


cdef inline bint has_turn(const turn_t *turn) noexcept nogil:
    """Whether the calling thread has it: only that thread stores its number."""
    return is_taken(turn) and load_relaxed_u64(&turn.holder) == <uint64_t> pthread_self()


cdef inline void note_taken(turn_t *turn) noexcept nogil:
    store_relaxed_u32(&turn.is_taken, True)
    store_relaxed_u64(&turn.holder, <uint64_t> pthread_self())


cdef inline bint seize(turn_t *turn) noexcept nogil:
    """Take it if it is free, but for `note_taken`."""
    if is_shared(turn):
        # SYNC turn (meets: give_shared_turn)
        return compare_swap_u32(&turn.is_taken, 0, 1)
    return not turn.is_taken


cdef inline bint take_turn(turn_t *turn, object name) except -1:
    """Take the turn, once it is free; whether another thread may have had it meanwhile. If this raises, it is not
    taken."""
    cdef bint has_waited = not seize(turn)
    if has_waited:
        await_turn(turn, name)
    note_taken(turn)
    return has_waited or is_shared(turn)


cdef inline bint try_turn(turn_t *turn) noexcept:
    """Take the turn if it is free."""
    if not seize(turn):
        return False
    note_taken(turn)
    return True


cdef inline void give_turn(turn_t *turn) noexcept:
    if is_shared(turn):
        give_shared_turn(turn)
        return
    turn.is_taken = False
    if turn.nwaiting > 0:
        sem_post(&turn.given)


cdef inline void share_turn(turn_t *turn) noexcept:
    """From now on threads without the GIL take it, too."""
    turn.by_threads_without_gil = True


# ---- for threads that may or may not have the GIL ----

cdef inline PyThreadState *drop_gil() noexcept nogil:
    """Give the GIL up, before a wait; NULL if the calling thread does not have it."""
    # Not PyGILState_Check: once there was a subinterpreter, it is always true.
    cdef PyThreadState *state = PyThreadState_GetUnchecked()
    return PyEval_SaveThread() if state != NULL and state == PyGILState_GetThisThreadState() else NULL


cdef inline void retake_gil(PyThreadState *state) noexcept nogil:
    if state != NULL:
        PyEval_RestoreThread(state)


# ---- without the GIL, of a turn that is shared ----

cdef inline bint take_shared_turn(turn_t *turn) noexcept nogil:
    """Take the turn, once it is free. False: the calling thread has it already."""
    if not seize(turn) and not await_shared_turn(turn):
        return False
    note_taken(turn)
    return True


cdef inline void give_shared_turn(turn_t *turn) noexcept nogil:
    # Cleared before the turn is free: `has_turn` of another thread never finds its own number here.
    store_relaxed_u64(&turn.holder, 0)
    # SYNC turn (meets: seize)
    store_release_u32(&turn.is_taken, 0)
    # SYNC given (meets: await_turn, await_shared_turn)
    full_fence()
    if load_relaxed_u32(&turn.nwaiting):
        sem_post(&turn.given)


cdef class Turn:
    cdef turn_t turn
    cdef readonly str name
    cdef readonly bint is_reentrant
    cdef int depth                 # of calls of the thread that has it

    cpdef take(self)
    cpdef give(self)
