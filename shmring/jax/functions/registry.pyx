"""Communicators that compiled graphs refer to, by number.

A graph cannot hold an object, and an address in it could dangle: a graph may be executed after its communicator is
gone, or in another process. So a graph has the number of a `Registered`, which the handler looks up in each call.
Numbers are not used again.

A slot is freed by the last of its `Registered` object and the calls in it, so a call has its handle to the end.
"""

from libc.stdint cimport int64_t

from shmring.capi cimport shmring_api, shmring_comm, shmring_import

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #define MOST 4096
    typedef struct {
        int64_t number;     /* 0: free */
        int64_t nholders;   /* the Registered object, and the calls that use the handle */
        int is_dropped;     /* the object is gone: no new calls */
        void *comm;
    } shmring_slot;
    static shmring_slot shmring_slots[MOST];
    static pthread_mutex_t shmring_slots_lock = PTHREAD_MUTEX_INITIALIZER;
    static void slots_lock(void) { pthread_mutex_lock(&shmring_slots_lock); }
    static void slots_unlock(void) { pthread_mutex_unlock(&shmring_slots_lock); }
    """
    const int MOST
    ctypedef struct slot_t "shmring_slot":
        int64_t number
        int64_t nholders
        bint is_dropped
        void *comm
    slot_t *slots "shmring_slots"
    void slots_lock() noexcept nogil      # for some instructions, and never with a call of Python in it
    void slots_unlock() noexcept nogil

cdef const shmring_api *api = shmring_import()
cdef int64_t ngenerations = 0


cdef class Registered:
    """A communicator that graphs may refer to. Both are kept alive by it, and it by the graphs that were compiled."""

    cdef readonly object comm
    cdef readonly int64_t number
    cdef object __weakref__

    def __init__(self, comm):
        cdef shmring_comm *handle = NULL
        if api.comm_open(<void *> comm, &handle):
            raise ValueError(api.last_error().text.decode("utf-8", "replace"))
        self.number = enter(handle)
        if not self.number:
            api.comm_release(handle)
            raise RuntimeError(f"more than {MOST} communicators are in use by compiled functions: use fewer, or "
                               "jax.clear_caches()")
        self.comm = comm

    def __dealloc__(self):
        drop(self.number)

    def __repr__(self):
        return self.comm.name


cdef int64_t enter(shmring_comm *handle) noexcept:
    """A number for the handle; 0 if there are too many."""
    global ngenerations
    cdef int i
    cdef int64_t number = 0
    slots_lock()
    for i in range(MOST):
        if slots[i].number == 0:
            ngenerations += 1
            number = ngenerations * MOST + i
            slots[i].number = number
            slots[i].nholders = 1
            slots[i].is_dropped = False
            slots[i].comm = handle
            break
    slots_unlock()
    return number


cdef void drop(int64_t number) noexcept:
    """No new calls; the handle is released by the last call that uses it."""
    if number:
        slots_lock()
        slots[number % MOST].is_dropped = True
        slots_unlock()
        release(number)


cdef shmring_comm *acquire(int64_t number) noexcept nogil:
    """The handle of that number, until `release`; NULL if there is none."""
    cdef slot_t *slot
    cdef shmring_comm *comm = NULL
    if number < MOST:
        return NULL
    slot = &slots[number % MOST]
    slots_lock()
    if slot.number == number and not slot.is_dropped:
        slot.nholders += 1
        comm = <shmring_comm *> slot.comm
    slots_unlock()
    return comm


cdef void release(int64_t number) noexcept nogil:
    """Leave a handle that `acquire` has returned. The last to leave frees the slot."""
    cdef slot_t *slot = &slots[number % MOST]
    cdef shmring_comm *comm = NULL
    slots_lock()
    slot.nholders -= 1
    if slot.nholders == 0:
        comm = <shmring_comm *> slot.comm
        slot.number = 0
    slots_unlock()
    if comm != NULL:
        api.comm_release(comm)
