"""The table: its functions of communicators, those of the other modules of this room, and its capsule."""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int64_t, uintptr_t

from shmring.capi cimport *
from shmring.capi.collectives cimport collective, plan_make, plan_release, plan_run
from shmring.capi.handles cimport check_handle, comm_t, is_inherited, let_go, open_comm
from shmring.capi.last_error cimport Py_IsInitialized, fail_with, last_error, refuse_null
from shmring.capi.messages cimport irecv, isend, recv, send, sendrecv, test, wait
from shmring.engine.engine cimport Engine

# ---- communicators ---------------------------------------------------------------------------------------------------

cdef int comm_open(void *owner, shmring_comm **made) noexcept nogil:
    if made == NULL:
        return refuse_null(b"place for a handle")
    made[0] = NULL
    with gil:
        try:
            made[0] = <shmring_comm *> open_comm(<object> owner if owner != NULL else None)
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
    cdef int code = check_handle(<comm_t *> comm)
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
    cdef int code = check_handle(<comm_t *> comm)
    if code:
        return code
    with gil:
        try:
            (<object> (<comm_t *> comm).owner).close()
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_dup(shmring_comm *comm, shmring_comm **made) noexcept nogil:
    return make_group(comm, True, 0, 0, made)


cdef int comm_split(shmring_comm *comm, int64_t color, int64_t key, shmring_comm **made) noexcept nogil:
    return make_group(comm, False, color, key, made)


cdef int make_group(shmring_comm *comm, bint of_all, int64_t color, int64_t key, shmring_comm **made) noexcept nogil:
    """A handle of a new communicator of all ranks, or of those with a colour; NULL without one."""
    cdef int code = check_handle(<comm_t *> comm)
    if code == 0 and made == NULL:
        code = refuse_null(b"place for a handle")
    if code:
        return code
    made[0] = NULL
    with gil:
        try:
            owner = <object> (<comm_t *> comm).owner
            group = owner.dup() if of_all else owner.split(None if color == SHMRING_NO_COLOR else color, key)
            if group is not None:
                made[0] = <shmring_comm *> open_comm(group)
        except BaseException as error:
            return fail_with(error)
    return 0


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
