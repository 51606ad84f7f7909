# The structs of core/arrays/dlpack_abi.h, and tensors borrowed through them (core/arrays/dlpack.pyx).
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "core/arrays/dlpack_abi.h":
    const uint32_t SHMRING_DLPACK_MAJOR
    const uint64_t SHMRING_DL_READ_ONLY
    const uint64_t SHMRING_DL_IS_COPIED
    enum:
        SHMRING_DL_CPU
        SHMRING_DL_HANDLE
        SHMRING_DL_COMPLEX

    ctypedef struct DLPackVersion:
        uint32_t major
        uint32_t minor

    ctypedef struct DLDevice:
        int32_t device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void *data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef struct DLManagedTensor:
        DLTensor dl_tensor
        void (*deleter)(DLManagedTensor *self)

    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        void (*deleter)(DLManagedTensorVersioned *self)
        uint64_t flags
        DLTensor dl_tensor

    ctypedef struct DLPackExchangeAPI:
        DLPackVersion version
        DLPackExchangeAPI *prev_api
        int (*allocate)(DLTensor *, DLManagedTensorVersioned **, void *, void (*)(void *, const char *, const char *))
        int (*managed_from_object)(void *, DLManagedTensorVersioned **)
        int (*object_from_managed)(DLManagedTensorVersioned *, void **)
        int (*tensor_from_object)(void *, DLTensor *)


cdef class Exporter:
    """The DLPack abilities of a type; looked up once per type."""
    cdef DLPackExchangeAPI *api     # NULL: only __dlpack__
    cdef bint exports               # whether it has DLPack at all
    cdef bint always_writable       # has no read-only objects, so the form without flags will do
    cdef object is_conj             # unbound methods, or None: frameworks that conjugate and negate lazily
    cdef object is_neg


cdef Exporter exporter_of(object x)
cdef object borrow_tensor(object x, Exporter exporter, DLTensor *t, bint writable)
cdef bint is_dense(const DLTensor *t) noexcept
cdef object new_tensor(Exporter exporter, DLTensor *prototype)
