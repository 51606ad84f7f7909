"""The parts of sends and receives that need no GIL: what fits the pair queue, and a message that is awaited alone.

For threads without the GIL, once the turns are shared (`Membership.share_turns`). What needs a request (a full pair
queue, other requests that are pending, another thread that sleeps for messages, a message that does not match) is done
with the GIL, in the same turn.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t

from shmring._c.atomics cimport store_relaxed_u64

from shmring.arrays.array_view cimport array_t
from shmring.engine.engine cimport timeline_of
from shmring.engine.signature cimport KIND_RECV, KIND_SEND, pack_signature
from shmring.engine.recording cimport message_started, note_message
from shmring.p2p.all_queues cimport sleep_until_news, spin
from shmring.p2p.pair_queue cimport pull, push
from shmring.p2p.point_to_point cimport PointToPoint, arrival_t
from shmring.p2p.progress cimport report_lost_peers
from shmring.p2p.requests cimport ANY
from shmring.sync.backoff cimport FIRST_TICK_NS, deadline_of, left_until
from shmring.sync.group cimport READY, UNREADY
from shmring.sync.turn cimport PyThreadState, drop_gil, give_shared_turn, retake_gil, take_shared_turn


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
    if not PyList_GET_SIZE(<PyObject *> p.finished):
        if p.awaiting_is_posted:
            p.awaiting_is_posted = False
            store_relaxed_u64(&p.engine.c.own.awaiting, 0)
        give_shared_turn(&p.engine.message_turn)
        return
    with gil:
        visit(p)
        p.leave()


cdef bint send_free(PointToPoint p, array_t *a, int peer, int tag) noexcept nogil:
    """Send what fits the pair queue as it is; else False, and nothing is sent."""
    cdef int64_t started_ns = message_started(timeline_of(p.engine))
    if not p.start_whole(a, peer, tag):
        return False
    push(&p.queues, peer)
    note_message(timeline_of(p.engine), KIND_SEND, peer, tag, a.nbytes, p.queues.send[peer].number, started_ns)
    return True


cdef inline bint has_requests(PointToPoint p) noexcept nogil:
    return PyList_GET_SIZE(<PyObject *> p.posted) or PyList_GET_SIZE(<PyObject *> p.unexpected) or p.nunderway


cdef int recv_free(PointToPoint p, array_t *a, int peer, int tag, arrival_t *found, bint *has_spun) noexcept nogil:
    """As `PointToPoint.recv_spinning`. READY: received. UNREADY: not; ``found.source`` is ANY, or the rank whose
    message has begun.

    If ``has_spun`` is True, it looks once and does not spin.
    """
    found.source = ANY
    if has_requests(p):
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


cdef int await_free(PointToPoint p, array_t *a, int peer, int tag, int64_t *timeout_ns,
                    arrival_t *found) noexcept nogil:
    """Sleep until the message comes, after `recv_free` has spun in vain. Results as there; ``timeout_ns`` becomes what
    is left of it.

    UNREADY also after the timeout, and if the communicator is broken: a request then gives the error. While this
    thread sleeps, others have the turn; `Membership.close` waits for it.
    """
    cdef int64_t deadline_ns = deadline_of(timeout_ns[0]), tick_ns = FIRST_TICK_NS, left_ns
    cdef bint has_news, has_spun = True
    while not has_requests(p) and not p.has_sleeper:
        left_ns = timeout_ns[0] = left_until(deadline_ns, timeout_ns[0])
        if left_ns == 0:
            break
        p.count_posted(peer, 1)
        if report_lost_peers(&p.queues, False):
            p.count_posted(peer, -1)
            break
        p.awaiting_is_posted = True
        store_relaxed_u64(&p.engine.c.own.awaiting, pack_signature(KIND_RECV, 0, 0, peer, <uint64_t> (tag + 1)))
        has_news = sleep_free(p, tick_ns if left_ns < 0 else min(tick_ns, left_ns))
        p.count_posted(peer, -1)
        if not p.engine.is_usable():
            break
        if recv_free(p, a, peer, tag, found, &has_spun) == READY:
            return READY
        if has_news or found.source != ANY:      # a message that does not match, or is longer than what has come of it
            break
        tick_ns = min(2 * tick_ns, p.queues.group.tick_ns)
    return UNREADY


cdef bint sleep_free(PointToPoint p, int64_t tick_ns) noexcept nogil:
    """Sleep for one tick, without the turn; whether there is something to do."""
    cdef uint64_t changes = p.queues.changes
    cdef PyThreadState *state
    cdef bint has_news
    p.has_sleeper = True
    p.engine.nsleepers += 1
    give_shared_turn(&p.engine.message_turn)
    state = drop_gil()
    has_news = sleep_until_news(&p.queues, tick_ns, changes) == READY
    retake_gil(state)
    take_shared_turn(&p.engine.message_turn)
    p.engine.nsleepers -= 1
    p.has_sleeper = False
    if p.nfollowers:
        with gil:
            wake_followers(p)
    return has_news


cdef void wake_followers(PointToPoint p) noexcept:
    cdef int _thread
    for _thread in range(p.nfollowers):
        p.followers.put(None)
