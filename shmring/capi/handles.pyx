"""Handles of communicators: their life, the errors of entering, the plans they have used."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdlib cimport calloc, free
from libc.string cimport strdup

from shmring.base.hashing cimport spread
from shmring.capi.last_error cimport fail, fail_with, refuse_null
from shmring.capi cimport SHMRING_ERR_CLOSED
from shmring.communicator cimport Communicator
from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine


# ---- life ------------------------------------------------------------------------------------------------------------

cdef char *copy_of(str text) except NULL:
    cdef char *copy = strdup(text.encode("utf-8", "replace"))
    if copy == NULL:
        raise MemoryError("no memory for a communicator's handle")
    return copy


cdef comm_t *open_comm(object owner) except NULL:
    """A handle of a communicator, which it keeps alive. Raises if the communicator is closed or inherited."""
    cdef Communicator calls
    cdef Engine engine
    cdef comm_t *h
    if not isinstance(owner, Communicator):
        raise TypeError(f"comm_open takes a shmring.Communicator, not {type(owner).__name__}")
    calls = owner
    engine = calls.engine
    engine.share_turns()
    h = <comm_t *> calloc(1, sizeof(comm_t))
    if h == NULL:
        raise MemoryError("no memory for a communicator's handle")
    try:
        h.closed_text = copy_of(engine.closed_text())
        h.inherited_text = copy_of(engine.inherited_text())
    except BaseException:
        free_texts(h)
        raise
    Py_INCREF(owner)
    h.owner = <PyObject *> owner
    h.engine = <PyObject *> engine
    h.messages = <PyObject *> calls.messages
    h.rank = calls.rank
    h.size = calls.size
    h.timeout_ns = calls.timeout_ns
    h.generation = fork_generation()
    h.nholders = 1
    return h


cdef void free_texts(comm_t *h) noexcept:
    free(h.closed_text)
    free(h.inherited_text)
    free(h)


cdef void hold(comm_t *h) noexcept:
    h.nholders += 1


cdef int let_go(comm_t *h) noexcept:
    """Drop a reference to the handle; the last one frees it."""
    cdef PyObject *owner = h.owner
    h.nholders -= 1
    if h.nholders:
        return 0
    forget_all(h)
    free_texts(h)
    Py_DECREF(<object> owner)      # may close the communicator
    return 0


# ---- errors of entering ----------------------------------------------------------------------------------------------

cdef int check_handle(comm_t *h) noexcept nogil:
    """0, or the code of the error: there is none, or a parent process has it."""
    if h == NULL:
        return refuse_null(b"handle of a communicator")
    return refuse_entry(h) if is_inherited(h) else 0


cdef int refuse_entry(comm_t *h) noexcept nogil:
    """Why a call could not enter. Without the GIL if it is closed: as the process ends there is no interpreter."""
    if is_inherited(h):
        return fail(SHMRING_ERR_CLOSED, b"ClosedError", -1, h.inherited_text)
    if (<Engine> h.engine).is_closed:
        return fail(SHMRING_ERR_CLOSED, b"ClosedError", -1, h.closed_text)
    with gil:
        return refuse_with_gil(<Engine> h.engine)


cdef int refuse_with_gil(Engine engine) noexcept:
    try:
        engine.refuse()
        raise RuntimeError(f"{engine.name}: a signal handler or callback made a call inside a call of its own thread")
    except BaseException as error:
        return fail_with(error)


cdef int drain_backlog(comm_t *h) noexcept nogil:
    """Wait for the asynchronous work submitted before this call."""
    if not (<Engine> h.engine).is_usable():
        return refuse_entry(h)
    with gil:
        try:
            (<Engine> h.engine).progress.drain()
        except BaseException as error:
            return fail_with(error)
    return 0


# ---- plans by signature ----------------------------------------------------------------------------------------------

cdef inline int place_of(comm_t *h, uint64_t signature) noexcept nogil:
    """Where the plan of that signature is, or the place for it."""
    cdef int place = <int> (spread(signature) >> 55)
    while h.known[place].signature != 0 and h.known[place].signature != signature:
        place = (place + 1) & (NPLACES - 1)
    return place


cdef PyObject *find_known(comm_t *h, uint64_t signature) noexcept nogil:
    """The plan of that signature, or NULL. The caller has the turn."""
    return h.known[place_of(h, signature)].program


cdef int remember(comm_t *h, uint64_t signature, Program program) except -1:
    """Keep a plan. The caller has the turn. Of too many all are dropped: the engine still has the last of them."""
    cdef known_t *place
    if h.nknown >= MOST_KNOWN:
        forget_all(h)
    place = &h.known[place_of(h, signature)]
    Py_INCREF(program)
    place.signature = signature
    place.program = <PyObject *> program
    h.nknown += 1
    return 0


cdef void forget_all(comm_t *h) noexcept:
    cdef int i
    cdef PyObject *program
    for i in range(NPLACES):
        program = h.known[i].program
        h.known[i].signature = 0
        h.known[i].program = NULL
        if program != NULL:
            Py_DECREF(<object> program)
    h.nknown = 0
