"""The crate of a queue, pipe or channel: where the kernel holds the blocks in flight.

A crate is a pair of sockets. The sender leaves descriptors of the blocks of an item in it, right before the item. A
descriptor in a socket is an open file of the kernel's: so the blocks outlive the sender, whether it drops them, exits
or is killed, and end with the item's taker, or with the last process that has the queue. No process keeps anything, and
nothing is to be counted.

Both ends are used in the order of the items: by the process that has the sending end, or its lock, and by the one that
has the receiving end. Each message in a crate has the *ticket* of its item. Tickets ascend. One that is lower than that
of the item in hand belonged to an item that never came, or whose taker died. One that is higher belongs to a later
item, and stays: a process that died between them had taken the blocks of the item in hand.
"""

from libc.errno cimport EAGAIN, EINTR, ETOOMANYREFS, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os
import resource
import socket

from shmring.core.sync.backoff cimport now_ns

from shmring.core.base.pace import Pace
from shmring.core.blocks.in_flight import TAIL_NBYTES, Arrival
from shmring.core.blocks.pages import raise_limit
from shmring.core.memory.descriptor import Descriptor, passed_on

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    cmsghdr *CMSG_FIRSTHDR(msghdr *message)
    unsigned char *CMSG_DATA(cmsghdr *part)
    size_t CMSG_SPACE(size_t nbytes)
    size_t CMSG_LEN(size_t nbytes)
    ssize_t recv(int descriptor, void *content, size_t nbytes, int flags)
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags)
    ssize_t recvmsg(int descriptor, msghdr *message, int flags)
    const int SOL_SOCKET
    const int SCM_RIGHTS
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL
    const int MSG_PEEK
    const int MSG_CMSG_CLOEXEC
    const int MSG_CTRUNC

cdef enum:
    MOST_IN_MESSAGE = 250          # descriptors; the kernel's limit is 253
    CONTROL_NBYTES = 1024          # for so many, and their header
    BUFFER_NBYTES = 1 << 20        # for the descriptors in flight; the kernel gives less to most users

# At the end of an item that has blocks.
ctypedef struct tail_t:
    uint64_t ticket
    uint32_t count
    uint32_t pid                   # of the sender

# A message: a ticket, and descriptors.
ctypedef struct parcel_t:
    msghdr header
    iovec content
    uint64_t ticket
    uint64_t[128] control          # CONTROL_NBYTES

assert sizeof(tail_t) == TAIL_NBYTES
assert CMSG_SPACE(MOST_IN_MESSAGE * sizeof(int)) <= CONTROL_NBYTES


cdef void prepare(parcel_t *parcel) noexcept nogil:
    memset(&parcel.header, 0, sizeof(msghdr))
    parcel.content.iov_base, parcel.content.iov_len = &parcel.ticket, sizeof(uint64_t)
    parcel.header.msg_iov, parcel.header.msg_iovlen = &parcel.content, 1
    parcel.header.msg_control, parcel.header.msg_controllen = &parcel.control[0], CONTROL_NBYTES


