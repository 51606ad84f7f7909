"""Messages without the GIL: a send that fits the pair queue, and a receive while no request is pending.

A call that needs a request (a full pair queue, `irecv` of a message that is not there yet, other pending requests)
takes the GIL in the same turn and continues as in `shmring.collectives.p2p.point_to_point`.

Functions of this room without the GIL have no Python variables, those of ``except ... as`` included: Cython would take
the GIL to clear them at every return. So the parts with the GIL are functions of their own.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from shmring.core.arrays.array_view cimport array_t, overlap
from shmring.core.base.timeouts cimport NO_LIMIT
from shmring.capi cimport SHMRING_ERR_OUT_OF_MEMORY, shmring_api, shmring_comm, shmring_message, shmring_request
from shmring.capi.handles cimport (check_memory, checked_timeout, comm_t, fail, fail_with, hold, is_inherited, let_go,
                                   refuse, refuse_entry, refuse_timeout)
from shmring.collectives.p2p.point_to_point cimport PointToPoint, arrival_t, visit
from shmring.collectives.p2p.requests cimport (ANY, RECV, SEND, Message, Request, begin_wait, check_apart, check_tag,
                                   request_of, wait_t)
from shmring.core.sync.group cimport READY


# What a `shmring_request *` points to.
ctypedef struct pending_t:
    comm_t *comm                   # holds the handle, if there is a request
    PyObject *request              # holds a reference; NULL: it is over, and `message` describes the message received
    shmring_message message


cdef inline void describe(shmring_message *m, arrival_t *found) noexcept nogil:
    if m != NULL:
        m.source, m.tag, m.nbytes, m.dtype = found.source, found.tag, found.nbytes, found.code


cdef inline void describe_message(shmring_message *m, Message message) noexcept:
    if m != NULL and message is not None:
        m.source, m.tag, m.nbytes, m.dtype = message.source, message.tag, message.nbytes, message.code


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int check_message(comm_t *h, const void *x, int64_t count, int dtype, int dst, int tag, int src, int out_tag,
                       int64_t *timeout_ns, array_t *a) noexcept nogil:
    """Check the arguments of a message, and resolve its timeout; 0, or the code of the error.

    ``dst``, ``tag``: of the message sent; ``src``, ``out_tag``: of the message received.
    """
    cdef int64_t given_ns = timeout_ns[0]
    if h == NULL:
        return refuse(b"comm must not be NULL")
    timeout_ns[0] = checked_timeout(given_ns, h.timeout_ns)
    if timeout_ns[0] < NO_LIMIT:
        return refuse_timeout(given_ns)
    if not (0 <= dst < h.size and tag >= 0 and ANY <= src < h.size and out_tag >= ANY):
        return refuse_peers(h, dst, tag, src, out_tag)
    return check_memory(x, count, dtype, a)


cdef inline int enter(comm_t *h) noexcept nogil:
    """Enter a call of messages: 0, or the code of the error."""
    return refuse_entry(h) if is_inherited(h) or not (<PointToPoint> h.messages).enter_free() else 0


cdef int refuse_peers(comm_t *h, int dst, int tag, int src, int out_tag) noexcept with gil:
    cdef PointToPoint p = <PointToPoint> h.messages
    try:
        p.check_peer(dst, False)
        p.check_peer(src, True)
        check_tag(tag, False)
        check_tag(out_tag, True)
    except BaseException as error:
        return fail_with(error)
    return 0


# ---- calls that end when they are done -------------------------------------------------------------------------------

cdef int send(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
              int64_t timeout_ns) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef array_t a
    cdef int code = check_message(h, x, count, dtype, dst, tag, 0, 0, &timeout_ns, &a) or enter(h)
    if code:
        return code
    if (<PointToPoint> h.messages).send_whole(&a, dst, tag):
        (<PointToPoint> h.messages).leave_free()
        return 0
    return send_with_gil(h, &a, dst, tag, timeout_ns)


cdef int send_with_gil(comm_t *h, array_t *a, int dst, int tag, int64_t timeout_ns) noexcept with gil:
    cdef PointToPoint p = <PointToPoint> h.messages
    cdef wait_t wait
    visit(p)
    begin_wait(&wait, timeout_ns)
    try:
        try:
            p.transmit(a, None, None, dst, tag, &wait)
        finally:
            p.leave()
    except BaseException as error:
        return fail_with(error)
    return 0


cdef int recv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, int64_t timeout_ns,
              shmring_message *m) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef array_t a
    cdef arrival_t found
    cdef wait_t wait
    cdef int code = check_message(h, x, count, dtype, 0, 0, src, tag, &timeout_ns, &a) or enter(h)
    if code:
        return code
    begin_wait(&wait, timeout_ns)
    if (<PointToPoint> h.messages).receive_free(&a, src, tag, &wait, &found) == READY:
        (<PointToPoint> h.messages).leave_free()
        describe(m, &found)
        return 0
    return recv_with_gil(h, NULL, 0, 0, &a, src, tag, &found, &wait, m)


cdef int recv_with_gil(comm_t *h, array_t *sent, int dst, int sent_tag, array_t *a, int src, int tag, arrival_t *found,
                       wait_t *wait, shmring_message *m) noexcept with gil:
    """Receive by a request, which continues the message that has begun, if any; send ``sent`` first, unless NULL."""
    cdef PointToPoint p = <PointToPoint> h.messages
    cdef Request sending = None
    visit(p)
    try:
        try:
            if sent != NULL:
                sending = request_of(p, SEND, dst, sent_tag, sent, None, None)
                p.begin_send(sending)
            describe_message(m, p.await_message(sending, request_of(p, RECV, src, tag, a, None, None), found, wait))
        finally:
            p.leave()
    except BaseException as error:
        return fail_with(error)
    return 0


cdef int sendrecv(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, void *out,
                  int64_t out_count, int out_dtype, int src, int out_tag, int64_t timeout_ns,
                  shmring_message *m) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef array_t a, b
    cdef arrival_t found
    cdef wait_t wait
    cdef bint is_sent
    cdef int code = check_message(h, x, count, dtype, dst, tag, src, out_tag, &timeout_ns, &a)
    code = code or check_memory(out, out_count, out_dtype, &b)
    if code:
        return code
    if overlap(&a, &b):
        return refuse_overlap(&a, &b)
    code = enter(h)
    if code:
        return code
    begin_wait(&wait, timeout_ns)
    found.source = ANY
    is_sent = (<PointToPoint> h.messages).send_whole(&a, dst, tag)
    if is_sent and (<PointToPoint> h.messages).receive_free(&b, src, out_tag, &wait, &found) == READY:
        (<PointToPoint> h.messages).leave_free()
        describe(m, &found)
        return 0
    return recv_with_gil(h, NULL if is_sent else &a, dst, tag, &b, src, out_tag, &found, &wait, m)


cdef int refuse_overlap(array_t *a, array_t *b) noexcept with gil:
    try:
        check_apart(a, b)
    except BaseException as error:
        return fail_with(error)
    return 0


# ---- requests --------------------------------------------------------------------------------------------------------

cdef int make_pending(shmring_request **made, pending_t **pending) noexcept nogil:
    """Allocate memory for a request, whose handle will be ``made``; 0, or the code of the error."""
    if made == NULL:
        return refuse(b"request must not be NULL")
    made[0] = NULL
    pending[0] = <pending_t *> calloc(1, sizeof(pending_t))
    if pending[0] == NULL:
        return fail(SHMRING_ERR_OUT_OF_MEMORY, b"MemoryError", -1, b"no memory for a request")
    return 0


cdef int isend(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
               shmring_request **made) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef array_t a
    cdef int64_t timeout_ns = NO_LIMIT
    cdef pending_t *pending = NULL
    cdef int code = check_message(h, x, count, dtype, dst, tag, 0, 0, &timeout_ns, &a)
    code = code or make_pending(made, &pending) or enter(h)
    if code == 0 and (<PointToPoint> h.messages).send_whole(&a, dst, tag):
        (<PointToPoint> h.messages).leave_free()
    elif code == 0:
        code = begin_with_gil(h, SEND, &a, dst, tag, NULL, pending)
    return hand_over(pending, code, made)


cdef int irecv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag,
               shmring_request **made) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef array_t a
    cdef int64_t timeout_ns = NO_LIMIT
    cdef arrival_t found
    cdef pending_t *pending = NULL
    cdef int code = check_message(h, x, count, dtype, 0, 0, src, tag, &timeout_ns, &a)
    code = code or make_pending(made, &pending) or enter(h)
    if code == 0 and (<PointToPoint> h.messages).receive_at_once(&a, src, tag, NULL, &found) == READY:
        (<PointToPoint> h.messages).leave_free()
        describe(&pending.message, &found)
    elif code == 0:
        code = begin_with_gil(h, RECV, &a, src, tag, &found, pending)
    return hand_over(pending, code, made)


cdef inline int hand_over(pending_t *pending, int code, shmring_request **made) noexcept nogil:
    if code == 0:
        made[0] = <shmring_request *> pending
    else:
        free(pending)
    return code


cdef int begin_with_gil(comm_t *h, int kind, array_t *a, int peer, int tag, arrival_t *found,
                        pending_t *pending) noexcept with gil:
    cdef PointToPoint p = <PointToPoint> h.messages
    cdef Request r
    visit(p)
    try:
        try:
            r = request_of(p, kind, peer, tag, a, None, None)
            if kind == SEND:
                p.begin_send(r)
            else:
                p.begin_receive(r, found)
        finally:
            p.leave()
    except BaseException as error:
        return fail_with(error)
    Py_INCREF(r)
    pending.request = <PyObject *> r
    pending.comm = h
    hold(h)
    return 0


cdef int test(shmring_request **request, int *is_over, shmring_message *m) noexcept nogil:
    cdef pending_t **pending = <pending_t **> request
    if is_over == NULL:
        return refuse(b"is_over must not be NULL")
    if request == NULL:
        return refuse(b"request must not be NULL")
    is_over[0] = True
    if pending[0] == NULL or pending[0].request == NULL:
        return finish_at_once(pending, m)
    return test_with_gil(pending, is_over, m)


cdef int test_with_gil(pending_t **pending, int *is_over, shmring_message *m) noexcept with gil:
    try:
        is_over[0] = (<Request> pending[0].request).done()
    except BaseException as error:
        is_over[0] = False
        return fail_with(error)
    return finish(pending, m) if is_over[0] else 0


cdef int wait(shmring_request **request, int64_t timeout_ns, shmring_message *m) noexcept nogil:
    cdef pending_t **pending = <pending_t **> request
    cdef int64_t limit_ns = checked_timeout(timeout_ns, NO_LIMIT)
    if limit_ns < NO_LIMIT:
        return refuse_timeout(timeout_ns)
    if request == NULL:
        return refuse(b"request must not be NULL")
    if pending[0] == NULL or pending[0].request == NULL:
        return finish_at_once(pending, m)
    return wait_with_gil(pending, limit_ns, m)


cdef int wait_with_gil(pending_t **pending, int64_t timeout_ns, shmring_message *m) noexcept with gil:
    try:
        (<Request> pending[0].request).settle(timeout_ns)
    except BaseException as error:
        return fail_with(error)
    return finish(pending, m)


cdef int finish_at_once(pending_t **pending, shmring_message *m) noexcept nogil:
    if pending[0] != NULL:
        if m != NULL:
            m[0] = pending[0].message
        free(pending[0])
        pending[0] = NULL
    elif m != NULL:
        memset(m, 0, sizeof(shmring_message))
        m.source = m.tag = ANY
    return 0


cdef int finish(pending_t **pending, shmring_message *m) noexcept:
    """Free a request that is over; 0, or the code of its error."""
    cdef pending_t *over = pending[0]
    cdef Request r = <Request> over.request
    cdef comm_t *h = over.comm
    pending[0] = NULL
    free(over)
    Py_DECREF(r)      # `r` is another reference
    let_go(h)
    describe_message(m, r.message)
    return fail_with(r.error) if r.error is not None else 0


cdef void add_messages(shmring_api *api) noexcept:
    """Enter the functions of this file in the table."""
    api.send = send
    api.recv = recv
    api.sendrecv = sendrecv
    api.isend = isend
    api.irecv = irecv
    api.test = test
    api.wait = wait
