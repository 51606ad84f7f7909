# Messages as frames in a ring of 8-byte words.
#
# A frame is one word, its description, then its bytes, padded to whole words; it lies in one piece. A message is
# one frame, or, if it is long, a first frame with its total length and then pieces, so that both ends copy at the same
# time and nothing is too long. If its sender gives it up or dies, the next frame is no piece, and the receiver drops
# what it has. The ring's counters always stand between two frames: a process that dies leaves no half of one.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shmring.core.c.atomics cimport load_relaxed_u64
from shmring.core.c.layout cimport shmring_laps
from shmring.core.ring.laps cimport begin_lap, read_in_lap, stores_of_reader, write_in_lap
from shmring.core.ring.spsc cimport RING_CORRUPT, consumer_t, producer_t, ring_free, ring_ready, ring_release

cdef enum:
    WORD_NBYTES = 8
    LINE_NWORDS = 8
    ALIGNED_NBYTES = 512       # payloads from this size on begin on a cache line

# Kinds of frames.
cdef enum:
    FILLER = 1         # nothing: up to the end of the ring, or to the next line
    BYTES = 2
    ARRAY = 3
    OBJECT = 4
    PIECE = 5          # more of the long message under way

# The word: bits 0..31 bytes that follow, 32..39 kind, 40..47 dtype (position in dtypes.DTYPES; OTHER_DTYPE: described
# in words), 48..55 number of dimensions, 56 whether this begins a long message, 57..58 the kind of stores of its
# payload, 59..60 `timed` of its lap (core/c/layout.h). A frame that was found has the last two apart.
cdef enum:
    OTHER_DTYPE = 255

# What a sender has in hand: the word without its length, and the bytes, from several places.
ctypedef struct part_t:
    const char *address
    uint64_t nbytes

ctypedef struct load_t:
    uint64_t word
    part_t *parts
    int nparts
    uint64_t nbytes            # of all parts
    int part                   # so far: this one is under way,
    uint64_t offset            # from here

ctypedef struct frame_t:
    uint64_t word
    const char *bytes
    uint64_t nbytes
    uint64_t nwords            # of the ring, its own word included
    int kind                   # of stores
    uint64_t timed


cdef inline uint64_t word_of(int kind, int code=0, int ndim=0) noexcept nogil:
    return <uint64_t> kind << 32 | <uint64_t> code << 40 | <uint64_t> ndim << 48


cdef inline uint64_t nwords_of(uint64_t nbytes) noexcept nogil:
    return 1 + (nbytes + WORD_NBYTES - 1) // WORD_NBYTES


