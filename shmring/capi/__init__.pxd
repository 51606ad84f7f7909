# The C table, for cimport: `from shmring.capi cimport shmring_api, shmring_import`. shmring/capi.h describes the names.
# Build with include_dirs=[shmring.capi.get_include()].
from libc.stdint cimport int64_t, uint64_t


cdef extern from "shmring/capi.h" nogil:
    const int SHMRING_API_VERSION

    enum shmring_code:
        SHMRING_OK
        SHMRING_ERR_BAD_ARGUMENT
        SHMRING_ERR_CLOSED
        SHMRING_ERR_PEER_LOST
        SHMRING_ERR_TIMEOUT
        SHMRING_ERR_MISMATCH
        SHMRING_ERR_ABORTED
        SHMRING_ERR_OUT_OF_MEMORY
        SHMRING_ERR_INTERNAL
        SHMRING_ERR_MESSAGE_TIMEOUT
        SHMRING_ERR_MESSAGE_TOO_LONG

    enum shmring_dtype:
        SHMRING_OPAQUE
        SHMRING_FLOAT64
        SHMRING_FLOAT32
        SHMRING_FLOAT16
        SHMRING_BFLOAT16
        SHMRING_INT8
        SHMRING_INT16
        SHMRING_INT32
        SHMRING_INT64
        SHMRING_UINT8
        SHMRING_UINT16
        SHMRING_UINT32
        SHMRING_UINT64
        SHMRING_BOOL
        SHMRING_COMPLEX64
        SHMRING_COMPLEX128
        SHMRING_FLOAT8_E4M3FN
        SHMRING_FLOAT8_E5M2

    enum shmring_op:
        SHMRING_SUM
        SHMRING_PROD
        SHMRING_MIN
        SHMRING_MAX
        SHMRING_AVG
        SHMRING_BAND
        SHMRING_BOR
        SHMRING_BXOR
        SHMRING_LAND
        SHMRING_LOR
        SHMRING_ABSMAX

    enum shmring_collective:
        SHMRING_KIND_BARRIER
        SHMRING_KIND_ALL_REDUCE
        SHMRING_KIND_REDUCE
        SHMRING_KIND_BROADCAST
        SHMRING_KIND_ALL_GATHER
        SHMRING_KIND_REDUCE_SCATTER
        SHMRING_KIND_GATHER
        SHMRING_KIND_SCATTER
        SHMRING_KIND_ALL_TO_ALL
        SHMRING_KIND_SCAN
        SHMRING_KIND_EXSCAN

    const int64_t SHMRING_NO_TIMEOUT
    const int64_t SHMRING_DEFAULT_TIMEOUT
    const int SHMRING_ANY_SOURCE
    const int SHMRING_ANY_TAG
    const int64_t SHMRING_NO_COLOR

    ctypedef struct shmring_comm:
        pass
    ctypedef struct shmring_plan:
        pass
    ctypedef struct shmring_request:
        pass

    ctypedef struct shmring_error:
        int code
        int rank
        const char *text
        const char *name

    ctypedef struct shmring_message:
        int source
        int tag
        uint64_t nbytes
        int dtype

    ctypedef struct shmring_call:
        size_t struct_size
        int kind
        int dtype
        int op
        int root
        const void *x
        void *out
        int64_t count
        int64_t timeout_ns

    ctypedef struct shmring_api:
        size_t struct_size
        int version
        const shmring_error *(*last_error)() noexcept nogil
        int (*comm_open)(void *object, shmring_comm **comm) noexcept nogil
        int (*comm_release)(shmring_comm *comm) noexcept nogil
        int (*comm_rank)(const shmring_comm *comm) noexcept nogil
        int (*comm_size)(const shmring_comm *comm) noexcept nogil
        int (*comm_abort)(shmring_comm *comm, const char *reason) noexcept nogil
        int (*comm_close)(shmring_comm *comm) noexcept nogil
        int (*comm_dup)(shmring_comm *comm, shmring_comm **made) noexcept nogil
        int (*comm_split)(shmring_comm *comm, int64_t color, int64_t key, shmring_comm **made) noexcept nogil
        int (*collective)(shmring_comm *comm, const shmring_call *call) noexcept nogil
        int (*plan_make)(shmring_comm *comm, const shmring_call *call, shmring_plan **plan) noexcept nogil
        int (*plan_run)(shmring_plan *plan) noexcept nogil
        int (*plan_release)(shmring_plan *plan) noexcept nogil
        int (*send)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
                    int64_t timeout_ns) noexcept nogil
        int (*recv)(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, int64_t timeout_ns,
                    shmring_message *message) noexcept nogil
        int (*sendrecv)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, void *out,
                        int64_t out_count, int out_dtype, int src, int out_tag, int64_t timeout_ns,
                        shmring_message *message) noexcept nogil
        int (*isend)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
                     shmring_request **request) noexcept nogil
        int (*irecv)(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag,
                     shmring_request **request) noexcept nogil
        int (*test)(shmring_request **request, int *is_over, shmring_message *message) noexcept nogil
        int (*wait)(shmring_request **request, int64_t timeout_ns, shmring_message *message) noexcept nogil

    int shmring_all_reduce(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                           int dtype, int op, int64_t timeout_ns)
    int shmring_reduce(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count, int dtype,
                       int op, int root, int64_t timeout_ns)
    int shmring_broadcast(const shmring_api *api, shmring_comm *comm, void *x, int64_t count, int dtype, int root,
                          int64_t timeout_ns)
    int shmring_all_gather(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                           int dtype, int64_t timeout_ns)
    int shmring_reduce_scatter(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                               int dtype, int op, int64_t timeout_ns)
    int shmring_all_to_all(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                           int dtype, int64_t timeout_ns)
    int shmring_gather(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count, int dtype,
                       int root, int64_t timeout_ns)
    int shmring_scatter(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                        int dtype, int root, int64_t timeout_ns)
    int shmring_scan(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count, int dtype,
                     int op, int64_t timeout_ns)
    int shmring_exscan(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count, int dtype,
                       int op, int64_t timeout_ns)
    int shmring_barrier(const shmring_api *api, shmring_comm *comm, int64_t timeout_ns)

    const shmring_api *shmring_table(const void *address)

cdef extern from "shmring/capi.h":
    # Once, with the GIL.
    const shmring_api *shmring_import() except NULL
