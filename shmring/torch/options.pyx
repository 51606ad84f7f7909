"""What torch's options objects say of a call: its operation, its timeout, whether it is to be made in the background.

Each attribute of these objects is a function of C++ that takes a third of a microsecond to call, and some make an
object that takes longer to ask. Three of them take several times as long as a small collective. So where torch is of a
version whose objects are known, they are read where they lie: Python's part of such an object holds the address of
C++'s, and where in that each field is, is found out by setting it and looking what has changed. Where anything is not
as expected, and in other versions, attributes serve.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import (AllgatherOptions, AllreduceOptions, AllToAllOptions, BarrierOptions,
                                                BroadcastOptions, GatherOptions, ReduceOptions, ReduceScatterOptions,
                                                ScatterOptions)

from shmring.torch.reduce_ops import NAMES

cdef extern from "malloc.h" nogil:
    size_t malloc_usable_size(void *)

VERSIONS = ("2.13.",)       # of torch, where the address is what follows the object's head

# By number, as enumerations take a microsecond to hash and compare.
cdef list by_number = [NAMES[kind] for kind in sorted(NAMES, key=int)]
cdef int premultiplied = by_number.index("premul_sum")
cdef object no_time = timedelta(0)
cdef dict fields = {}       # type of options -> Fields


cdef class Fields:
    """Where options of one type have what; -1 for an operation that they do not have."""

    cdef Py_ssize_t timeout_ms, is_async, op


cdef inline char *content(options) noexcept:
    return (<char **> (<char *> <void *> options + sizeof(PyObject)))[0]


# ---- what is asked ---------------------------------------------------------------------------------------------------

def manner(options):
    """Whether to make the call in the background, and its timeout in seconds; None if it has none."""
    cdef Fields at = fields.get(type(options))
    cdef int64_t ms
    if at is None:
        timeout = options.timeout
        return options.asyncOp, timeout.total_seconds() if timeout > no_time else None
    memcpy(&ms, content(options) + at.timeout_ms, sizeof(ms))
    return content(options)[at.is_async] != 0, ms / 1e3 if ms > 0 else None


def reduction(options):
    """The core's name of the operation; for premultiplied sums, which the core has not, torch's own object."""
    cdef Fields at = fields.get(type(options))
    cdef int number = int(options.reduceOp.op) if at is None else <unsigned char> content(options)[at.op]
    if number >= len(by_number):
        raise ValueError(f"{options.reduceOp} is no operation")
    return options.reduceOp if number == premultiplied else by_number[number]


# ---- where things are ------------------------------------------------------------------------------------------------

cdef list places_of(options, bytes value):
    """The offsets at which the options hold these bytes."""
    cdef bytes held = content(options)[:malloc_usable_size(content(options))]
    cdef Py_ssize_t width = len(value)
    return [i for i in range(0, len(held) - width + 1, width) if held[i:i + width] == value]


cdef Py_ssize_t place_of(kind, str name, list values) except -2:
    """The one offset that holds each value, as bytes, while the attribute has it; -1 if there is not just one."""
    options, left = kind(), None
    for value, held in 2 * values:
        setattr(options, name, value)
        found = places_of(options, held)
        left = found if left is None else [place for place in left if place in found]
    return left[0] if len(left) == 1 else -1


cdef int learn(kind) except -1:
    cdef Fields at = Fields()
    times = [(timedelta(milliseconds=ms), int(ms).to_bytes(8, "little")) for ms in (0x123456789AB, 7, 0x7654321)]
    at.timeout_ms = place_of(kind, "timeout", times)
    at.is_async = place_of(kind, "asyncOp", [(False, b"\0"), (True, b"\1")])
    at.op = -1
    if hasattr(kind, "reduceOp"):
        plain = [(op, bytes([int(op)])) for op, name in NAMES.items() if name != "premul_sum"]
        at.op = place_of(kind, "reduceOp", plain)
    if at.timeout_ms >= 0 and at.is_async >= 0 and (at.op >= 0 or not hasattr(kind, "reduceOp")):
        fields[kind] = at
    return 0


def learned():
    """The types of options that are read where they lie."""
    return list(fields)


if torch.__version__.startswith(VERSIONS):
    for _kind in (AllgatherOptions, AllreduceOptions, AllToAllOptions, BarrierOptions, BroadcastOptions, GatherOptions,
                  ReduceOptions, ReduceScatterOptions, ScatterOptions):
        learn(_kind)
