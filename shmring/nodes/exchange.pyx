"""The messages of a call between this rank and ranks of other nodes, with a check that both are in the same call.

The first message from one rank to another in each call has a *header* that describes the call, and the content behind
it if that is short. Long content travels beside the header, under a number made from the call, so that it never meets a
receive of another call: an engine may require that both sides agree on the length (gloo ends the process otherwise). So
the check costs no round trip.
"""

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcmp, memcpy

from shmring.arrays cimport numpy_api as cnp

from shmring.errors import MismatchError
from shmring.nodes.wire import Channel, WireError

cnp.import_array()

cdef enum:
    NUMBER_NBYTES = 8       # of the call, before its description
    TEXT_NBYTES = 184
    HEADER_NBYTES = NUMBER_NBYTES + TEXT_NBYTES

cdef int HEADER = Channel.HEADER, CONTENT = Channel.CONTENT


cdef class Exchange:
    """The messages of all calls of a communicator, which follow one another. See the module.

    Parameters
    ----------
    wire : Wire
    """

    def __init__(self, wire):
        self.wire, self.transfers, self.rooms = wire, wire.transfers, {}
        self.short_nbytes = wire.short_nbytes

    cdef char *find_room(self, int peer, bint is_sent) except NULL:
        """Memory for the first message of a call to or from a rank; the next call uses it again."""
        key = (peer, is_sent)
        room = self.rooms.get(key)
        if room is None:
            room = self.rooms[key] = np.empty(HEADER_NBYTES + self.short_nbytes, np.uint8)
        return <char *> cnp.PyArray_DATA(room)

    cdef int send(self, message_t *m, const char *data, size_t nbytes, object owner, uint64_t number,
                  uint32_t tag) except -1:
        """Begin to send; the data must not change until the content is done, the room until the header is."""
        cdef size_t beside = nbytes if nbytes <= self.short_nbytes else 0
        m.content.is_pending = False
        if m.is_first:
            memcpy(m.room, &number, NUMBER_NBYTES)
            memcpy(m.room + NUMBER_NBYTES, m.text, TEXT_NBYTES)
            memcpy(m.room + HEADER_NBYTES, data, beside)
            self.transfers.send(m.room, HEADER_NBYTES + beside, self.rooms, m.peer, HEADER, 0, &m.header)
            if beside == nbytes:
                return 0
        return self.transfers.send(data, nbytes, owner, m.peer, CONTENT, tag + m.stream, &m.content)

    cdef int recv(self, message_t *m, char *data, size_t nbytes, object owner, uint32_t tag) except -1:
        """Begin to receive exactly this."""
        m.content.is_pending = False
        if m.is_first:
            self.transfers.recv(
                m.room, HEADER_NBYTES + self.short_nbytes, self.rooms, m.peer, HEADER, 0, &m.header)
            if nbytes <= self.short_nbytes:
                return 0
        return self.transfers.recv(data, nbytes, owner, m.peer, CONTENT, tag + m.stream, &m.content)

    cdef int await_received(self, message_t *m, char *data, size_t nbytes, uint64_t number,
                            int64_t deadline_ns) except -1:
        """Wait for it."""
        if m.is_first:
            self.transfers.wait(&m.header, m.peer, deadline_ns)
            if memcmp(m.room, &number, NUMBER_NBYTES) or memcmp(m.room + NUMBER_NBYTES, m.text, TEXT_NBYTES):
                raise self.mismatch(m, number)
            if nbytes <= self.short_nbytes:
                memcpy(data, m.room + HEADER_NBYTES, nbytes)
        return self.transfers.wait(&m.content, m.peer, deadline_ns)

    cdef object mismatch(self, message_t *m, uint64_t number):
        cdef uint64_t their_number
        memcpy(&their_number, m.room, NUMBER_NBYTES)
        here = _text_of(number, m.text)
        there = _text_of(their_number, m.room + NUMBER_NBYTES)
        rank, name = self.wire.rank, self.wire.name
        text = f"{name}: the ranks disagree: rank {rank} is in {here}, rank {m.peer} in {there}"
        return WireError(MismatchError(text, (rank, m.peer)))


def header_text(call, nbytes):
    """What the header of a message of this length says of the call."""
    return f"{call}, {nbytes} bytes first".encode("ascii", "replace").ljust(TEXT_NBYTES)[:TEXT_NBYTES]


cdef object _text_of(number, const char *text):
    return f"call {number}: {text[:TEXT_NBYTES].decode('ascii', 'replace').strip()}"