cdef class Crate:
    """What a queue, pipe or channel has in flight. Pickles as descriptors do, for processes that get the queue."""

    cdef object out, into          # the ends: Descriptors
    cdef int64_t highest, limit    # of the descriptors that came last; the soft limit

    def __init__(self, out=None, into=None):
        if out is None:
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_NBYTES)
            out, into = pair[0].detach, pair[1].detach
        self.out, self.into = Descriptor(out), Descriptor(into)

    def __reduce__(self):
        return _arrived, (passed_on(self.out.fd), passed_on(self.into.fd))

    def close(self):
        """Let go of it. What is in flight ends with the last process that has it."""
        self.out.close()
        self.into.close()

    def put(self, departure, timeout_ns):
        """Leave the blocks of the item that is sent next, and fill in its tail.

        ``timeout_ns``: -1 for ever. False: there was no room for them in time.
        """
        cdef list blocks = departure.blocks
        cdef bytearray tail = departure.tail
        cdef int64_t until_ns = -1, left_ns = timeout_ns
        cdef tail_t made = tail_t(ticket=now_ns(), count=len(blocks), pid=os.getpid())
        cdef Py_ssize_t at
        memcpy(<char *>tail, &made, sizeof(tail_t))
        pace = None
        for at in range(0, len(blocks), MOST_IN_MESSAGE):
            while not self.send(made.ticket, blocks[at : at + MOST_IN_MESSAGE]):
                if left_ns >= 0:
                    if until_ns < 0:
                        until_ns = now_ns() + left_ns
                    if now_ns() >= until_ns:
                        return False
                pace = pace or Pace()
                pace.pause()
        return True

    cdef bint send(self, uint64_t ticket, list blocks) except -1:
        """Send one message; False: there is no room."""
        cdef parcel_t parcel
        cdef cmsghdr *part
        cdef int *numbers
        cdef Py_ssize_t i, nbytes = len(blocks) * sizeof(int)
        prepare(&parcel)
        parcel.ticket, parcel.header.msg_controllen = ticket, CMSG_SPACE(nbytes)
        part = CMSG_FIRSTHDR(&parcel.header)
        part.cmsg_level, part.cmsg_type, part.cmsg_len = SOL_SOCKET, SCM_RIGHTS, CMSG_LEN(nbytes)
        numbers = <int *>CMSG_DATA(part)
        for i in range(len(blocks)):
            numbers[i] = blocks[i].file.fd
        if sendmsg(self.out.fd, &parcel.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0:
            return True
        if errno == ETOOMANYREFS:      # in all sockets of the user: as many as this process may open
            raise_limit()
        elif errno != EAGAIN:
            raise OSError(errno, os.strerror(errno))
        return False

    def take(self, bytes tail not None):
        """The blocks of an item that was taken, which has this tail."""
        cdef tail_t made
        cdef uint64_t found = 0
        cdef int flags
        cdef list files = [], some
        memcpy(&made, <const char *>tail, sizeof(tail_t))
        while len(files) < made.count:
            if not self.peek(&found) or found > made.ticket:
                return Arrival(files, "the process that had taken it has ended", made.pid)
            some = []
            flags = self.receive(some)
            if found == made.ticket:
                files += some
                if flags & MSG_CTRUNC:
                    return Arrival(files, "this process has as many files open as it may (ulimit -n)", made.pid)
        return Arrival(files, "", made.pid)

    cdef bint peek(self, uint64_t *ticket) except -1:
        """The ticket of the next message; False: there is none."""
        while recv(self.into.fd, ticket, sizeof(uint64_t), MSG_DONTWAIT | MSG_PEEK) != sizeof(uint64_t):
            if errno != EINTR:
                return False
        return True

    cdef int receive(self, list files) except -1:
        """Receive the next message: its files are added to the list. The flags of it."""
        cdef parcel_t parcel
        cdef cmsghdr *part
        cdef int *numbers
        cdef size_t i
        if self.highest + MOST_IN_MESSAGE >= self.limit:       # what there is no descriptor for would be lost
            self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            if self.highest + MOST_IN_MESSAGE >= self.limit:
                raise_limit()
        prepare(&parcel)
        while recvmsg(self.into.fd, &parcel.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(uint64_t):
            if errno != EINTR:
                raise OSError(errno, os.strerror(errno))
        self.highest = 0
        part = CMSG_FIRSTHDR(&parcel.header)
        if part != NULL and part.cmsg_type == SCM_RIGHTS:
            numbers = <int *>CMSG_DATA(part)
            for i in range((part.cmsg_len - CMSG_LEN(0)) // sizeof(int)):
                self.highest = max(self.highest, numbers[i])
                files.append(Descriptor(int, numbers[i]))
        return parcel.header.msg_flags


def _arrived(out, into):
    return Crate(out.detach, into.detach)
