# A wire for compiled code (nodes/transfers.pyx).

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.sync.backoff cimport now_ns

cdef enum:
    MESSAGE, ACK, CREDIT, LEAVING       # kinds of envelopes
    NFIELDS = 5                         # kind, number, tag, nbytes, code of the dtype, before the content
    PLAN = 0                # ways of a call
    WIRE = 1
    NTRIED = 20             # calls of each way in a look,
    NTIMED = 16             # of which the last ones are timed: the first ones find what the other way has left
    NREMEMBERED = 1024      # calls, in a `History`

ctypedef struct work_t:
    uint64_t handle     # of MPI: room for its request
    bint is_pending
    bint is_python      # the wire's own object, kept by `Transfers`

# What the ranks of a call with equal blocks agree on.
ctypedef struct form_t:
    int kind            # engine/kinds.h
    int root            # NO_ROOT: none
    int op              # NO_OP: it moves data
    int dtype           # position in dtypes.DTYPES; -1: opaque bytes
    size_t itemsize
    size_t count        # elements of a block

cdef class History:
    cdef readonly uint64_t number       # of the latest call
    cdef readonly str what
    cdef uint32_t digests[NREMEMBERED]  # of all calls up to each of the latest ones

    cpdef void note(self, uint64_t number, str what, uint32_t digest) noexcept


cdef class Transfers:
    cdef readonly object wire
    cdef readonly History history
    cdef public bint is_cut        # nothing more can be sent or received
    cdef public bint is_disturbed  # a collective of the wire would not end: a rank has failed, left, or disagrees
    cdef dict works
    cdef dict rooms                # memory for the first messages of calls, by (peer, is sent)
    cdef size_t short_nbytes       # longest content of a call that is sent with its header

    cdef int _keep(self, object made, work_t *work) except -1

    # Begin; ``owner`` keeps the memory.
    cdef int send(self, const void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1
    cdef int recv(self, void *data, size_t nbytes, object owner, int peer, int channel, uint32_t number,
                  work_t *work) except -1
    # Wait for what is pending; the call times out at ``deadline_ns``, < 0: never.
    cdef int wait(self, work_t *work, int peer, int64_t deadline_ns) except -1

    # The wire's own collective for calls of that form; None if it has none.
    cdef Collective collective(self, const form_t *form)
    # The largest number of all ranks, of each of two.
    cdef list find_most(self, list numbers, int64_t deadline_ns)


cdef class Mailbox:
    cdef object wire
    cdef int peer
    cdef readonly bint is_read     # the peer is known to receive envelopes
    cdef uint64_t nmessages
    cdef uint64_t nsent, ncredited, nreceived    # envelopes
    cdef object kept               # works of the envelopes without a credit, with their memory
    cdef object without_room       # short sends that wait for a credit, with their numbers
    cdef dict long_sends           # by number, with their works

    cdef int post(self, int kind, uint64_t number=*, int tag=*, uint64_t nbytes=*, int code=*, content=*) except -1
    cdef int flush(self, object left_s) except -1
    cdef bint await_first(self, object left_s) except -1
    cdef list take_credit(self)
    cdef bint has_room_for(self, uint64_t number)
    cdef int note_read(self) except -1


cdef class Collective:
    cdef int run(self, const void *x, void *out, int64_t deadline_ns) except -1


cdef class Trials:
    cdef int64_t times[2][NTIMED]
    cdef uint64_t ncalls
    cdef int64_t ended_ns       # when the latest call was over
    cdef uint64_t next_look     # the call with which the next look begins
    cdef readonly int best
    cdef readonly list us       # of a call in each way, when last looked at; None before

    cpdef int begin(self) noexcept
    cpdef bint note(self, int64_t ns) noexcept


cdef object bytes_at(const void *data, size_t nbytes, object owner)


cdef inline object left_s(int64_t deadline_ns, double grace_s):
    """Seconds until a call times out, and these; None: no limit."""
    return None if deadline_ns < 0 else max(0.0, 1e-9 * <double> (deadline_ns - now_ns()) + grace_s)
