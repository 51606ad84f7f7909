# Handles of communicators, and how a call without the GIL enters and leaves.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine
from shmring.p2p.point_to_point cimport PointToPoint
from shmring.sync.liveness cimport fork_generation

cdef enum:
    MOST_KNOWN = 256       # as many as the engine keeps
    NPLACES = 512          # a power of two

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
