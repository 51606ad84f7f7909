"""The beginning and the end of each function of the table: the handle of a communicator, its arguments, the error.

A thread's error is that of its last call that failed. A handle keeps the plans that it has used.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strdup, strlen, strncpy

from shmring.core.arrays.array_view cimport array_t
from shmring.core.base.hashing cimport spread
from shmring.capi cimport *
from shmring.communicator cimport Communicator
from shmring.collectives.engine.compiled_plan cimport Program
from shmring.collectives.engine.engine cimport Engine
from shmring.core.kernel.numbers cimport NDTYPES, check_rows

from shmring.dtypes import DTYPES, OPS
from shmring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    MessageTimeoutError,
    MessageTooLongError,
    MismatchError,
    PeerLostError,
    RendezvousTimeoutError,
)

cdef int64_t MOST_NBYTES = <int64_t> 1 << 48      # of one block: no product of sizes overflows
cdef int ITEMSIZES[NDTYPES]
check_rows(DTYPES, OPS)
for _code in range(NDTYPES):
    ITEMSIZES[_code] = DTYPES[_code].itemsize


# ---- the last error of each thread -----------------------------------------------------------------------------------

cdef extern from *:
    """
    #define SHMRING_ERROR_NBYTES 1024
    #define SHMRING_NAME_NBYTES 64
    static _Thread_local shmring_error shmring_last = {0, -1, "", ""};
    static _Thread_local char shmring_last_text[SHMRING_ERROR_NBYTES];
    static _Thread_local char shmring_last_name[SHMRING_NAME_NBYTES];
    """
    const size_t SHMRING_ERROR_NBYTES
    const size_t SHMRING_NAME_NBYTES
    shmring_error shmring_last
    char *shmring_last_text
    char *shmring_last_name

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

# Classes derived from others come first.
cdef tuple CODES = (
    (ClosedError, SHMRING_ERR_CLOSED),
    (PeerLostError, SHMRING_ERR_PEER_LOST),
    ((CollectiveTimeoutError, RendezvousTimeoutError), SHMRING_ERR_TIMEOUT),
    (MismatchError, SHMRING_ERR_MISMATCH),
    ((AbortedError, KeyboardInterrupt), SHMRING_ERR_ABORTED),
    (MessageTimeoutError, SHMRING_ERR_MESSAGE_TIMEOUT),
    (MessageTooLongError, SHMRING_ERR_MESSAGE_TOO_LONG),
    (MemoryError, SHMRING_ERR_OUT_OF_MEMORY),
    ((TypeError, ValueError, RuntimeError), SHMRING_ERR_BAD_ARGUMENT),
)


cdef int fail(int code, const char *name, int rank, const char *text) noexcept nogil:
    """Store the error of this thread, ``name`` being the class of Python's exception; return its code. A text that is
    too long is cut."""
    cdef size_t nbytes = min(strlen(text), SHMRING_ERROR_NBYTES - 1)
    while nbytes == SHMRING_ERROR_NBYTES - 1 and (text[nbytes] & 0xC0) == 0x80:      # in the middle of a character
        nbytes -= 1
        if (text[nbytes] & 0xC0) != 0x80:
            break
    memcpy(shmring_last_text, text, nbytes)
    shmring_last_text[nbytes] = 0
    shmring_last.code = code
    shmring_last.rank = rank
    shmring_last.text = shmring_last_text
    strncpy(shmring_last_name, name, SHMRING_NAME_NBYTES - 1)      # its last byte stays 0
    shmring_last.name = shmring_last_name
    return code


cdef int fail_with(object error) noexcept:
    """Store an exception as the error of this thread; return its code."""
    cdef int code = SHMRING_ERR_INTERNAL, rank = -1
    try:
        for types, number in CODES:
            if isinstance(error, types):
                code = number
                break
        text, name = str(error), type(error).__name__
        if isinstance(error, KeyboardInterrupt):
            PyErr_SetInterrupt()      # C code cannot raise it: Python's handler runs again, once this call has returned
        if isinstance(error, MessageTooLongError):
            rank = error.source
        else:
            ranks = getattr(error, "late", None) or getattr(error, "missing", None)
            rank = ranks[0] if ranks else getattr(error, "rank", -1)
        return fail(code, name.encode("utf-8", "replace"), rank, text.encode("utf-8", "replace"))
    except BaseException:
        return fail(code, b"Exception", rank, b"an exception of Python without a text")


cdef int refuse(const char *text, int64_t first=0, int64_t second=0) noexcept nogil:
    """The error of an argument, without the GIL; ``text`` may have a ``%lld`` for each of the numbers."""
    cdef char filled[256]
    snprintf(filled, sizeof(filled), text, <long long> first, <long long> second)
    return fail(SHMRING_ERR_BAD_ARGUMENT, b"ValueError", -1, filled)


cdef const shmring_error *last_error() noexcept nogil:
    return &shmring_last


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int check_memory(const void *data, int64_t count, int dtype, array_t *a) noexcept nogil:
    """Describe ``count`` elements at ``data``; 0, or the code of the error."""
    if not SHMRING_OPAQUE <= dtype < NDTYPES:
        return refuse(b"dtype=%lld: must be one of enum shmring_dtype, from 0 to %lld", dtype, NDTYPES - 1)
    a.data = <void *> data
    a.dtype = dtype
    a.itemsize = 1 if dtype == SHMRING_OPAQUE else ITEMSIZES[dtype]
    if <uint64_t> count > <uint64_t> MOST_NBYTES or count * a.itemsize > MOST_NBYTES:     # without a division
        return refuse(b"count=%lld: must be from 0 to %lld elements", count, MOST_NBYTES // <int64_t> a.itemsize)
    a.count = count
    a.nbytes = count * a.itemsize
    if data == NULL and count:
        return refuse(b"the address of %lld elements must not be NULL", count)
    return 0


cdef int refuse_timeout(int64_t timeout_ns) noexcept nogil:
    return refuse(b"timeout_ns=%lld: must be 0 or more nanoseconds, SHMRING_NO_TIMEOUT or SHMRING_DEFAULT_TIMEOUT",
                  timeout_ns)


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
    if owner.nodes is not None:
        raise TypeError(f"comm_open takes a communicator of one machine, such as comm.local, not {owner!r}")
    engine = calls._engine
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
    """0, or the code of the error if the handle is NULL or a parent process's."""
    if h == NULL:
        return refuse(b"comm must not be NULL")
    return refuse_entry(h) if is_inherited(h) else 0


cdef int refuse_entry(comm_t *h) noexcept nogil:
    """The error of a call that could not enter. Without the GIL if closed: as a process ends it has no interpreter."""
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
    """The index of the plan of that signature, or of the free entry for it."""
    cdef int place = <int> (spread(signature) >> 55)
    while h.known[place].signature != 0 and h.known[place].signature != signature:
        place = (place + 1) & (NPLACES - 1)
    return place


cdef PyObject *find_known(comm_t *h, uint64_t signature) noexcept nogil:
    """The plan of that signature, or NULL. The caller has the turn."""
    return h.known[place_of(h, signature)].program


cdef int remember(comm_t *h, uint64_t signature, Program program) except -1:
    """Keep a plan. The caller has the turn. A full handle drops all its plans; the engine keeps the most recent."""
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
