"""The C table from Cython, for tests: as a user's module has it."""

from shmring.capi cimport (SHMRING_ANY_TAG, SHMRING_DEFAULT_TIMEOUT, SHMRING_FLOAT64, SHMRING_SUM, shmring_api,
                           shmring_comm, shmring_import, shmring_message, shmring_all_reduce)

cdef const shmring_api *api = shmring_import()


def all_reduce_and_shift(comm, double[::1] x, double[::1] out):
    """The sum over all ranks in ``x``, and that of the rank before in ``out``; source and tag of the message."""
    cdef shmring_comm *handle = NULL
    cdef shmring_message message
    cdef int code = api.comm_open(<void *> comm, &handle), rank, size
    if code == 0:
        with nogil:
            rank = api.comm_rank(handle)
            size = api.comm_size(handle)
            code = api.sendrecv(handle, &x[0], x.shape[0], SHMRING_FLOAT64, (rank + 1) % size, 7, &out[0], out.shape[0],
                                SHMRING_FLOAT64, (rank + size - 1) % size, SHMRING_ANY_TAG, SHMRING_DEFAULT_TIMEOUT,
                                &message)
            if code == 0:
                code = shmring_all_reduce(api, handle, &x[0], &x[0], x.shape[0], SHMRING_FLOAT64, SHMRING_SUM,
                                      SHMRING_DEFAULT_TIMEOUT)
    error = None if code == 0 else (code, api.last_error().text.decode())
    api.comm_release(handle)
    if error is not None:
        raise RuntimeError(error)
    return message.source, message.tag

