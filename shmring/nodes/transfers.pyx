"""A wire for compiled code: its messages, as structures in place of objects, and its own collectives.

Messages go by the wire's methods in Python, unless a class of the wire's own has a shorter way; those of the program in
*envelopes* (`shmring.nodes.messages`), of which each rank has a `Mailbox` for each other. A *collective of the
wire* takes the place of a plan where it is faster, which is measured (`Trials`). It compares nothing: ranks in
different calls would wait for each other, or take each other's data, where the messages of a plan say which call they
belong to. So ranks announce where they are, now and then and while they wait long (`History`).
"""

import struct
from collections import deque

import numpy as np

cimport cython
from libc.stdint cimport UINT64_MAX, int64_t, uint64_t

from shmring.arrays cimport numpy_api as cnp

from shmring.nodes.wire import GRACE_S, Channel

cnp.import_array()

cdef enum:
    # Envelopes to one rank, before its short messages wait for a credit: as many as a pair queue holds, on which
    # programs count (`shmring.torch.messages`).
    MOST_UNREAD = 256
    NCREDITED = 32
    FIRST_LOOK = 4          # calls before it: the first ones find cold memory
    TIMES_LATER = 8         # each further one comes after so many times as many,
    MUCH_LATER = 32         # or these if the other way took twice as long
    GROUP = 4               # calls that are timed together: where ranks share processors, short and long ones alternate
    GAIN = 32               # the other way is taken if it saves one part in so many

NAMES = ("plan", "wire")    # the ways of a call

_HEAD = struct.Struct("<QI")
_MOST_TEXT_NBYTES = 512

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_SimpleNewFromData(int nd, cnp.npy_intp *dims, int typenum, void *data)
    enum:
        NPY_UINT8


cdef object bytes_at(const void *data, size_t nbytes, object owner):
    """An array of uint8 at this address that keeps ``owner``."""
    cdef cnp.npy_intp n = nbytes
    if n == 0:
        return np.empty(0, np.uint8)
    array = PyArray_SimpleNewFromData(1, &n, NPY_UINT8, <void *> data)
    cnp.set_array_base(array, owner)
    return array


