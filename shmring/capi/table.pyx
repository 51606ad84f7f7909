"""The table itself: what the header declares, on top of the other modules of this room, and its capsule."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uintptr_t

from shmring.base.timeouts cimport NO_LIMIT
from shmring.arrays.array_view cimport array_t
from shmring.capi cimport *
from shmring.capi cimport messages
from shmring.capi.collectives cimport (check, check_memory, checked_timeout, free_plan, make_plan, perform,
                                          plan_t, refuse, refuse_handle, refuse_timeout, run_plan)
from shmring.capi.handles cimport comm_t, is_inherited, let_go, open_comm, refuse_entry
from shmring.capi.last_error cimport fail_with, last_error
from shmring.capi.messages cimport check_peers, pending_t
from shmring.engine.call cimport call_t
from shmring.engine.engine cimport Engine


cdef extern from "Python.h" nogil:
    bint Py_IsInitialized()

# ---- communicators ---------------------------------------------------------------------------------------------------

cdef int comm_open(void *owner, shmring_comm **comm) noexcept nogil:
    with gil:
        return hand_over(<object> owner if owner != NULL else None, comm)


cdef int hand_over(owner, shmring_comm **comm) noexcept:
    try:
        if comm == NULL:
            raise ValueError("NULL is no place for a handle")
        comm[0] = NULL
        comm[0] = <shmring_comm *> open_comm(owner)
    except BaseException as error:
        return fail_with(error)
    return 0


cdef int comm_release(shmring_comm *comm) noexcept nogil:
    if comm == NULL or is_inherited(<comm_t *> comm) or not Py_IsInitialized():
        return 0      # a child of a C program that forked may have no interpreter that works
    with gil:
        return let_go(<comm_t *> comm)


cdef int comm_rank(const shmring_comm *comm) noexcept nogil:
    return (<const comm_t *> comm).rank if comm != NULL else -1


cdef int comm_size(const shmring_comm *comm) noexcept nogil:
    return (<const comm_t *> comm).size if comm != NULL else -1


cdef int comm_abort(shmring_comm *comm, const char *reason) noexcept nogil:
    cdef int code = check_handle(comm)
    if code:
        return code
    with gil:
        try:
            text = "" if reason == NULL else reason.decode("utf-8", "replace")
            (<Engine> (<comm_t *> comm).engine).abort(text)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_close(shmring_comm *comm) noexcept nogil:
    cdef int code = check_handle(comm)
    if code:
        return code
    with gil:
        try:
            owner_of(comm).close()
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_dup(shmring_comm *comm, shmring_comm **made) noexcept nogil:
    cdef int code = check_handle(comm) or check_made(made)
    if code:
        return code
    with gil:
        try:
            group = owner_of(comm).dup()
        except BaseException as error:
            return fail_with(error)
        return hand_over(group, made)


cdef int comm_split(shmring_comm *comm, int64_t color, int64_t key, shmring_comm **made) noexcept nogil:
    cdef int code = check_handle(comm) or check_made(made)
    if code:
        return code
    with gil:
        try:
            group = owner_of(comm).split(None if color == SHMRING_NO_COLOR else color, key)
            if group is None:
                made[0] = NULL
                return 0
        except BaseException as error:
            return fail_with(error)
        return hand_over(group, made)


cdef int check_handle(shmring_comm *comm) noexcept nogil:
    """0, or the code of the error: there is none, or a parent process has it."""
    if comm == NULL:
        return refuse_handle()
    return refuse_entry(<comm_t *> comm) if is_inherited(<comm_t *> comm) else 0


cdef int check_made(shmring_comm **made) noexcept nogil:
    """0, or the code of the error that ``made`` is NULL; asked before the ranks make a communicator."""
    if made != NULL:
        return 0
    with gil:
        return refuse("NULL is no place for a handle")


cdef object owner_of(shmring_comm *comm):
    return <object> (<comm_t *> comm).owner


# ---- collectives -----------------------------------------------------------------------------------------------------

cdef int collective(shmring_comm *comm, const shmring_call *call) noexcept nogil:
    cdef call_t c
    return check(<comm_t *> comm, call, &c) or perform(<comm_t *> comm, &c)


# ---- plans -----------------------------------------------------------------------------------------------------------

cdef int plan_make(shmring_comm *comm, const shmring_call *call, shmring_plan **plan) noexcept nogil:
    cdef call_t c
    cdef int code
    if plan == NULL:
        with gil:
            return refuse("NULL is no place for a plan")
    plan[0] = NULL
    code = check(<comm_t *> comm, call, &c)
    code = code or check_handle(comm)
    if code:
        return code
    with gil:
        try:
            plan[0] = <shmring_plan *> make_plan(<comm_t *> comm, &c)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int plan_run(shmring_plan *plan) noexcept nogil:
    return run_plan(<plan_t *> plan) if plan != NULL else refuse_handle()


cdef int plan_release(shmring_plan *plan) noexcept nogil:
    if plan == NULL or is_inherited((<plan_t *> plan).comm) or not Py_IsInitialized():
        return 0
    with gil:
        free_plan(<plan_t *> plan)
    return 0


# ---- messages --------------------------------------------------------------------------------------------------------

cdef int send(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
              int64_t timeout_ns) noexcept nogil:
    cdef array_t a
    cdef int code = check_message(comm, x, count, dtype, dst, tag, 0, 0, &timeout_ns, &a)
    return code or messages.send(<comm_t *> comm, &a, dst, tag, timeout_ns)


cdef int recv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, int64_t timeout_ns,
              shmring_message *message) noexcept nogil:
    cdef array_t a
    cdef int code = check_message(comm, x, count, dtype, 0, 0, src, tag, &timeout_ns, &a)
    return code or messages.recv(<comm_t *> comm, &a, src, tag, timeout_ns, message)


cdef int sendrecv(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, void *out,
                  int64_t out_count, int out_dtype, int src, int out_tag, int64_t timeout_ns,
                  shmring_message *message) noexcept nogil:
    cdef array_t a, b
    cdef int code = check_message(comm, x, count, dtype, dst, tag, src, out_tag, &timeout_ns, &a)
    code = code or check_memory(out, out_count, out_dtype, &b)
    return code or messages.sendrecv(<comm_t *> comm, &a, dst, tag, &b, src, out_tag, timeout_ns, message)


cdef int isend(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
               shmring_request **request) noexcept nogil:
    cdef array_t a
    cdef int64_t no_timeout = NO_LIMIT
    cdef int code = check_message(comm, x, count, dtype, dst, tag, 0, 0, &no_timeout, &a)
    code = code or check_place(request)
    return code or messages.isend(<comm_t *> comm, &a, dst, tag, <pending_t **> request)


cdef int irecv(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag,
               shmring_request **request) noexcept nogil:
    cdef array_t a
    cdef int64_t no_timeout = NO_LIMIT
    cdef int code = check_message(comm, x, count, dtype, 0, 0, src, tag, &no_timeout, &a)
    code = code or check_place(request)
    return code or messages.irecv(<comm_t *> comm, &a, src, tag, <pending_t **> request)


cdef int test(shmring_request **request, int *is_over, shmring_message *message) noexcept nogil:
    if is_over == NULL:
        with gil:
            return refuse("NULL is no place for is_over")
    return check_place(request) or messages.test(<pending_t **> request, is_over, message)


cdef int wait(shmring_request **request, int64_t timeout_ns, shmring_message *message) noexcept nogil:
    cdef int64_t limit_ns = checked_timeout(timeout_ns, NO_LIMIT)
    if limit_ns < NO_LIMIT:
        return refuse_timeout(timeout_ns)
    return check_place(request) or messages.wait(<pending_t **> request, limit_ns, message)


cdef int check_message(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, int src,
                       int out_tag, int64_t *timeout_ns, array_t *a) noexcept nogil:
    """Check the arguments of a message, and resolve its timeout; 0, or the code of the error."""
    cdef int64_t given_ns = timeout_ns[0]
    if comm == NULL:
        return refuse_handle()
    timeout_ns[0] = checked_timeout(given_ns, (<comm_t *> comm).timeout_ns)
    if timeout_ns[0] < NO_LIMIT:
        return refuse_timeout(given_ns)
    return check_peers(<comm_t *> comm, dst, tag, src, out_tag) or check_memory(x, count, dtype, a)


cdef int check_place(shmring_request **request) noexcept nogil:
    if request != NULL:
        return 0
    with gil:
        return refuse("NULL is no place for a request")


# ---- the table -------------------------------------------------------------------------------------------------------

cdef shmring_api api

api.struct_size = sizeof(shmring_api)
api.version = SHMRING_API_VERSION
api.last_error = last_error
api.comm_open = comm_open
api.comm_release = comm_release
api.comm_rank = comm_rank
api.comm_size = comm_size
api.comm_abort = comm_abort
api.comm_close = comm_close
api.comm_dup = comm_dup
api.comm_split = comm_split
api.collective = collective
api.plan_make = plan_make
api.plan_run = plan_run
api.plan_release = plan_release
api.send = send
api.recv = recv
api.sendrecv = sendrecv
api.isend = isend
api.irecv = irecv
api.test = test
api.wait = wait

_C_API = PyCapsule_New(&api, b"shmring.capi._C_API", NULL)


def table_address():
    """Return the address of the table, for C code that does not include ``Python.h`` (``shmring_table()``).

    Returns
    -------
    int
        The same in every call; valid until the process ends.

    Examples
    --------
    ``library.start(ctypes.c_void_p(shmring.capi.table_address()), ctypes.py_object(comm))`` with `ctypes.PyDLL`
    """
    return <uintptr_t> &api
