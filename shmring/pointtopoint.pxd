# Point-to-point messages of one communicator in one process: who gets what.
from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring.arrays cimport array_t
from shmring.engine cimport Engine
from shmring.lanes cimport lanes_t
from shmring.layout cimport shmring_cell

cdef enum:
    ANY = -1       # source or tag
    MOST_TAG = 0x7FFFFFFF


cdef class Message:
    cdef readonly int source
    cdef readonly int tag
    cdef readonly uint64_t nbytes
    cdef int32_t code              # of the dtype


cdef class Request:
    cdef PointToPoint owner
    cdef int kind
    cdef int peer
    cdef int tag
    cdef array_t a
    cdef object array              # as the user gave it
    cdef object keeper             # of its memory
    cdef bint is_over
    cdef Message message
    cdef object error
    cdef list callbacks
    cdef object __weakref__

    cdef int settle(self, int64_t timeout_ns) except -1


cdef class Parcel:
    cdef Message message
    cdef char *content
    cdef bint is_whole
    cdef Request claimant


cdef class PointToPoint:
    cdef Engine engine
    cdef list blocks
    cdef lanes_t l
    cdef int rank
    cdef int size
    cdef int turn_of_source        # where looking for anybody's message begins: nobody is passed over for ever
    cdef list posted               # receives and probes that wait, in the order they were made
    cdef list parcels              # messages put aside, in the order they came
    cdef list outgoing             # by peer: sends that wait for the lane, the first of them under way
    cdef list incoming             # by peer: the Request or Parcel that the message under way goes to
    cdef int nunderway             # sends queued and receives under way
    cdef list finished             # requests with callbacks to run
    cdef bint is_busy
    cdef unsigned long holder
    cdef int nwaiting
    cdef object turn
    cdef bint is_awaited           # a thread dozes
    cdef int nfollowers            # threads that wait for what it will find
    cdef object news
    cdef bint is_told              # what this rank sleeps for stands in its outbox

    # public to the face; each enters and leaves
    cdef int send(self, object x, int peer, int tag, int64_t timeout_ns) except -1
    cdef Message recv(self, object x, int peer, int tag, int64_t timeout_ns)
    cdef Message sendrecv(self, object x, int peer, int tag, object out, int source, int out_tag, int64_t timeout_ns)
    cdef Request isend(self, object x, int peer, int tag)
    cdef Request irecv(self, object x, int peer, int tag)
    cdef Message probe(self, int peer, int tag, int64_t timeout_ns)

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int take_turn(self) except -1
    cdef void give_turn(self) noexcept
    cdef int check_peer(self, int peer, bint any_is_allowed) except -1
    cdef int open_lane(self, int peer, uint64_t nbytes) except -1
    cdef bint send_at_once(self, array_t *a, int peer, int tag) except -1
    cdef Message recv_soon(self, array_t *a, int peer, int tag, bint *has_spun)
    cdef Message recv_at_once(self, array_t *a, int peer, int tag, int looks)
    cdef Message take_next(self, array_t *a, int peer, int tag, shmring_cell *cell)
    cdef int start_send(self, Request r) except -1
    cdef int go_on_receiving(self, Request r, Message message) except -1
    cdef int start_recv(self, Request r) except -1
    cdef Parcel find_parcel(self, Request r)
    cdef int open_parcel(self, Parcel parcel, Request r) except -1
    cdef bint attend(self) except -1
    cdef bint match_next(self, int peer, shmring_cell *cell) except -1
    cdef int begin(self, int peer, Message message, object whose, void *target) except -1
    cdef int move(self, int peer, bint inwards) except -1
    cdef int offer(self, Parcel parcel) except -1
    cdef void post(self, Request r)
    cdef void unpost(self, Request r)
    cdef void want(self, int peer, int more) noexcept
    cdef int finish(self, Request r, Message message) except -1
    cdef void fail(self, Request r, object error)
    cdef void settled(self, Request r)
    cdef bint await_all(self, list requests, int64_t timeout_ns, bint has_spun=*) except -1
    cdef int rest(self, int64_t tick_ns) except -1
    cdef int retake_turn(self) except -1
    cdef int give_up(self, list requests, str raised) except -1
    cdef bint withdraw(self, Request r) except -1
    cdef int break_down(self) except -1
