# The turn that the threads of one process take: one thread at a time is in a call.
#
# The GIL guards all fields, and a thread that waits for the turn sleeps in `SimpleQueue.get`, where signal handlers
# run. No lock of Python's: a signal handler may raise between any two instructions of Python code, also between taking
# a lock and the block that releases it. In CPython 3.14 that holds even for the `with` statement and a lock that is
# written in C.
#
# Once threads without the GIL take it, too (`share_turn`), and from the start in an interpreter without the GIL, a
# mutex is the turn, and the thread that has it stores the fields. A thread never waits for the mutex with the GIL held
# (without one: attached to the interpreter), so the thread that has the turn can always take the GIL.
from libc.stdint cimport uint32_t, uint64_t

from shmring._c.atomics cimport load_relaxed_u32, load_relaxed_u64, store_relaxed_u32, store_relaxed_u64

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
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
    bint by_mutex                  # from now on, `share_turn`
    uint64_t holder                # the thread that has it; shared: 0 if none
    int nwaiting                   # in the queue
    pthread_mutex_t mutex


# Wait for a turn that is taken or shared; if it is shared, the caller has the mutex afterwards.
cdef int await_turn(turn_t *turn, object queue, object name) except -1
cdef int share_turn(turn_t *turn, object queue, object name) except -1
# For threads without the GIL; False: the calling thread has the turn already.
cdef bint await_shared_turn(turn_t *turn) noexcept nogil


cdef inline bint is_shared(const turn_t *turn) noexcept nogil:
    """Whether the mutex is the turn."""
    return FREE_THREADED or turn.by_mutex


cdef inline bint is_taken(const turn_t *turn) noexcept nogil:
    """Whether a thread has it, which may change at any time if the turn is shared."""
    return load_relaxed_u32(&turn.is_taken)


cdef inline bint has_turn(const turn_t *turn) noexcept nogil:
    """Whether the calling thread has it: only that thread stores its number."""
    return is_taken(turn) and load_relaxed_u64(&turn.holder) == <uint64_t> pthread_self()


cdef inline void note_taken(turn_t *turn) noexcept nogil:
    store_relaxed_u32(&turn.is_taken, True)
    store_relaxed_u64(&turn.holder, <uint64_t> pthread_self())


cdef inline bint take_turn(turn_t *turn, object queue, object name) except -1:
    """Take the turn, once it is free; whether another thread may have had it meanwhile. ``queue`` is a `SimpleQueue`
    that goes with ``turn``.

    If this raises, the turn is not taken.
    """
    cdef bint has_waited = False
    if is_shared(turn) or turn.is_taken:
        await_turn(turn, queue, name)
        has_waited = True
    note_taken(turn)
    return has_waited


cdef inline bint try_turn(turn_t *turn) noexcept:
    """Take the turn if it is free."""
    if pthread_mutex_trylock(&turn.mutex) != 0 if is_shared(turn) else is_taken(turn):
        return False
    note_taken(turn)
    return True


cdef inline void give_turn(turn_t *turn, object queue) noexcept:
    if is_shared(turn):
        give_shared_turn(turn)
        return
    turn.is_taken = False
    if turn.nwaiting > 0:
        queue.put(None)


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
    if pthread_mutex_trylock(&turn.mutex) != 0 and not await_shared_turn(turn):
        return False
    note_taken(turn)
    return True


cdef inline void give_shared_turn(turn_t *turn) noexcept nogil:
    # Cleared before the mutex is free: `has_turn` of another thread never finds its own number here.
    store_relaxed_u32(&turn.is_taken, False)
    store_relaxed_u64(&turn.holder, 0)
    pthread_mutex_unlock(&turn.mutex)


cdef class Turn:
    cdef turn_t turn
    cdef object queue
    cdef readonly str name
    cdef readonly bint is_reentrant
    cdef int depth                 # of calls of the thread that has it

    cpdef take(self)
    cpdef give(self)
