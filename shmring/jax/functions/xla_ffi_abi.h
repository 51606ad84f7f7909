/* The part of XLA's foreign function interface (FFI), version 0.1, that a handler of custom calls needs. Field order and
 * meaning are fixed by XLA (xla/ffi/api/c_api.h, which jaxlib ships); fields that shmring does not use are left out only
 * where they are at the end of a struct. Every later version of XLA's FFI, up to the next major one, appends.
 *
 * XLA calls a handler with a call frame: operands, results (and attributes, which are not used here). The handler returns
 * NULL, or an error that it has made with the frame's table.
 */
#ifndef SHMRING_XLA_FFI_ABI_H
#define SHMRING_XLA_FFI_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The version that a handler declares: the oldest one. XLA takes handlers of all versions from 0.1 to its own. */
#define SHMRING_XLA_FFI_MAJOR 0
#define SHMRING_XLA_FFI_MINOR 1

enum { XLA_FFI_Extension_Metadata = 1 };

/* Codes of absl::Status. */
enum {
    XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
    XLA_FFI_Error_Code_DEADLINE_EXCEEDED = 4,
    XLA_FFI_Error_Code_RESOURCE_EXHAUSTED = 8,
    XLA_FFI_Error_Code_FAILED_PRECONDITION = 9,
    XLA_FFI_Error_Code_ABORTED = 10,
    XLA_FFI_Error_Code_INTERNAL = 13,
    XLA_FFI_Error_Code_UNAVAILABLE = 14
};

/* xla::PrimitiveType. */
enum {
    XLA_FFI_DataType_PRED = 1,
    XLA_FFI_DataType_S8 = 2,
    XLA_FFI_DataType_S16 = 3,
    XLA_FFI_DataType_S32 = 4,
    XLA_FFI_DataType_S64 = 5,
    XLA_FFI_DataType_U8 = 6,
    XLA_FFI_DataType_U16 = 7,
    XLA_FFI_DataType_U32 = 8,
    XLA_FFI_DataType_U64 = 9,
    XLA_FFI_DataType_F16 = 10,
    XLA_FFI_DataType_F32 = 11,
    XLA_FFI_DataType_F64 = 12,
    XLA_FFI_DataType_C64 = 15,
    XLA_FFI_DataType_BF16 = 16,
    XLA_FFI_DataType_TOKEN = 17,
    XLA_FFI_DataType_C128 = 18,
    XLA_FFI_DataType_F8E5M2 = 19, /* one byte an element, as those below */
    XLA_FFI_DataType_F8E4M3FN = 20,
    XLA_FFI_DataType_F8E4M3B11FNUZ = 23,
    XLA_FFI_DataType_F8E5M2FNUZ = 24,
    XLA_FFI_DataType_F8E4M3FNUZ = 25,
    XLA_FFI_DataType_F8E4M3 = 28,
    XLA_FFI_DataType_F8E3M4 = 29,
    XLA_FFI_DataType_F8E8M0FNU = 33
};

typedef struct XLA_FFI_Extension_Base {
    size_t struct_size;
    int32_t type;
    struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

typedef struct XLA_FFI_Api_Version {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int32_t major_version;
    int32_t minor_version;
} XLA_FFI_Api_Version;

typedef struct XLA_FFI_Metadata {
    size_t struct_size;
    XLA_FFI_Api_Version api_version;
    uint32_t traits;
} XLA_FFI_Metadata;

typedef struct XLA_FFI_Metadata_Extension {
    XLA_FFI_Extension_Base extension_base;
    XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef struct XLA_FFI_Error XLA_FFI_Error;

typedef struct XLA_FFI_Error_Create_Args {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    const char *message; /* copied */
    int32_t errc;
} XLA_FFI_Error_Create_Args;

typedef struct XLA_FFI_Api {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    XLA_FFI_Api_Version api_version;
    void *internal_api;
    XLA_FFI_Error *(*XLA_FFI_Error_Create)(XLA_FFI_Error_Create_Args *args);
} XLA_FFI_Api;

typedef struct XLA_FFI_Buffer {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int32_t dtype;
    void *data;
    int64_t rank; /* of the array: its number of dimensions */
    int64_t *dims;
} XLA_FFI_Buffer;

/* Operands (args) and results (rets): all are buffers. */
typedef struct XLA_FFI_Buffers {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    int64_t size;
    int32_t *types;
    XLA_FFI_Buffer **buffers;
} XLA_FFI_Buffers;

typedef struct XLA_FFI_CallFrame {
    size_t struct_size;
    XLA_FFI_Extension_Base *extension_start;
    const XLA_FFI_Api *api;
    void *ctx;
    int32_t stage;
    XLA_FFI_Buffers args;
    XLA_FFI_Buffers rets;
} XLA_FFI_CallFrame;

/* Whether XLA asks what the handler is, as it registers it, instead of calling it. Then this is the answer. */
static inline int xla_ffi_describe(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Metadata *metadata;
    if (!frame->extension_start || frame->extension_start->type != XLA_FFI_Extension_Metadata) return 0;
    metadata = ((XLA_FFI_Metadata_Extension *)frame->extension_start)->metadata;
    metadata->api_version.major_version = SHMRING_XLA_FFI_MAJOR;
    metadata->api_version.minor_version = SHMRING_XLA_FFI_MINOR;
    metadata->traits = 0;
    return 1;
}

static inline XLA_FFI_Error *xla_ffi_error(XLA_FFI_CallFrame *frame, int code, const char *message) {
    XLA_FFI_Error_Create_Args args = {offsetof(XLA_FFI_Error_Create_Args, errc) + sizeof(int32_t), NULL, message, code};
    return frame->api->XLA_FFI_Error_Create(&args);
}

#endif
