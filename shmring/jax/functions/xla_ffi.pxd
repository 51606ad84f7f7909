# The structs of jax/functions/xla_ffi_abi.h, and what XLA's dtypes are here.
from libc.stdint cimport int32_t, int64_t


cdef extern from "jax/functions/xla_ffi_abi.h" nogil:
    enum:
        XLA_FFI_Error_Code_INVALID_ARGUMENT
        XLA_FFI_Error_Code_DEADLINE_EXCEEDED
        XLA_FFI_Error_Code_RESOURCE_EXHAUSTED
        XLA_FFI_Error_Code_FAILED_PRECONDITION
        XLA_FFI_Error_Code_ABORTED
        XLA_FFI_Error_Code_INTERNAL
        XLA_FFI_Error_Code_UNAVAILABLE
    enum:
        XLA_FFI_DataType_S64
        XLA_FFI_DataType_TOKEN
        XLA_FFI_DataType_U8
    ctypedef struct XLA_FFI_Error:
        pass
    ctypedef struct XLA_FFI_Buffer:
        int32_t dtype
        void *data
        int64_t rank
        int64_t *dims
    ctypedef struct XLA_FFI_Buffers:
        int64_t size
        XLA_FFI_Buffer **buffers
    ctypedef struct XLA_FFI_CallFrame:
        XLA_FFI_Buffers args
        XLA_FFI_Buffers rets
    bint xla_ffi_describe(XLA_FFI_CallFrame *frame)
    XLA_FFI_Error *xla_ffi_error(XLA_FFI_CallFrame *frame, int code, const char *message)


cdef extern from *:
    """
    #include "shmring/capi.h"
    #include "jax/functions/xla_ffi_abi.h"

    /* By XLA's dtype: shmring's, and the bytes of an element. 0: no array, or less than a byte, which XLA may pack. */
    enum { NDTYPES = XLA_FFI_DataType_F8E8M0FNU + 1 };
    typedef struct { int dtype, itemsize; } shmring_dtype_size;
    static const shmring_dtype_size shmring_dtypes[NDTYPES] = {
        [XLA_FFI_DataType_PRED] = {SHMRING_BOOL, 1},
        [XLA_FFI_DataType_S8] = {SHMRING_INT8, 1},
        [XLA_FFI_DataType_S16] = {SHMRING_INT16, 2},
        [XLA_FFI_DataType_S32] = {SHMRING_INT32, 4},
        [XLA_FFI_DataType_S64] = {SHMRING_INT64, 8},
        [XLA_FFI_DataType_U8] = {SHMRING_UINT8, 1},
        [XLA_FFI_DataType_U16] = {SHMRING_UINT16, 2},
        [XLA_FFI_DataType_U32] = {SHMRING_UINT32, 4},
        [XLA_FFI_DataType_U64] = {SHMRING_UINT64, 8},
        [XLA_FFI_DataType_F16] = {SHMRING_FLOAT16, 2},
        [XLA_FFI_DataType_F32] = {SHMRING_FLOAT32, 4},
        [XLA_FFI_DataType_F64] = {SHMRING_FLOAT64, 8},
        [XLA_FFI_DataType_C64] = {SHMRING_COMPLEX64, 8},
        [XLA_FFI_DataType_BF16] = {SHMRING_BFLOAT16, 2},
        [XLA_FFI_DataType_C128] = {SHMRING_COMPLEX128, 16},
        [XLA_FFI_DataType_F8E5M2] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3FN] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3B11FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E5M2FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E3M4] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E8M0FNU] = {SHMRING_OPAQUE, 1},
    };
    """
    enum: NDTYPES
    ctypedef struct dtype_t "shmring_dtype_size":
        int dtype
        int itemsize
    const dtype_t *dtypes "shmring_dtypes"
