"""The parts of sends and receives that need no GIL: what can be sent or received at once, or while spinning.

For threads without the GIL, once the turns are shared (`Membership.share_turns`). What needs a request (a full pair
queue, a message that is not there, other requests that are pending) is done with the GIL, in the same turn.
"""

from cpython.object cimport PyObject

from shmring.arrays.array_view cimport array_t
from shmring.p2p.pair_queue cimport pull, push, spin
from shmring.p2p.point_to_point cimport PointToPoint, arrival_t
from shmring.p2p.requests cimport ANY
from shmring.sync.group cimport READY, UNREADY
from shmring.sync.turn cimport give_shared_turn, take_shared_turn


cdef extern from "Python.h" nogil:
    Py_ssize_t PyList_GET_SIZE(PyObject *list)      # of a list that only the thread with the turn changes


cdef bint enter_free(PointToPoint p) noexcept nogil:
    """As `PointToPoint.enter`. False, without the turn: the communicator is unusable, or this thread has the turn.

    The caller leaves by `leave_free`; or it takes the GIL, calls `visit`, and leaves by `PointToPoint.leave`.
    """
    if p.engine.is_inherited or not take_shared_turn(&p.engine.message_turn):
        return False
    if not p.engine.is_usable():
        give_shared_turn(&p.engine.message_turn)
        return False
    return True


cdef void leave_free(PointToPoint p) noexcept nogil:
    if not (p.awaiting_is_posted or PyList_GET_SIZE(<PyObject *> p.finished)):
        give_shared_turn(&p.engine.message_turn)
        return
    with gil:
        visit(p)
        p.leave()


cdef bint send_free(PointToPoint p, array_t *a, int peer, int tag) noexcept nogil:
    """Send what fits the pair queue as it is; else False, and nothing is sent."""
    if not p.start_whole(a, peer, tag):
        return False
    push(&p.queues, peer)
    return True


cdef int recv_free(PointToPoint p, array_t *a, int peer, int tag, arrival_t *found, bint *has_spun) noexcept nogil:
    """As `PointToPoint.recv_spinning`. READY: received. UNREADY: not; ``found.source`` is ANY, or the rank whose
    message has begun.

    If ``has_spun`` is True, it looks once and does not spin.
    """
    found.source = ANY
    if PyList_GET_SIZE(<PyObject *> p.posted) or PyList_GET_SIZE(<PyObject *> p.unexpected) or p.nunderway:
        return UNREADY
    if not p.take_at_once(a, peer, tag, 1 if has_spun[0] else p.engine.c.brief_looks, found):
        found.source = ANY
        if has_spun[0]:
            return UNREADY
        p.count_posted(peer, 1)
        has_spun[0] = spin(&p.queues) == UNREADY
        p.count_posted(peer, -1)
        if not p.take_at_once(a, peer, tag, 1, found):
            found.source = ANY
            return UNREADY
    pull(&p.queues, found.source)
    if p.queues.recv[found.source].is_busy and not has_spun[0]:
        has_spun[0] = spin(&p.queues) == UNREADY
    return UNREADY if p.queues.recv[found.source].is_busy else READY