# The longest frame's bytes: with what may have to be skipped before it, it fits into an empty ring at any place. A
# filler before it is at most two lines longer, and its length, too, fits into 32 bits.
cdef inline uint64_t longest_frame(uint64_t capacity) noexcept nogil:
    return min(capacity // 2 - 1, (<uint64_t> 1 << 32) // WORD_NBYTES - 2 * LINE_NWORDS) * WORD_NBYTES


# Words that a frame occupies if it begins here, skipped words included. A frame does not wrap; a payload of
# ALIGNED_NBYTES or more begins on a cache line.
cdef inline uint64_t frame_needs(producer_t *p, uint64_t nbytes) noexcept nogil:
    cdef uint64_t nwords = nwords_of(nbytes), index = p.tail & p.mask, skipped = 0
    cdef bint is_aligned = nbytes >= ALIGNED_NBYTES and nwords < p.capacity // 4
    if is_aligned:
        skipped = (LINE_NWORDS - 1 - index) & (LINE_NWORDS - 1)
    if index + skipped + nwords > p.capacity:
        skipped = p.capacity - index + (LINE_NWORDS - 1 if is_aligned else 0)
    return skipped + nwords


# Begin a frame of so many bytes; where they go, or NULL if `needed` words (by frame_needs) are not free. Then commit
# p.reserved slots, or abort. `needed` becomes RING_CORRUPT if the consumer's counter is impossible.
cdef inline char *open_frame(producer_t *p, uint64_t word, uint64_t nbytes, int64_t *needed) noexcept nogil:
    needed[0] = <int64_t> frame_needs(p, nbytes)
    cdef int64_t free = ring_free(p, <uint64_t> needed[0])
    if free < needed[0]:
        if free < 0:
            needed[0] = RING_CORRUPT
        return NULL
    p.reserved = <uint64_t> needed[0]
    cdef uint64_t index = p.tail & p.mask, skipped = p.reserved - nwords_of(nbytes), to_end = p.capacity - index
    cdef uint64_t *words = <uint64_t *> p.slots
    if skipped:
        if skipped > to_end:
            words[0] = word_of(FILLER) | (skipped - to_end - 1) * WORD_NBYTES
        words[index] = word_of(FILLER) | (min(skipped, to_end) - 1) * WORD_NBYTES
        index = (index + skipped) & p.mask
    words[index] = word | nbytes
    return <char *> (words + index + 1)


# The times that all consumers have spent in reading timed frames, by parity of their lap. Visible are those of all that
# was written more than one lap before.
cdef inline void sum_of_reads(producer_t *p, uint64_t *read_ns) noexcept nogil:
    cdef uint32_t i
    read_ns[0] = read_ns[1] = 0
    for i in range(p.nheads):
        read_ns[0] += load_relaxed_u64(&p.ring.heads[i].read_ns[0])
        read_ns[1] += load_relaxed_u64(&p.ring.heads[i].read_ns[1])


# The bits of a frame's word that say how its payload is stored. To be called before each frame of payload is opened.
cdef inline uint64_t stores_of_frame(producer_t *p, uint64_t nbytes) noexcept nogil:
    cdef shmring_laps *laps = &p.ring.laps
    cdef uint64_t[2] read_ns
    if nbytes < ALIGNED_NBYTES:
        return 0
    if <int64_t> (p.tail - laps.next_lap) >= 0:
        sum_of_reads(p, read_ns)
        begin_lap(laps, p.tail, p.capacity, read_ns, NULL, &p.ring.tail)
    return <uint64_t> (laps.kind & 3) << 57 | <uint64_t> (laps.timed & 3) << 59


# Payload into an opened frame, or out of one. What is short costs no call into another module.
cdef inline void copy_in(producer_t *p, void *to, const void *source, uint64_t nbytes) noexcept nogil:
    if nbytes < ALIGNED_NBYTES:
        memcpy(to, source, nbytes)
    else:
        write_in_lap(&p.ring.laps, to, source, nbytes, p.ring.laps.kind)


cdef inline void copy_out(consumer_t *c, const frame_t *f, void *to, const void *source,
                          uint64_t nbytes) noexcept nogil:
    if nbytes < ALIGNED_NBYTES:
        memcpy(to, source, nbytes)
    else:
        read_in_lap(f.timed, c.own.read_ns, to, source, nbytes, stores_of_reader(f.kind))


# Copy the next `nbytes` of what is in hand.
cdef inline void put_load(producer_t *p, char *to, load_t *m, uint64_t nbytes) noexcept nogil:
    cdef uint64_t n
    while nbytes:
        n = min(nbytes, m.parts[m.part].nbytes - m.offset)
        copy_in(p, to, m.parts[m.part].address + m.offset, n)
        to += n
        nbytes -= n
        m.offset += n
        if m.offset == m.parts[m.part].nbytes:
            m.part += 1
            m.offset = 0


# The next frame: 1, 0 if there is none yet, or RING_CORRUPT. Fillers are passed over.
cdef inline int next_frame(consumer_t *c, frame_t *f) noexcept nogil:
    cdef uint64_t index
    cdef int64_t ready
    while True:
        ready = ring_ready(c, 1)
        if ready <= 0:
            return RING_CORRUPT if ready < 0 else 0
        index = c.head & c.mask
        f.word = (<const uint64_t *> c.slots)[index]
        f.kind = <int> (f.word >> 57 & 3)
        f.timed = f.word >> 59 & 3
        f.word &= (<uint64_t> 1 << 57) - 1
        f.nbytes = <uint32_t> f.word
        f.nwords = nwords_of(f.nbytes)
        if f.nwords > <uint64_t> ready or index + f.nwords > c.capacity:
            return RING_CORRUPT
        if f.word >> 32 & 0xFF != FILLER:
            f.bytes = c.slots + (index + 1) * WORD_NBYTES
            return 1
        # Not announced by itself: a frame comes behind it, and the two go together.
        c.head += f.nwords


cdef inline uint64_t as_long(uint64_t word) noexcept nogil:
    return word | <uint64_t> 1 << 56


cdef inline bint is_long(uint64_t word) noexcept nogil:
    return word >> 56 & 1


cdef inline int kind_of(uint64_t word) noexcept nogil:
    return <int> (word >> 32 & 0xFF)


cdef inline int code_of(uint64_t word) noexcept nogil:
    return <int> (word >> 40 & 0xFF)


cdef inline int ndim_of(uint64_t word) noexcept nogil:
    return <int> (word >> 48 & 0xFF)


# Give back the frame that next_frame found.
cdef inline void leave_frame(consumer_t *c, frame_t *f) noexcept nogil:
    c.peeked = f.nwords
    ring_release(c, f.nwords)
