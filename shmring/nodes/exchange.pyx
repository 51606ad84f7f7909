"""The messages of one call between this rank and ranks of other nodes, with a check that both are in the same call.

The first message from one rank to another in each call has a *header* that describes the call, and the content behind
it if that is short. Long content travels beside the header, under a number made from the call, so that it never meets a
receive of another call: an engine may require that both sides agree on the length (gloo ends the process otherwise). So
the check costs no round trip.
"""

import zlib
from functools import lru_cache

import numpy as np

from libc.string cimport memcmp, memcpy

from shmring.arrays cimport numpy_api as cnp

from shmring.errors import MismatchError
from shmring.nodes.wire import GRACE_S, Channel, WireError

cnp.import_array()

SHORT_NBYTES = 16384  # longest content that is sent with the header
HEADER_NBYTES = 192

cdef size_t _SHORT = SHORT_NBYTES, _HEADER = HEADER_NBYTES
cdef object _HEADER_CHANNEL = Channel.HEADER, _CONTENT_CHANNEL = Channel.CONTENT
_NUMBER_NBYTES = 8  # of the call, before its description
_STREAMS = 1 << 14


cdef class Rooms:
    """Memory for the first message to and from each rank, used again by each call of a communicator."""
    cdef dict rooms

    def __init__(self):
        self.rooms = {}

    cdef cnp.ndarray find(self, int key):
        room = self.rooms.get(key)
        if room is None:
            room = self.rooms[key] = np.empty(HEADER_NBYTES + SHORT_NBYTES, np.uint8)
        return <cnp.ndarray> room


cdef class CallExchange:
    """See the module.

    Parameters
    ----------
    wire : Wire
    number : int
        Of the call.
    call : str
        What it is, and its arguments, as far as all ranks must agree. At most 140 ASCII characters.
    deadline : Deadline
    rooms : Rooms
        Of the communicator, whose calls follow one another.
    """
    cdef object wire, number
    cdef str call
    cdef Rooms rooms
    cdef readonly object left_s
    cdef set sent_to, received_from
    cdef list sent, copied
    cdef dict pending
    cdef object last_nbytes
    cdef bytes last_header

    def __init__(self, wire, number, str call not None, deadline, Rooms rooms not None):
        self.wire, self.number, self.call, self.rooms = wire, number, call, rooms
        self.left_s = deadline.left_s
        self.sent_to, self.received_from = set(), set()
        self.sent, self.copied = [], []      # (work, rank); no work: done
        self.pending = {}

    def send(self, cnp.ndarray data not None, peer, stream):
        """Begin to send; the data must not change until `settle`."""
        cdef size_t nbytes = cnp.PyArray_NBYTES(data), end = _HEADER
        cdef cnp.ndarray message
        cdef bytes header
        cdef bint is_short = nbytes <= _SHORT
        if peer not in self.sent_to:
            self.sent_to.add(peer)
            message, header = self.rooms.find(2 * <int> peer), self.header(nbytes)
            memcpy(cnp.PyArray_DATA(message), <const char *> header, _HEADER)
            if is_short:
                memcpy(<char *> cnp.PyArray_DATA(message) + _HEADER, cnp.PyArray_DATA(data), nbytes)
                end += nbytes
            self.copied.append((self.wire.send(message[:end], peer, _HEADER_CHANNEL), peer))
            if is_short:
                self.sent.append((None, peer))
                return
        self.sent.append((self.wire.send(data, peer, _CONTENT_CHANNEL, self.stream_number(stream)), peer))

    def recv(self, cnp.ndarray data not None, peer, stream):
        """Begin to receive exactly ``data``."""
        room = header = content = None
        cdef bint is_first = peer not in self.received_from
        if is_first:
            self.received_from.add(peer)
            room = self.rooms.find(2 * <int> peer + 1)
            header = self.wire.recv(room, peer, _HEADER_CHANNEL)
        if not is_first or <size_t> cnp.PyArray_NBYTES(data) > _SHORT:
            content = self.wire.recv(data, peer, _CONTENT_CHANNEL, self.stream_number(stream))
        key = (peer, stream)
        waiting = self.pending.get(key)
        if waiting is None:
            self.pending[key] = [(data, room, header, content)]
        else:
            waiting.append((data, room, header, content))

    def wait(self, peer, stream):
        """Wait for the first `recv` of this peer and stream that has not been waited for."""
        cdef cnp.ndarray data, room
        cdef size_t nbytes
        cdef bytes ours
        first, arrived, header, content = (<list> self.pending[peer, stream]).pop(0)
        data = first
        if header is not None:
            self.wire.wait(header, peer, self.left_s(GRACE_S))
            room, nbytes = arrived, cnp.PyArray_NBYTES(data)
            ours = self.header(nbytes)
            if memcmp(cnp.PyArray_DATA(room), <const char *> ours, _HEADER):
                raise self.mismatch(peer, ours, room[:HEADER_NBYTES].tobytes())
            if content is None:
                memcpy(cnp.PyArray_DATA(data), <char *> cnp.PyArray_DATA(room) + _HEADER, nbytes)
        if content is not None:
            self.wire.wait(content, peer, self.left_s(GRACE_S))

    def settle(self, int nmessages=0):
        """Wait until everything sent may be overwritten, or the first messages that have not been waited for."""
        for work, peer in self.sent[:nmessages or None]:
            if work is not None:
                self.wire.wait(work, peer, self.left_s(GRACE_S))
        del self.sent[:nmessages or None]

    def finish(self):
        """Wait until everything sent has left."""
        self.settle()
        for work, peer in self.copied:
            self.wire.wait(work, peer, self.left_s(GRACE_S))
        self.copied.clear()

    cdef stream_number(self, stream):
        text = f"{self.number}: {self.call}"
        return zlib.crc32(text.encode()) % _STREAMS * _STREAMS + stream % _STREAMS

    cdef bytes header(self, size_t nbytes):
        if self.last_header is None or self.last_nbytes != nbytes:
            number = self.number.to_bytes(_NUMBER_NBYTES, "little")
            self.last_nbytes, self.last_header = nbytes, number + _description(self.call, nbytes)
        return self.last_header

    cdef mismatch(self, peer, bytes ours, bytes theirs):
        here, there = _text_of(ours), _text_of(theirs)
        rank, name = self.wire.rank, self.wire.name
        text = f"{name}: the ranks disagree: rank {rank} is in {here}, rank {peer} in {there}"
        return WireError(MismatchError(text, (rank, peer)))


@lru_cache(maxsize=1024)
def _description(call, nbytes):
    """The part of a header that is equal for all calls with the same arguments."""
    length = HEADER_NBYTES - _NUMBER_NBYTES
    return f"{call}, {nbytes} bytes first".encode("ascii", "replace").ljust(length)[:length]


def _text_of(header):
    number = int.from_bytes(header[:_NUMBER_NBYTES], "little")
    return f"call {number}: {header[_NUMBER_NBYTES:].decode('ascii', 'replace').strip()}"
