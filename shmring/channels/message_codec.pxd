# The wire format of messages: from Python values to the parts of a frame, and back (channels/message_codec.pyx).
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t

from shmring.core.ring.framing cimport ALIGNED_NBYTES, copy_out, frame_t, load_t, part_t
from shmring.core.ring.spsc cimport consumer_t

cdef enum:
    QUIET_MAX = 64                 # messages that one store announces, or releases, together
    LONG_COPY_NBYTES = 64 << 10    # from this size on the GIL is released while copying
    LONGEST_COPY_NS = 10000000     # of pieces, between two looks at signals

# The code of an object with blocks (core/blocks/in_flight.py): its tail is at its end.
cdef enum:
    WITH_BLOCKS = 1

# An encoded message, with room for the parts of most. Part 0 is its length, which only streamed messages contain.
ctypedef struct message_t:
    load_t load
    part_t room[4]
    uint64_t meta_nbytes           # of the metadata, with which the receiver can allocate memory for the rest
    uint64_t length
    uint64_t words[1]
    bint is_streamed               # its length has become its first part: it goes in pieces

cdef object encode(object x, message_t *m)
cdef object encode_pickled(object pickled, message_t *m)
cdef void start_stream(message_t *m) noexcept nogil
cdef tuple word_and_meta(object kind, tuple shape)
cdef bint is_array_shape(tuple shape, object itemsize)

cdef object pickle_object(object obj, object channel)
cdef object unpickle_block(object block, object channel, object flight)
cdef object taken_blocks(object block, object channel, uint64_t word)

cdef tuple decode_meta(frame_t *f, uint64_t nbytes)


cdef inline object bytes_of(consumer_t *c, frame_t *f):
    if f.nbytes < ALIGNED_NBYTES:
        return PyBytes_FromStringAndSize(f.bytes, f.nbytes)
    message = PyBytes_FromStringAndSize(NULL, f.nbytes)
    copy_out(c, f, PyBytes_AS_STRING(message), f.bytes, f.nbytes)
    return message
