"""Records of the engine's calls while they run, for observers.

*Timelines*: each rank records its calls in a file of its own, a ring of records, which ``shmring trace`` merges. The
file is mapped, so what is recorded stays there if the rank is killed. A record takes two readings of the clock. A
collective and a message of one rank may be recorded at the same time, by threads without the GIL: each thread takes a
record of its own.

*Ranges of a profiler* that runs in this process: the same calls, with the same names, as in timelines. The profiler is
that of another package, which this room does not import: `show_calls` gets its flag, a word that a call loads and
compares, and what makes a range.

*The line of Python* that made a call, stored by a rank that has waited in it for a tick. It costs a microsecond,
once in a call that has slept for a millisecond; other calls never come here.
"""

import json
import mmap
import os
import re
import sys
import time
import uuid

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.string cimport memcpy, memset, strlen, strncpy

from shmring.core.c.atomics cimport add_one_u64, store_relaxed_u64
from shmring.core.c.layout cimport SHMRING_PLACE_NBYTES
from shmring.core.base.program_line cimport program_line
from shmring.collectives.engine.signature cimport pack_signature
from shmring.core.sync.backoff cimport now_ns

from shmring.collectives.engine.kinds import explain
from shmring.core.memory.descriptor import above_standard
from shmring.core.memory.mapping import allocate
from shmring.core.memory.segment import boot_id

HEADER_NBYTES = 4096
RECORD_NBYTES = sizeof(record_t)
COUNT_OFFSET = HEADER_NBYTES - 8
FORMAT = 2
TRACED_CALLS = 65536
SUFFIX = ".shmring-trace"

cdef tuple shown = ()      # what `show_calls` was called with


# ---- timelines -------------------------------------------------------------------------------------------------------

cdef class Trace:
    """The timeline of one rank in one communicator.

    Parameters
    ----------
    directory : str
        Made if it is not there.
    facts : dict
        Of the communicator: ``name``, ``group`` (the same on all its ranks, and of no other), ``rank``, ``size``.
    calls : int
        How many calls the file has room for; older ones are overwritten.
    """

    def __cinit__(self, directory, dict facts not None, calls):
        cdef Py_buffer view
        if not isinstance(calls, int) or not 1 <= calls <= 1 << 26:
            raise ValueError(f"calls={calls!r}: must be a number from 1 to {1 << 26}")
        os.makedirs(directory, exist_ok=True)
        facts = {"format": FORMAT, "calls": calls, "pid": os.getpid(), "command": " ".join(sys.argv)[:500],
                 "boot_id": uuid.UUID(bytes=boot_id()).hex, "epoch_ns": time.time_ns() - time.monotonic_ns(), **facts}
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", facts["name"])[:40]
        stem = f"{name}.{facts['group'][:8]}.r{facts['rank']}.{os.getpid()}.{time.monotonic_ns()}"
        self.path = os.path.join(os.path.abspath(directory), stem + SUFFIX)
        nbytes = HEADER_NBYTES + calls * RECORD_NBYTES
        unfinished = self.path + ".new"      # `shmring trace` may read the directory at any time
        fd = above_standard(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            allocate(fd, 0, nbytes)      # a disk that is full is an error here, not a SIGBUS later
            self.memory = mmap.mmap(fd, nbytes)
            text = json.dumps(facts).encode()
            self.memory[:len(text)] = text
            os.rename(unfinished, self.path)
        except BaseException:
            os.unlink(unfinished)
            raise
        finally:
            os.close(fd)
        # The mapping is private to this object and never closed, so its address stays valid.
        PyObject_GetBuffer(self.memory, &view, PyBUF_WRITABLE)
        self.timeline.count = <uint64_t *> (<char *> view.buf + <size_t> COUNT_OFFSET)
        self.timeline.records = <record_t *> (<char *> view.buf + <size_t> HEADER_NBYTES)
        self.timeline.capacity = calls
        PyBuffer_Release(&view)


cdef record_t *begin_record(timeline_t *t, uint64_t signature, uint64_t nbytes, uint64_t number) noexcept nogil:
    """A new record of a call that begins now."""
    cdef record_t *record = t.records + add_one_u64(t.count) % t.capacity
    memset(record, 0, sizeof(record_t))
    record.signature = signature
    record.nbytes = nbytes
    record.number = number
    record.start_ns = <uint64_t> now_ns()
    return record


cdef record_t *record_call(timeline_t *t, engine_t *c, uint64_t signature, uint64_t nbytes,
                           const char *algorithm) noexcept nogil:
    """The record of a collective that begins now."""
    cdef record_t *record = begin_record(t, signature, nbytes, c.own.calls + 1)
    strncpy(record.algorithm, algorithm, ALGORITHM_NBYTES - 1)
    record.peer = -1
    record.failed = True
    record.waited_ns = c.own.waited_ns      # so far
    c.group.first_wait_ns = 0
    return record


cdef void complete(engine_t *c, record_t *record, bint failed) noexcept nogil:
    record.wait_ns = <uint64_t> c.group.first_wait_ns
    record.waited_ns = c.own.waited_ns - record.waited_ns
    record.failed = failed
    record.end_ns = <uint64_t> now_ns()
    if c.own.place.number == record.number:
        copy_line(record, &c.own.place)


cdef void copy_line(record_t *record, const shmring_place *place) noexcept nogil:
    cdef size_t length = strlen(place.text), kept = min(length, <size_t> LINE_NBYTES)      # this rank's own text
    memcpy(record.line, place.text + (length - kept), kept)


cdef void note_message(timeline_t *t, int kind, int peer, int tag, uint64_t nbytes, uint64_t number,
                       int64_t started_ns) noexcept nogil:
    """Record a message call that ends now: ``kind`` is that of its signature. No effect if it began unrecorded, or the
    recording has ended."""
    cdef record_t *record
    if t == NULL or started_ns == 0:
        return
    record = begin_record(t, pack_signature(kind, 0, 0, peer, <uint64_t> (tag + 1)), nbytes, number)
    record.peer = peer
    record.end_ns = record.start_ns
    record.start_ns = <uint64_t> started_ns


# ---- ranges of a profiler --------------------------------------------------------------------------------------------

def show_calls(dict module_flags, str name="", make=None):
    """From now on, while ``module_flags[name]`` is True, show each collective of threads with the GIL; None: none.

    ``make(call, facts)`` returns a context manager. ``call`` is the name of the call as in timelines, ``facts`` has
    ``bytes``, ``number`` and ``algorithm``.
    """
    global flags, flag, shown
    flags = NULL
    shown = (module_flags, name, make)      # holds what the pointers point to
    flag = <PyObject *> name
    if module_flags is not None:
        flags = <PyObject *> module_flags


cdef object range_of(uint64_t signature, uint64_t nbytes, uint64_t number, const char *algorithm):
    """The context of a collective that begins now."""
    return shown[2](explain(signature), {"bytes": nbytes, "number": number, "algorithm": algorithm.decode()})


# ---- lines of Python -------------------------------------------------------------------------------------------------

cdef bytes caller():
    return program_line(<int> SHMRING_PLACE_NBYTES - 1)      # with a zero behind it


cdef void store_place(shmring_place *place, uint64_t number, bytes text) noexcept:
    if place.number == number:
        return
    store_relaxed_u64(&place.number, 0)
    memset(place.text, 0, SHMRING_PLACE_NBYTES)
    memcpy(place.text, <const char *> text, len(text))
    store_relaxed_u64(&place.number, number)