cdef class Transfers:
    """The messages of one wire.

    Parameters
    ----------
    wire : Wire
    """

    def __init__(self, wire):
        self.wire, self.works, self.rooms, self.history = wire, {}, {}, History()
        self.short_nbytes = wire.short_nbytes

    cdef int send(self, const void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        return self._keep(self.wire.send(bytes_at(data, nbytes, owner), peer, channel, number), work)

    cdef int recv(self, void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1:
        return self._keep(self.wire.recv(bytes_at(data, nbytes, owner), peer, channel, number), work)

    cdef int _keep(self, object made, work_t *work) except -1:
        work.is_pending = work.is_python = True
        self.works[<size_t> work] = made
        return 0

    cdef int wait(self, work_t *work, int peer, int64_t deadline_ns) except -1:
        if work.is_pending:
            self.wire.wait(self.works.pop(<size_t> work), peer, left_s(deadline_ns, GRACE_S))
            work.is_pending = False
        return 0

    cdef Collective collective(self, const form_t *form):
        return None

    cdef list find_most(self, list numbers, int64_t deadline_ns):
        raise NotImplementedError


@cython.final
cdef class Mailbox:
    """The envelopes to one rank, and their credits."""

    def __init__(self, wire, int peer):
        self.wire, self.peer = wire, peer
        self.kept, self.without_room, self.long_sends = deque(), deque(), {}

    cdef int post(self, int kind, uint64_t number=0, int tag=0, uint64_t nbytes=0, int code=0, content=()) except -1:
        envelope = np.empty(8 * NFIELDS + len(content), np.uint8)
        envelope[:8 * NFIELDS].view(np.int64)[:] = kind, number, tag, nbytes, code
        envelope[8 * NFIELDS:] = content
        self.nsent += 1
        self.kept.append((self.wire.send(envelope, self.peer, Channel.ENVELOPE), envelope))

    cdef int note_read(self) except -1:
        """Note that an envelope of the peer was read; send it a credit for some."""
        self.is_read = True
        self.nreceived += 1
        if self.nreceived % NCREDITED == 0:
            self.post(CREDIT)

    cdef list take_credit(self):
        """Forget the envelopes that the peer has read; the requests that have room now."""
        cdef list found = []
        self.ncredited += NCREDITED
        for _ in range(NCREDITED):
            if not self.await_first(None):      # this rank leaves, and another thread has waited for them
                break
        while self.without_room and self.has_room_for(self.without_room[0][0]):
            found.append(self.without_room.popleft()[1])
        return found

    cdef bint has_room_for(self, uint64_t number):
        return number <= self.ncredited + MOST_UNREAD

    cdef int flush(self, object left_s) except -1:
        """Wait until the peer has received all envelopes."""
        while self.await_first(left_s):
            self.is_read = True

    cdef bint await_first(self, object left_s) except -1:
        """Wait until the oldest envelope that is kept has left; False if none is."""
        try:
            work, _envelope = self.kept.popleft()
        except IndexError:
            return False
        self.wire.wait(work, self.peer, left_s)
        return True


# ---- the wire's own collectives --------------------------------------------------------------------------------------

cdef class Collective:
    """A collective of the wire, for calls of one form."""

    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1:
        """Make it, with what `perform` of a plan has as X and OUT; NULL where the rank has none."""
        raise NotImplementedError


@cython.final
cdef class Trials:
    """Whether the calls of one description are made by a plan or by the wire: measured, alike on all ranks.

    All ranks make the same calls in the same order, so each counts those of one description and begins a *look* at the
    same one: some calls by the plan, then some by the wire, each timed on every rank. The largest times of all ranks,
    which one more collective finds, are the same numbers on every rank; so is what they choose. Looks grow rarer, as
    the network may change, but not often.
    """

    def __cinit__(self):
        self.next_look, self.us = FIRST_LOOK, [None, None]

    cpdef int begin(self) noexcept:
        """The way of the next call."""
        if self.ncalls < self.next_look:
            return self.best
        return PLAN if self.ncalls - self.next_look < NTRIED else WIRE

    cpdef bint note(self, int64_t ns) noexcept:
        """Record the time of the call just made, since the end of the one before; whether the look is over."""
        cdef uint64_t call = self.ncalls - self.next_look
        cdef bint is_tried = self.ncalls >= self.next_look
        self.ncalls += 1
        if is_tried and call % NTRIED >= NTRIED - NTIMED:
            self.times[call // NTRIED][call % NTRIED - (NTRIED - NTIMED)] = ns
        return is_tried and call + 1 == 2 * NTRIED

    def least(self):
        """Nanoseconds of a call in each way on this rank, of the group of calls that other work has delayed least."""
        return [min([sum([self.times[way][i + k] for k in range(GROUP)]) // GROUP for i in range(0, NTIMED, GROUP)])
                for way in range(2)]

    def conclude(self, list ns):
        """Choose by these times, the same on all ranks."""
        other = 1 - self.best
        if GAIN * ns[other] < (GAIN - 1) * ns[self.best]:
            self.best, other = other, self.best
        self.us = [ns[PLAN] / 1e3, ns[WIRE] / 1e3]
        later = MUCH_LATER if ns[other] > 2 * ns[self.best] else TIMES_LATER
        self.next_look = self.ncalls * <uint64_t> later

    def pin(self, way):
        """Make all further calls in this way. All ranks must do so between the same two calls."""
        self.best, self.next_look = NAMES.index(way), UINT64_MAX


@cython.final
cdef class History:
    """The latest calls of this rank, as digests."""

    def __cinit__(self):
        self.what = "no call"

    cpdef void note(self, uint64_t number, str what, uint32_t digest) noexcept:
        """Note the next call: ``digest`` is that of ``what``."""
        cdef uint32_t before = self.digests[self.number % NREMEMBERED]
        self.number, self.what = number, what
        self.digests[number % NREMEMBERED] = (before ^ digest) * <uint32_t> 0x9E3779B1 + 1

    def announcement(self):
        """The latest call, as bytes for other ranks."""
        head = _HEAD.pack(self.number, self.digests[self.number % NREMEMBERED])
        return head + self.what.encode()[:_MOST_TEXT_NBYTES]

    def compare(self, bytes theirs):
        """Compare with another rank's announcement: None if this rank has not come so far, or it is too long ago; an
        empty text if both have made the same calls, else where they are."""
        number, digest = _HEAD.unpack_from(theirs)
        if number > self.number:
            return None
        if self.number - number >= NREMEMBERED or digest == self.digests[number % NREMEMBERED]:
            return ""
        there = theirs[_HEAD.size:].decode("utf-8", "replace")
        return f"call {self.number}: {self.what}", f"call {number}: {there}, or an earlier call differed"


def number_of(bytes announcement):
    """The number of the announced call."""
    return _HEAD.unpack_from(announcement)[0]
