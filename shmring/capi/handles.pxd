# The beginning and the end of each function of the table (capi/handles.pyx).
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.core.arrays.array_view cimport array_t
from shmring.capi cimport SHMRING_DEFAULT_TIMEOUT, shmring_error
from shmring.collectives.engine.compiled_plan cimport Program
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.p2p.point_to_point cimport PointToPoint
from shmring.core.sync.liveness cimport fork_generation

cdef extern from "Python.h" nogil:
    bint Py_IsInitialized()        # a child of a C program that forked may have no interpreter that works

cdef enum:
    MOST_KNOWN = 256       # as many as the engine keeps
    NPLACES = 512          # a power of two
    LEAST_TIMEOUT = -2     # the result of `checked_timeout` for an invalid timeout

# A plan that this handle has used, by signature.
ctypedef struct known_t:
    uint64_t signature             # 0: none
    PyObject *program              # holds a reference

# What a `shmring_comm *` points to.
ctypedef struct comm_t:
    PyObject *owner                # the Communicator; holds a reference. The next two belong to it
    PyObject *engine
    PyObject *messages
    int rank
    int size
    int64_t timeout_ns
    uint32_t generation            # of the process that opened it: C code can fork without Python noticing
    char *closed_text
    char *inherited_text
    int nholders                   # the handle itself, plans and requests; with the GIL
    int nknown
    known_t known[NPLACES]         # loaded by the thread with the turn, stored with the GIL, too


# Each stores the error of this thread, and returns its code.
cdef int fail(int code, const char *name, int rank, const char *text) noexcept nogil
cdef int fail_with(object error) noexcept
cdef int refuse(const char *text, int64_t first=*, int64_t second=*) noexcept nogil
cdef int refuse_timeout(int64_t timeout_ns) noexcept nogil
cdef const shmring_error *last_error() noexcept nogil

# Arguments: 0, or the code of the error.
cdef int check_memory(const void *data, int64_t count, int dtype, array_t *a) noexcept nogil

cdef comm_t *open_comm(object owner) except NULL
cdef void hold(comm_t *h) noexcept
cdef int let_go(comm_t *h) noexcept
cdef int check_handle(comm_t *h) noexcept nogil
cdef int refuse_entry(comm_t *h) noexcept nogil
cdef int drain_backlog(comm_t *h) noexcept nogil
cdef PyObject *find_known(comm_t *h, uint64_t signature) noexcept nogil
cdef int remember(comm_t *h, uint64_t signature, Program program) except -1


cdef inline bint is_inherited(comm_t *h) noexcept nogil:
    """Whether this process is a forked child of the rank."""
    return h.generation != fork_generation()


cdef inline int enter(comm_t *h) noexcept nogil:
    """Enter a collective: 0, or the code of the error."""
    cdef int code
    if is_inherited(h):
        return refuse_entry(h)
    if (<Engine> h.engine).has_backlog:
        code = drain_backlog(h)
        if code:
            return code
    return 0 if (<Engine> h.engine).enter_free() else refuse_entry(h)


cdef inline int64_t checked_timeout(int64_t timeout_ns, int64_t default_ns) noexcept nogil:
    """The timeout in the engine's form, or LEAST_TIMEOUT if it is invalid."""
    if timeout_ns == SHMRING_DEFAULT_TIMEOUT:
        return default_ns
    return max(timeout_ns, <int64_t> LEAST_TIMEOUT)      # NO_LIMIT is SHMRING_NO_TIMEOUT
