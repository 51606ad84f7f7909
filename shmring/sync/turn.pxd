# The turn that the threads of one process take: one thread at a time is in a call.
#
# All fields are loaded and stored with the GIL held, so there are no atomics. A thread that waits for the turn sleeps
# in `SimpleQueue.get`, where signal handlers run. No lock of Python's: a signal handler may raise between any two
# instructions of Python code, also between taking a lock and the block that releases it. In CPython 3.14 that holds
# even for the `with` statement and a lock that is written in C.
from cpython.pythread cimport PyThread_get_thread_ident

ctypedef struct turn_t:
    bint is_taken
    unsigned long holder           # the thread that has it
    int nwaiting


cdef inline bint has_turn(const turn_t *turn) noexcept:
    """Whether the calling thread has it."""
    return turn.is_taken and turn.holder == PyThread_get_thread_ident()


cdef inline int await_turn(turn_t *turn, object queue, object name) except -1:
    while turn.is_taken:
        if has_turn(turn):
            raise RuntimeError(f"{name}: a signal handler or callback made a call inside a call of its own thread")
        turn.nwaiting += 1
        try:
            queue.get()
        finally:
            turn.nwaiting -= 1
    return 0


cdef inline bint take_turn(turn_t *turn, object queue, object name) except -1:
    """Take the turn, once it is free; whether that took waiting. ``queue`` is a `SimpleQueue` that goes with ``turn``.

    If this raises, the turn is not taken.
    """
    cdef bint has_waited = False
    if turn.is_taken:
        await_turn(turn, queue, name)
        has_waited = True
    turn.is_taken = True
    turn.holder = PyThread_get_thread_ident()
    return has_waited


cdef inline void give_turn(turn_t *turn, object queue) noexcept:
    turn.is_taken = False
    if turn.nwaiting > 0:
        queue.put(None)


cdef class Turn:
    cdef turn_t turn
    cdef object queue
    cdef readonly str name
    cdef readonly bint is_reentrant
    cdef int depth                 # of calls of the thread that has it
