"""The header page of a segment, for Python: the only place outside the C structs that knows its fields.

The creator stamps a new (all zero) segment, initialises the rest of it, and announces it. A process that attaches
calls `found_version`, then `is_ready`, then takes a copy with `read` and checks the copy: a faulty peer may change the
header at any time, so no field is read twice.
"""

import os
from typing import NamedTuple

from libc.string cimport memcpy, memset

from shmring.core.c.atomics cimport (
    load_acquire_u32, load_acquire_u64, load_relaxed_u64, store_relaxed_u64, store_release_u32, store_release_u64,
)
from shmring.core.c.layout cimport (SHMRING_ARRAY, SHMRING_CHANNEL, SHMRING_HEADER_NBYTES, SHMRING_ID_NBYTES,
                                SHMRING_LAYOUT_VERSION, SHMRING_MAGIC, SHMRING_NPARAMS, SHMRING_OUTBOX,
                                SHMRING_FAILURE_NOTICE, SHMRING_RING, shmring_header)
from shmring.core.memory.mapping cimport Mapping
from shmring.core.sync.liveness cimport ALIVE, is_marked_by_kernel, liveness_state

from shmring.errors import ClosedError

MAGIC = SHMRING_MAGIC
LAYOUT_VERSION = SHMRING_LAYOUT_VERSION
HEADER_NBYTES = SHMRING_HEADER_NBYTES
OUTBOX = SHMRING_OUTBOX
RING = SHMRING_RING
ARRAY = SHMRING_ARRAY
CHANNEL = SHMRING_CHANNEL
FAILURE_NOTICE = SHMRING_FAILURE_NOTICE
KIND_NAMES = {OUTBOX: "outbox", RING: "ring", ARRAY: "array", CHANNEL: "channel", FAILURE_NOTICE: "failure notice"}


class Header(NamedTuple):
    """A copy of a header: plain values, unchecked."""

    magic: int
    version: int
    header_nbytes: int
    nbytes: int
    kind: int
    uid: int
    boot_id: bytes
    nonce: bytes
    rank: int
    size: int
    params: tuple
    family: int
    pid: int
    start_time: int
    pid_ns: int


cdef shmring_header *header_of(Mapping mapping) except NULL:
    if mapping.address == NULL:
        raise ClosedError("the mapping is closed")
    if mapping.nbytes < SHMRING_HEADER_NBYTES:
        raise ValueError(f"a mapping of {mapping.nbytes} bytes cannot hold a header of {SHMRING_HEADER_NBYTES}")
    return <shmring_header *>mapping.address


def stamp(Mapping mapping not None, *, int kind, boot_id, nonce, int rank, int size, params, family):
    """Write the header of a new segment, all but ``ready``. Creator only, once."""
    cdef shmring_header *header = header_of(mapping)
    cdef Py_ssize_t i
    if len(boot_id) != SHMRING_ID_NBYTES or len(nonce) != SHMRING_ID_NBYTES or len(params) > SHMRING_NPARAMS:
        raise ValueError(f"a header holds a boot id and a nonce of {SHMRING_ID_NBYTES} bytes each and at most "
                         f"{SHMRING_NPARAMS} params")
    memset(header, 0, SHMRING_HEADER_NBYTES)
    header.version = SHMRING_LAYOUT_VERSION
    header.header_nbytes = SHMRING_HEADER_NBYTES
    header.nbytes = mapping.nbytes
    header.kind = kind
    header.uid = os.geteuid()
    memcpy(header.boot_id, <const char *>boot_id, SHMRING_ID_NBYTES)
    memcpy(header.nonce, <const char *>nonce, SHMRING_ID_NBYTES)
    header.rank = rank
    header.size = size
    for i in range(len(params)):
        header.params[i] = params[i]
    header.family = family
    header.liveness.pid = os.getpid()
    # SYNC stamped (meets: found_version). Magic and version have the same offsets in all layout versions, and a process
    # that loads the magic sees the version: builds with different layouts always recognise each other.
    store_release_u64(&header.magic, SHMRING_MAGIC)


def found_version(Mapping mapping not None):
    """The layout version under our magic; None if the magic is not (or not yet) there."""
    cdef shmring_header *header = header_of(mapping)
    # SYNC stamped (meets: stamp)
    if load_acquire_u64(&header.magic) != SHMRING_MAGIC:
        return None
    return header.version


def announce(Mapping mapping not None):
    """Set ``ready``; a process that loads it sees everything written to the segment before. Creator only, once."""
    # SYNC ready (meets: is_ready). Peers that load this use the whole segment, not only the header.
    store_release_u32(&header_of(mapping).ready, 1)


def is_ready(Mapping mapping not None):
    """Whether the creator has announced the segment."""
    # SYNC ready (meets: announce)
    return load_acquire_u32(&header_of(mapping).ready) != 0


def read(Mapping mapping not None):
    """Copy the header out, unchecked."""
    cdef shmring_header copy
    memcpy(&copy, header_of(mapping), sizeof(copy))
    return values_of(&copy)


def unpack(bytes page not None):
    """The header in a copy of the page of an announced segment; None if there is none of this layout version."""
    cdef shmring_header copy
    if len(page) < <Py_ssize_t> sizeof(copy):
        return None
    memcpy(&copy, <const char *> page, sizeof(copy))
    if copy.magic != SHMRING_MAGIC or copy.version != SHMRING_LAYOUT_VERSION or not copy.ready:
        return None
    return values_of(&copy)


cdef object values_of(shmring_header *copy):
    return Header(copy.magic, copy.version, copy.header_nbytes, copy.nbytes, copy.kind, copy.uid,
                  (<const char *>copy.boot_id)[:SHMRING_ID_NBYTES], (<const char *>copy.nonce)[:SHMRING_ID_NBYTES],
                  copy.rank, copy.size, tuple([copy.params[i] for i in range(SHMRING_NPARAMS)]), copy.family,
                  copy.liveness.pid, copy.liveness.start_time, copy.liveness.pid_ns)


def set_attached(Mapping mapping not None, value):
    """Store the word for which peers the creator has mapped (meaning: `shmring.collectives.bootstrap.rendezvous`)."""
    # SYNC attached (meets: attached). A rank that loads the complete word may unlink the names: all mappings exist.
    store_release_u64(&header_of(mapping).attached, value)


def attached(Mapping mapping not None):
    """The word stored by `set_attached`; 0 at first."""
    # SYNC attached (meets: set_attached)
    return load_acquire_u64(&header_of(mapping).attached)


def is_of_one_family(Mapping mapping not None):
    """Whether all processes that have ever had this channel are of its creator's family."""
    return load_relaxed_u64(&header_of(mapping).family) != 0


def forget_family(Mapping mapping not None):
    """Note that a process of another family has this channel."""
    store_relaxed_u64(&header_of(mapping).family, 0)


def may_be_dead(Mapping mapping not None):
    """Whether the segment's creator may be dead. False: the kernel would mark its death in the header, and has not."""
    cdef shmring_header *header = header_of(mapping)
    return not is_marked_by_kernel(&header.liveness) or liveness_state(&header.liveness) != ALIVE
