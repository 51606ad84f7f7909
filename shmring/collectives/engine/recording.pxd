# Records of the engine's calls while they run, for observers: timelines, ranges of a profiler, lines of Python.
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from shmring.core.c.layout cimport shmring_place
from shmring.collectives.engine.rounds cimport engine_t
from shmring.core.sync.backoff cimport now_ns

cdef extern from "Python.h":
    PyObject *Py_True
    PyObject *PyDict_GetItem(PyObject *of, PyObject *key)

cdef enum:
    ALGORITHM_NBYTES = 24
    LINE_NBYTES = 104

# ---- timelines ----

# Times are nanoseconds of CLOCK_MONOTONIC. `shmring.watch.timeline` has the same layout.
ctypedef struct record_t:
    uint64_t start_ns
    uint64_t end_ns        # 0 while the call is under way
    uint64_t wait_ns       # when its first wait began that outlasted a first look; 0: none did
    uint64_t waited_ns     # in all of them
    uint64_t signature
    uint64_t nbytes
    uint64_t number        # the same on all ranks: of the collective; of the message among those to that peer
    int32_t peer           # of a message; -1: a collective
    uint32_t failed
    char algorithm[ALGORITHM_NBYTES]
    char line[LINE_NBYTES]     # of the program, of a collective that has slept: the end of the text, without a zero


# The records, as threads without the GIL use them.
ctypedef struct timeline_t:
    record_t *records
    uint64_t *count                # records ever begun
    uint64_t capacity


cdef class Trace:
    cdef readonly str path
    cdef object memory             # the mapped file
    cdef timeline_t timeline


cdef record_t *record_call(timeline_t *t, engine_t *c, uint64_t signature, uint64_t nbytes,
                           const char *algorithm) noexcept nogil
cdef void complete(engine_t *c, record_t *record, bint failed) noexcept nogil
cdef void note_message(timeline_t *t, int kind, int peer, int tag, uint64_t nbytes, uint64_t number,
                       int64_t started_ns) noexcept nogil


cdef inline record_t *begin_call(timeline_t *t, engine_t *c, uint64_t signature, uint64_t nbytes,
                                 const char *algorithm) noexcept nogil:
    """The record of a collective that begins now, for `end_call`; NULL without a timeline."""
    return NULL if t == NULL else record_call(t, c, signature, nbytes, algorithm)


cdef inline void end_call(engine_t *c, record_t *record, bint failed) noexcept nogil:
    if record != NULL:
        complete(c, record, failed)


cdef inline int64_t message_started(const timeline_t *t) noexcept nogil:
    return 0 if t == NULL else now_ns()


# ---- ranges of a profiler that runs in this process ----

cdef PyObject *flags                   # the names of the profiler's module, NULL: no profiler is known;
cdef PyObject *flag                    # of these, the one that is True while it runs


cdef inline bint is_profiled() noexcept:
    return flags != NULL and PyDict_GetItem(flags, flag) == Py_True


cdef object range_of(uint64_t signature, uint64_t nbytes, uint64_t number, const char *algorithm)


# ---- the line of Python that made a call ----

# As `program_line`, as long as there is room for.
cdef bytes caller()

# Store it for the call with this ``number``, unless it is there.
cdef void store_place(shmring_place *place, uint64_t number, bytes text) noexcept
