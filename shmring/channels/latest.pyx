"""The latest value: a channel of one slot, whose readers copy the newest value, which stays.

Versions of the value lie in a few slots in turn, so a writer does not wait for readers, which take no role and are
unknown to it. A reader copies the newest version, and tests whether its slot still holds that version: a seqlock, in
which a reader repeats its copy only if several values were written meanwhile. Writers exclude each other by a robust
lock, held for one write: if its holder dies, the incomplete value has no version, and the last complete one stays.

[header page][shmring_latest][slot 0][slot 1]...
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t
from libc.string cimport memcpy

import queue
from operator import index

import numpy as np

from shmring._c.atomics cimport (full_fence, load_acquire_u64, load_relaxed_u64, store_relaxed_u64,
                                 store_release_u64)
from shmring._c.layout cimport SHMRING_LATEST_NSLOTS, shmring_latest, shmring_latest_slot
from shmring.arrays cimport numpy_api as cnp
from shmring.base.signals cimport check_signals
from shmring.base.timeouts cimport timeout_to_ns
from shmring.channels.message_codec cimport LONG_COPY_NBYTES, decode_meta, encode, message_t
from shmring.channels.robust cimport lock_init, lock_release, require_lock, take_lock
from shmring.memory.mapping cimport Mapping
from shmring.ring.blocking cimport LATE, drive, wake_at_once
from shmring.ring.framing cimport ARRAY, BYTES, frame_t, kind_of
from shmring.sync.backoff cimport (CHECK, SLEEPS, TICK, back_off, before_wake, end_wait, is_past_deadline, learn_spin,
                                   patience_t, sem_init, sem_post, sleeper_t, spin_t)
from shmring.sync.group cimport READY, UNREADY

from shmring.channels.memory import ChannelMemory, checked_ring, is_same_dtype, open_or_create
from shmring.channels.multi_ring import LATEST
from shmring.errors import ClosedError, SegmentError
from shmring.memory.header import HEADER_NBYTES

cnp.import_array()

cdef enum:
    ALIGNMENT = 128
    META_NBYTES = 256              # beside the bytes of a value: its shape, and a dtype that has no code
    LONGEST_SLEEP_NS = 20000000    # of a reader: several may sleep, with one waiter word

cdef object UINT8 = np.dtype(np.uint8)


# ---- the memory ------------------------------------------------------------------------------------------------------

class LatestMemory(ChannelMemory):
    """The memory of a latest value, as one process sees it.

    Attributes
    ----------
    room : int
        Bytes of a slot for a value and its metadata.
    """

    def __init__(self, memory, key=None):
        super().__init__(memory, key, False)
        self.room = memory.header.params[3]
        if memory.header.params[2] != LATEST or self.room % ALIGNMENT or not (
                0 < self.room <= memory.nbytes and nbytes_of(self.room) <= memory.nbytes):
            raise SegmentError(f"{self.title} is corrupted, or not one: its header has invalid sizes")

    @property
    def title(self):
        return "this latest value" if self.key is None else f"latest value {self.key!r}"

    def __reduce__(self):
        if self.key is not None:
            raise TypeError(f"{self.title} has a name: make one with that name in the other process")
        return LatestMemory, (self.memory,)


cdef object nbytes_of(object room):
    return HEADER_NBYTES + sizeof(shmring_latest) + SHMRING_LATEST_NSLOTS * (sizeof(shmring_latest_slot) + room)


def create(name, capacity_nbytes, dtype):
    """A fresh segment, not shared yet; unnamed if ``name`` is None."""
    cdef Mapping mapping
    cdef shmring_latest *latest
    plan = checked_ring(capacity_nbytes, dtype, "wait", False)
    longest = META_NBYTES + (capacity_nbytes if dtype is None else dtype.itemsize)
    room = (longest + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    memory = plan.reserve(name, nbytes_of(room) - HEADER_NBYTES, (LATEST, room))
    mapping = memory.mapping
    latest = <shmring_latest *>(mapping.address + <size_t>HEADER_NBYTES)
    sem_init(&latest.woken, 1, 0)
    require_lock(lock_init(&latest.writing))
    memory.announce()
    return memory


# ---- the value -------------------------------------------------------------------------------------------------------

# With `writing` held: put a value into the slot of the next version, and make it the newest.
cdef uint64_t put_value(shmring_latest *latest, shmring_latest_slot *slot, message_t *m) noexcept nogil:
    cdef uint64_t version = load_relaxed_u64(&latest.newest) + 1
    cdef char *to = <char *>(slot + 1)
    cdef int i
    # SYNC rewritten (meets: is_still). A reader that loads any byte of the new value loads this 0 afterwards.
    store_release_u64(&slot.version, 0)
    full_fence()
    slot.word, slot.nbytes = m.load.word, m.load.nbytes
    for i in range(1, m.load.nparts):
        memcpy(to, m.load.parts[i].address, m.load.parts[i].nbytes)
        to += m.load.parts[i].nbytes
    store_relaxed_u64(&slot.version, version)
    # SYNC newest (meets: newest_of).
    store_release_u64(&latest.newest, version)
    return version


cdef inline uint64_t newest_of(const shmring_latest *latest) noexcept nogil:
    # SYNC newest (meets: put_value).
    return load_acquire_u64(&latest.newest)


# Copy the bytes of a version that was the newest. False: it was overwritten meanwhile, and the copy is invalid.
cdef bint take_value(const shmring_latest_slot *slot, uint64_t version, void *to, uint64_t nbytes) noexcept nogil:
    memcpy(to, slot + 1, nbytes)
    return is_still(slot, version)


cdef inline bint is_still(const shmring_latest_slot *slot, uint64_t version) noexcept nogil:
    full_fence()
    # SYNC rewritten (meets: put_value). If a load before the fence got anything of a later value, this is not the
    # version any more.
    return load_acquire_u64(&slot.version) == version


cdef int await_newer(object latest, void *what, patience_t *patience) noexcept nogil:
    """A step of a wait for a version above ``what`` (ring/blocking.pxd): READY, LATE or UNREADY."""
    cdef shmring_latest *at = (<Latest>latest).latest
    cdef sleeper_t sleeper = sleeper_t(word=&at.waiting, what=1, wake=&at.woken, next=NULL,
                                       spin_ns=(<Latest>latest).spin_ns, yields=4, tick_ns=LONGEST_SLEEP_NS,
                                       spin=&(<Latest>latest).spin)
    cdef int step, outcome = READY
    while newest_of(at) <= (<uint64_t *>what)[0]:
        step = back_off(patience, &sleeper)
        if step >= CHECK and is_past_deadline(patience) and newest_of(at) <= (<uint64_t *>what)[0]:
            outcome = LATE
            break
        if step == TICK:
            return UNREADY
    learn_spin(&sleeper, patience, outcome == READY)
    if patience.stage == SLEEPS:
        sem_post(&at.woken)            # for the next reader that sleeps, if there is one
    end_wait(patience, &sleeper)
    return outcome


cdef uint64_t version_of(object number) except? 0:
    number = index(number)
    if not 0 <= number <= UINT64_MAX:
        raise ValueError(f"after={number}: must be a version that read_version returned, or 0")
    return number


@cython.final
@cython.no_gc
cdef class Latest:
    """The latest value: any process may write it, any number may read the newest, and reading leaves it in place.

    Parameters
    ----------
    capacity_nbytes : int, default 64 KiB
        The longest value. Without a name the memory, four times as much, is reserved at once.
    dtype : dtype, optional
        Makes it a value of this dtype, such as a number or a record; then ``capacity_nbytes`` is not used. None: bytes
        or arrays of any kind, each value of its own shape and dtype.
    name : str, optional
        Any text: processes of the same user that give the same name have the same value. The first decides about
        ``capacity_nbytes``; ``dtype`` must be the same. None: processes get it through a fork, or in the arguments of a
        process of multiprocessing, by any start method.

    Raises
    ------
    TypeError, ValueError
        A bad argument.
    SegmentError
        The segment of that name does not belong to this user, or is not a latest value like this one.
    OutOfSharedMemoryError
        No room in /dev/shm. Nothing was created.

    Notes
    -----
    Writers do not wait for readers, nor readers for writers. Processes and threads may begin and end at any time; a
    writer that dies, also in the middle of a write, leaves the last complete value. A name exists as long as one object
    that was made with it is open; then the value is gone, too.
    """

    cdef object memory
    cdef Mapping mapping
    cdef shmring_latest *latest            # NULL until it is made
    cdef uint64_t room
    cdef int64_t spin_ns
    cdef spin_t spin
    cdef bint is_closed

    def __init__(self, capacity_nbytes=64 << 10, *, dtype=None, name=None):
        if self.latest != NULL:
            raise RuntimeError("this latest value was made already: __init__ makes it once")
        if name is not None and (not isinstance(name, str) or not name):
            raise TypeError(f"name={name!r}: must be a text that is not empty")
        kind = None if dtype is None else np.dtype(dtype)
        if name is None:
            self.use(LatestMemory(create(None, capacity_nbytes, kind)))
            return
        memory = LatestMemory(open_or_create(f"latest/{name}", lambda name: create(name, capacity_nbytes, kind)), name)
        if not is_same_dtype(memory.dtype, kind):
            memory.leave()
            raise SegmentError(f"{memory.title} has dtype={memory.dtype}, not {kind}")
        self.use(memory)

    cdef int use(self, memory) except -1:
        self.memory, self.mapping, self.room = memory, memory.mapping, memory.room
        self.spin_ns = memory.spin_ns
        self.latest = <shmring_latest *>(self.mapping.address + <size_t>HEADER_NBYTES)
        return 0

    cdef int require_open(self) except -1:
        if self.is_closed or self.latest == NULL:
            raise ClosedError("this latest value is closed, or was never made")
        return 0

    cdef inline shmring_latest_slot *slot(self, uint64_t version) noexcept nogil:
        return <shmring_latest_slot *>(<char *>(self.latest + 1) + version % SHMRING_LATEST_NSLOTS
                                       * (sizeof(shmring_latest_slot) + self.room))

    cdef object corrupt(self):
        return SegmentError(f"{self.memory.title} is corrupted: it holds no value that could have been written")

    # ---- writing ----

    def write(self, value, timeout=None):
        """Write a value, which becomes the newest.

        Parameters
        ----------
        value : bytes, buffer of bytes, array; or with a dtype a value that NumPy converts to it
            It may be changed after the call.
        timeout : float, optional
            Seconds to wait while another writer is at work; None for ever, 0 not at all.

        Returns
        -------
        int
            The version: 1 for the first value, one more for each further one.

        Raises
        ------
        TypeError, ValueError
            Not a value of this kind, or longer than ``capacity_nbytes``. Nothing was written.
        queue.Full
            Another writer was at work all the time. Nothing was written.
        ClosedError
            This object was closed.
        """
        cdef message_t m
        cdef uint64_t version
        cdef shmring_latest_slot *slot
        self.require_open()
        if isinstance(value, str) and self.memory.dtype is None:
            raise TypeError("a str cannot be written: encode it")
        _keeper = encode(value if self.memory.dtype is None else self.record(value), &m)
        if m.load.nbytes > self.room:
            raise ValueError(f"a value of {m.load.nbytes} bytes, its description included, does not fit: at most "
                             f"{self.room} bytes do. Make it with a larger capacity_nbytes")
        if not take_lock(&self.latest.writing, timeout_to_ns(timeout), self.memory):
            raise queue.Full("another process or thread was writing all the time")
        # Nothing may raise until the lock is released. Until then the GIL is held, or this thread runs no Python code,
        # so no handler of this thread can come here.
        slot = self.slot(load_relaxed_u64(&self.latest.newest) + 1)
        if m.load.nbytes < LONG_COPY_NBYTES:
            version = put_value(self.latest, slot, &m)
        else:
            with nogil:
                version = put_value(self.latest, slot, &m)
        lock_release(&self.latest.writing)
        before_wake()
        wake_at_once(&self.latest.waiting, &self.latest.woken)
        return version

    cdef object record(self, value):
        record = np.array(value, self.memory.dtype)
        if record.shape:
            raise ValueError(f"a value of shape {record.shape}: it must be one record of {self.memory.dtype}")
        return record

    # ---- reading ----

    def read(self, timeout=None, *, after=0):
        """Read the newest value.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait for a value; None for ever, 0 not at all.
        after : int, default 0
            A version: wait until there is a newer one.

        Returns
        -------
        bytes, numpy.ndarray or record
            A copy: bytes, or an array of the dtype and shape that was written; with a dtype a scalar or record of it.

        Raises
        ------
        queue.Empty
            No value was there in time.
        ValueError
            ``after`` is negative or too large.
        SegmentError
            The memory holds no valid value.
        ClosedError
            This object was closed.
        """
        return self.read_version(timeout, after=after)[0]

    def read_version(self, timeout=None, *, after=0):
        """Read the newest value and its version: ``(value, version)``. Raises as `read`.

        Parameters
        ----------
        timeout : float, optional
            As in `read`.
        after : int, default 0
            As in `read`; so a loop that passes the last version gets each value at most once.
        """
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        cdef uint64_t version, known = version_of(after)
        cdef bint is_busy = False
        self.require_open()
        version = newest_of(self.latest)
        if version <= known:
            if timeout_ns == 0 or drive(await_newer, self, &known, timeout_ns, &is_busy, True) == LATE:
                raise queue.Empty
            version = newest_of(self.latest)
        while True:
            value = self.take(version)
            if value is not None:
                return value, version
            known = version
            version = newest_of(self.latest)
            if version == known:       # a writer overwrites the oldest version, never the newest
                raise self.corrupt()
            check_signals()

    cdef object take(self, uint64_t version):
        """The value of that version; None if it is, or was, overwritten."""
        cdef shmring_latest_slot *slot = self.slot(version)
        cdef frame_t f
        cdef void *to
        cdef bint is_whole
        f.word, f.nbytes = load_relaxed_u64(&slot.word), load_relaxed_u64(&slot.nbytes)
        if not is_still(slot, version):
            return None
        if f.nbytes > self.room or kind_of(f.word) not in (BYTES, ARRAY) or f.word >> 56:
            raise self.corrupt()
        if kind_of(f.word) == BYTES:
            content = PyBytes_FromStringAndSize(NULL, f.nbytes)
            to = PyBytes_AS_STRING(content)
        else:
            content = np.empty(f.nbytes, UINT8)
            to = cnp.PyArray_DATA(content)
        if f.nbytes < LONG_COPY_NBYTES:
            is_whole = take_value(slot, version, to, f.nbytes)
        else:
            with nogil:
                is_whole = take_value(slot, version, to, f.nbytes)
        if not is_whole:
            return None
        if kind_of(f.word) == ARRAY:
            f.bytes = <const char *>to
            content = self.array_of(content, decode_meta(&f, f.nbytes))
        elif self.memory.dtype is not None:
            raise self.corrupt()
        return content

    cdef object array_of(self, content, meta):
        """The array in a copy of a value."""
        if meta is None or (self.memory.dtype is not None and meta[:2] != (self.memory.dtype, ())):
            raise self.corrupt()
        dtype, shape, skipped = meta
        array = np.ndarray(shape, dtype, content, skipped) if len(content) > skipped else np.empty(shape, dtype)
        return array if self.memory.dtype is None else array[()]

    @property
    def version(self):
        """The newest version; 0: no value was written yet."""
        self.require_open()
        return newest_of(self.latest)

    @property
    def capacity_nbytes(self):
        """The longest value in bytes, its description (of an array: 8 for each dimension) included."""
        self.require_open()
        return self.room

    # ---- leaving ----

    @property
    def closed(self):
        """Whether this object was closed."""
        return self.is_closed or self.latest == NULL

    def close(self):
        """Close this object; others stay open. The last close of a named value removes its name. Idempotent."""
        if not self.is_closed and self.latest != NULL:
            self.is_closed = True
            self.memory.leave()

    def __enter__(self):
        self.require_open()
        return self

    def __exit__(self, exception_type, exception, traceback):
        self.close()

    def __reduce__(self):
        self.require_open()
        return _arrived, (self.memory,)

    def __repr__(self):
        if self.latest == NULL:
            return "<shmring.Latest, not made>"
        state = "closed" if self.is_closed else f"version {newest_of(self.latest)}"
        return f"<shmring.Latest of {self.memory.title}, {state}>"


def _arrived(memory):
    """The object that another process has passed on."""
    cdef Latest arrived = Latest.__new__(Latest)
    if not isinstance(memory, LatestMemory):
        raise SegmentError(f"this is no memory of a latest value: {memory!r}")
    arrived.use(memory)
    return arrived
