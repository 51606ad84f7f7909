"""The calls that this rank has made, as digests, by which ranks find that they disagree.

The messages of a plan say which call they belong to. A collective of MPI compares nothing: ranks in different calls
wait for each other, or take each other's data. So ranks announce where they are, now and then and while they wait long.
"""

import struct

cimport cython

_HEAD = struct.Struct("<QI")
_MOST_TEXT_NBYTES = 512


@cython.final
cdef class History:
    """The latest calls of this rank."""

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
