"""The wire format of messages: from Python values to the parts of a frame, and back.

A message is described by the word of its frame (core/ring/framing.pxd) and by *metadata* before its content:

    bytes      none
    array      with OTHER_DTYPE: the length of the dtype's description; then, unless it is one-dimensional and its
               dtype has a code: the extents; then the description, padded to words
    object     none; its content is a block (core/objects/codec.py), which begins with the length of its header; with
               the code `WITH_BLOCKS` it ends with the tail of an item in flight (core/blocks/in_flight.py)

A message longer than one frame is streamed: its total length comes first, in a word of its own, and only the first
frame has the word of the message; the others are pieces.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t
from libc.string cimport memcpy

import builtins
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from math import prod

import numpy as np

from shmring.core.arrays cimport numpy_api as cnp
from shmring.core.arrays.array_view cimport NDIM_MAX, array_t, check_no_mask, fast_array, source_array
from shmring.core.arrays.outputs cimport shape_of
from shmring.core.ring.framing cimport (ARRAY, BYTES, OBJECT, OTHER_DTYPE, WORD_NBYTES, as_long, code_of, is_long,
                                   kind_of, ndim_of, word_of)

from shmring.core.arrays import dtype_codec
from shmring.core.blocks.in_flight import TAIL_NBYTES, Found
from shmring.core.objects.codec import BUFFER_ALIGNMENT, OUT_OF_BAND_OF_BLOCK_NBYTES, dump, load, parts_of
from shmring.dtypes import DTYPES
from shmring.errors import ObjectError, SegmentError

cnp.import_array()

UINT8 = np.dtype(np.uint8)

cdef int OF_GENERATORS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
cdef object error_group = getattr(builtins, "BaseExceptionGroup", ())       # since Python 3.11

cdef uint64_t SHORT_NBYTES = 4096      # of an object without buffers, which is copied to be unpickled

cdef uint64_t alignment = BUFFER_ALIGNMENT
cdef bytes padding = bytes(BUFFER_ALIGNMENT)
cdef list dtypes_by_code = [None] * len(DTYPES)        # each filled in at its first use


# ---- encoding --------------------------------------------------------------------------------------------------------

cdef object encode(object x, message_t *m):
    """Fill in the message of bytes or an array; return the object that keeps its memory alive."""
    cdef array_t a
    if isinstance(x, str):
        raise TypeError("a str cannot be sent as bytes: encode it, or use send_object()")
    if isinstance(x, memoryview) and x.format in ("B", "b", "c") and x.ndim == 1:
        return encode_bytes(np.frombuffer(x if x.c_contiguous else bytes(x), np.uint8) if x.nbytes else b"", m)
    if isinstance(x, (bytes, bytearray)):
        return encode_bytes(np.frombuffer(x, np.uint8) if len(x) else x, m)
    if fast_array(x, &a, False):
        begin(m, word_of(ARRAY, a.dtype, cnp.PyArray_NDIM(x)))
        if cnp.PyArray_NDIM(x) != 1:
            add_part(m, cnp.PyArray_DIMS(x), cnp.PyArray_NDIM(x) * sizeof(cnp.npy_intp))
        m.meta_nbytes = m.load.nbytes
        add_part(m, a.data, a.nbytes)
        return x
    return encode_unusual(x, m)


cdef object encode_bytes(object x, message_t *m):
    begin(m, word_of(BYTES))
    if isinstance(x, np.ndarray):
        add_part(m, cnp.PyArray_DATA(x), cnp.PyArray_NBYTES(x))
    return x


cdef object encode_unusual(object x, message_t *m):
    """Arrays that `fast_array` refuses: strided, foreign, or of a dtype that has no code."""
    cdef array_t a
    check_no_mask(x)
    if isinstance(x, np.ndarray):
        keeper = np.asarray(x, order="C")
        word, meta = word_and_meta(x.dtype, x.shape)
        a.data, a.nbytes = cnp.PyArray_DATA(keeper), cnp.PyArray_NBYTES(keeper)
    else:
        keeper = source_array(x, &a, False)
        word, meta = word_and_meta(a.dtype, shape_of(x))
    begin(m, word)
    add_part(m, PyBytes_AS_STRING(meta), PyBytes_GET_SIZE(meta))
    m.meta_nbytes = m.load.nbytes
    add_part(m, a.data, a.nbytes)
    return keeper, meta, x


cdef object encode_pickled(object pickled, message_t *m):
    """Fill in ``m`` with the result of `pickle_object`; the tail of its blocks is filled in when they are left."""
    header = np.frombuffer(pickled.header, np.uint8)
    cdef object tail = None if pickled.flight is None else pickled.flight.tail
    begin(m, word_of(OBJECT) if tail is None else word_of(OBJECT, WITH_BLOCKS))
    buffers = room = None
    if pickled.buffers or tail is not None:    # more parts than most messages have
        buffers = [np.frombuffer(buffer, np.uint8) for buffer in pickled.buffers]
        room = bytearray((4 + 2 * len(buffers)) * sizeof(part_t))
        m.load.parts = <part_t *>PyByteArray_AS_STRING(room)
        m.load.parts[0] = m.room[0]
    m.words[0] = cnp.PyArray_NBYTES(header)
    add_part(m, m.words, WORD_NBYTES)
    m.meta_nbytes = m.load.nbytes
    add_part(m, cnp.PyArray_DATA(header), cnp.PyArray_NBYTES(header))
    for buffer in buffers or ():
        add_part(m, PyBytes_AS_STRING(padding), -m.load.nbytes & (alignment - 1))
        add_part(m, cnp.PyArray_DATA(buffer), cnp.PyArray_NBYTES(buffer))
    if tail is not None:
        add_part(m, PyByteArray_AS_STRING(tail), len(tail))
    return header, buffers, room, tail


cdef tuple word_and_meta(object kind, tuple shape):
    """Word and metadata of an array; ``kind`` is its dtype, or the code of it."""
    cdef object code = kind if isinstance(kind, int) else dtype_codec.code_of_dtype(kind)
    if len(shape) > NDIM_MAX:
        raise ValueError(f"an array of {len(shape)} dimensions: at most {NDIM_MAX} are supported")
    extents = np.array(shape, np.int64).tobytes()
    if code is not None:
        return word_of(ARRAY, code, len(shape)), b"" if len(shape) == 1 else extents
    text = dtype_codec.describe(kind)
    padding = bytes((WORD_NBYTES - len(text) % WORD_NBYTES) % WORD_NBYTES)
    return word_of(ARRAY, OTHER_DTYPE, len(shape)), len(text).to_bytes(WORD_NBYTES, "little") + extents + text + padding


cdef bint is_array_shape(tuple shape, object itemsize):
    """Whether an array can have that shape: so many dimensions, and so many bytes, extents of zero left out."""
    return (len(shape) <= NDIM_MAX and min(shape, default=0) >= 0
            and prod([extent or 1 for extent in shape]) * (itemsize or 1) <= INT64_MAX)


cdef void begin(message_t *m, uint64_t word) noexcept nogil:
    m.load.word = word
    m.load.parts = m.room
    m.load.nparts = 1
    m.load.part = 1
    m.load.offset = 0
    m.load.nbytes = 0
    m.meta_nbytes = 0
    m.is_streamed = False


cdef void add_part(message_t *m, const void *address, uint64_t nbytes) noexcept nogil:
    if nbytes:
        m.load.parts[m.load.nparts].address = <const char *>address
        m.load.parts[m.load.nparts].nbytes = nbytes
        m.load.nparts += 1
        m.load.nbytes += nbytes


cdef void start_stream(message_t *m) noexcept nogil:
    """Put the total length before everything else."""
    m.length = m.load.nbytes
    m.load.parts[0].address = <const char *>&m.length
    m.load.parts[0].nbytes = WORD_NBYTES
    m.load.part = 0
    m.load.nbytes += WORD_NBYTES
    m.load.word = as_long(m.load.word)
    m.is_streamed = True


# ---- decoding --------------------------------------------------------------------------------------------------------

cdef tuple decode_meta(frame_t *f, uint64_t nbytes):
    """dtype and shape of a message of ``nbytes``, and the bytes before its content; None: it is no valid message.

    ``f`` is its first frame. For bytes and objects the dtype is uint8.
    """
    cdef const int64_t *words = <const int64_t *>f.bytes
    cdef uint64_t meta_nbytes = 0, present = f.nbytes, itemsize
    cdef int code = code_of(f.word), ndim = ndim_of(f.word)
    if is_long(f.word):
        words += 1
        present -= WORD_NBYTES
    if nbytes > <uint64_t>INT64_MAX:
        return None
    if kind_of(f.word) == BYTES:
        return UINT8, (nbytes,), 0
    if kind_of(f.word) == OBJECT:
        if present < WORD_NBYTES or not 0 <= words[0] <= <int64_t>(nbytes - WORD_NBYTES):
            return None
        return UINT8, (nbytes,), 0
    if ndim == 1 and code != OTHER_DTYPE:       # without metadata
        dtype = dtype_with_code(code)
        itemsize = dtype.itemsize
        return (dtype, (nbytes // itemsize,), 0) if nbytes % itemsize == 0 else None
    text_nbytes = 0
    if code == OTHER_DTYPE:
        text_nbytes = words[0] if present >= WORD_NBYTES else -1
        meta_nbytes = WORD_NBYTES
    meta_nbytes += ndim * WORD_NBYTES
    padded = (text_nbytes + WORD_NBYTES - 1) // WORD_NBYTES * WORD_NBYTES
    if text_nbytes < 0 or meta_nbytes + padded > present:
        return None
    if code == OTHER_DTYPE:
        dtype = dtype_codec.dtype_of((<const char *>words + meta_nbytes)[:text_nbytes])
    else:
        dtype = dtype_with_code(code)
    content_nbytes = nbytes - meta_nbytes - padded
    words += code == OTHER_DTYPE
    shape = tuple([words[d] for d in range(ndim)])
    if not is_array_shape(shape, dtype.itemsize) or prod(shape) * dtype.itemsize != content_nbytes:
        return None
    return dtype, shape, meta_nbytes + padded


cdef object dtype_with_code(int code):
    if code >= len(dtypes_by_code):
        raise SegmentError(f"a message in this channel has dtype code {code}, which does not exist")
    if dtypes_by_code[code] is None:
        dtypes_by_code[code] = dtype_codec.dtype_with_code(code)
    return dtypes_by_code[code]


# ---- objects ---------------------------------------------------------------------------------------------------------

cdef object pickle_object(object obj, object channel):
    """Stream and out-of-band buffers of an object, for `encode_pickled`; raises as `Sender.send_object`."""
    if not channel.allow_pickle:
        raise ValueError(f"allow_pickle is False for {channel.title}: send bytes or arrays instead of objects")
    dumped = dump(obj, refusal=channel.refusal, out_of_band_nbytes=OUT_OF_BAND_OF_BLOCK_NBYTES, carries_blocks=True)
    if dumped.flight is not None and channel.crate is None:
        dumped.flight.name()
    return dumped


cdef object unpickle_block(object block, object channel, object flight):
    """The object in a block, an array of bytes, and the blocks that came with it; raises `ObjectError`."""
    if not channel.allow_pickle:
        raise ObjectError(f"an object was received and not unpickled: allow_pickle is False here for {channel.title}")
    cdef const char *data = <const char *>cnp.PyArray_DATA(block)
    cdef uint64_t nbytes = cnp.PyArray_NBYTES(block)
    cdef uint64_t nbuffers
    if 2 * WORD_NBYTES < nbytes <= SHORT_NBYTES and (<const uint64_t *>data)[0] == nbytes - WORD_NBYTES:
        memcpy(&nbuffers, data + nbytes - WORD_NBYTES, WORD_NBYTES)        # the last word of the header
        if nbuffers == 0:
            return load(PyBytes_FromStringAndSize(data + WORD_NBYTES, nbytes - 2 * WORD_NBYTES), ())
    return load(*parts_of(block), flight=flight)


def unpickle_leased(channel, flight, block):
    """As `unpickle_block`. The frames of an error keep no views of the block, so that its lease can end."""
    try:
        return unpickle_block(block, channel, flight)
    except BaseException as error:
        clear_frames(error)
        raise


# ---- blocks in objects -----------------------------------------------------------------------------------------------

cdef object taken_blocks(object block, object channel, uint64_t word):
    """The blocks of an object that was received; None if it has none."""
    if code_of(word) != WITH_BLOCKS:
        return None
    if block.nbytes < TAIL_NBYTES:
        raise SegmentError(f"a message of {channel.title} says that it has blocks, which it cannot have")
    if channel.crate is None:
        return Found(block.data)
    return channel.crate.take(bytes(block.data[block.nbytes - TAIL_NBYTES:]))


cdef int clear_frames(object error) except -1:
    """Clear the frames of an error, and of all that it came of. Those of generators stay: they may go on."""
    cdef list errors = [error]
    cdef set seen = {id(None)}
    while errors:
        error = errors.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        step = error.__traceback__
        while step is not None:
            if not step.tb_frame.f_code.co_flags & OF_GENERATORS:
                with suppress(RuntimeError):       # it is being executed
                    step.tb_frame.clear()
                    step.tb_frame.f_locals         # drops what an earlier look at them has kept
            step = step.tb_next
        errors += [error.__cause__, error.__context__]
        if isinstance(error, error_group):
            errors += error.exceptions
    return 0
