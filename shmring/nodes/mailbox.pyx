"""Envelopes: what a rank sends to another one for each message over several nodes, their format, and their credits."""

from collections import deque

import numpy as np

cimport cython
from libc.stdint cimport uint64_t

from shmring.nodes.wire import Channel

cdef enum:
    # Envelopes to one rank, before its short messages wait for a credit: as many as a pair queue holds, on which
    # programs count (`shmring.torch.messages`).
    MOST_UNREAD = 256
    NCREDITED = 32

cdef object NOTHING = np.empty(0, np.uint8)


@cython.final
cdef class Arrived:
    """A message that no receive has matched."""


@cython.final
cdef class Mailbox:
    """The envelopes to one rank, and their credits."""

    def __init__(self, wire, int peer):
        self.wire, self.peer = wire, peer
        self.kept, self.without_room, self.long_sends = deque(), deque(), {}

    cdef int post(self, int kind, uint64_t number, int tag, uint64_t nbytes, int code, object content) except -1:
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
            self.post(CREDIT, 0, 0, 0, 0, NOTHING)

    cdef list take_credit(self):
        """Forget the envelopes that the peer has read; the requests that have room now."""
        cdef list found = []
        self.ncredited += NCREDITED
        for _ in range(NCREDITED):
            self.wire.wait(self.kept.popleft()[0], self.peer)
        while self.without_room and self.has_room_for(self.without_room[0][0]):
            found.append(self.without_room.popleft()[1])
        return found

    cdef bint has_room_for(self, uint64_t number):
        return number <= self.ncredited + MOST_UNREAD

    cdef int flush(self, object left_s) except -1:
        """Wait until the peer has received all envelopes."""
        while self.kept:
            self.wire.wait(self.kept.popleft()[0], self.peer, left_s)
            self.is_read = True
