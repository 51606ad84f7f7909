"""An all-reduce of 8 bytes in loops without the GIL: by the C table, by a plan of it, and by the engine alone."""

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.capi cimport (SHMRING_DEFAULT_TIMEOUT, SHMRING_FLOAT64, SHMRING_KIND_ALL_REDUCE, SHMRING_SUM, shmring_api,
                           shmring_call, shmring_comm, shmring_import, shmring_plan, shmring_all_reduce)
from shmring.collectives.calls.local cimport fill_eager
from shmring.communicator cimport Communicator
from shmring.collectives.engine.call cimport call_t, check_call, open_call
from shmring.collectives.engine.eager cimport eager_t
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport KIND_ALL_REDUCE
from shmring.collectives.engine.signature cimport NO_ROOT

cdef const shmring_api *api = shmring_import()


cdef class Loops:
    """The loops of one communicator; each method makes ``times`` calls and returns how many failed.

    Parameters
    ----------
    comm : Communicator
    """

    cdef shmring_comm *handle
    cdef shmring_plan *prepared
    cdef Engine engine
    cdef double x

    def __cinit__(self, Communicator comm not None):
        cdef shmring_call call
        memset(&call, 0, sizeof(call))
        call.struct_size = sizeof(call)
        call.kind, call.dtype, call.op, call.count = SHMRING_KIND_ALL_REDUCE, SHMRING_FLOAT64, SHMRING_SUM, 1
        call.x = call.out = &self.x
        call.timeout_ns = SHMRING_DEFAULT_TIMEOUT
        self.engine = comm._engine
        if api.comm_open(<void *> comm, &self.handle) or api.plan_make(self.handle, &call, &self.prepared):
            raise RuntimeError(api.last_error().text.decode())

    def __dealloc__(self):
        api.plan_release(self.prepared)
        api.comm_release(self.handle)

    def call(self, int64_t times):
        cdef int64_t failures = 0
        with nogil:
            for _ in range(times):
                failures += shmring_all_reduce(api, self.handle, &self.x, &self.x, 1, SHMRING_FLOAT64, SHMRING_SUM,
                                           SHMRING_DEFAULT_TIMEOUT) != 0
        return failures

    def plan(self, int64_t times):
        cdef int64_t failures = 0
        with nogil:
            for _ in range(times):
                failures += api.plan_run(self.prepared) != 0
        return failures

    def own(self, int64_t times):
        """The exchanges alone: one request, filled in once, in one turn."""
        cdef int64_t failures = 0
        cdef eager_t request
        cdef call_t c
        open_call(&c, KIND_ALL_REDUCE, NO_ROOT, -1)
        c.x.data, c.x.count, c.x.nbytes, c.x.dtype, c.x.itemsize = &self.x, 1, 8, SHMRING_FLOAT64, 8
        c.out, c.op = c.x, SHMRING_SUM
        check_call(&c, self.engine.c.group.rank, self.engine.c.group.size)
        with nogil:
            fill_eager(self.engine, &c, &request)
            failures = not self.engine.enter_free()
            for _ in range(times if failures == 0 else 0):
                failures += self.engine.run_free(&request, NULL, NULL, -1) != 0
            self.engine.leave_free()
        return failures
