/* The part of DLPack's binary interface, major version 1, that arrays are read through. Field order and meaning are
 * fixed by that standard (https://dmlc.github.io/dlpack); fields that shmring does not use are opaque pointers here.
 *
 * A `DLTensor` has the address, the dtype and the shape; the two managed forms own a `DLTensor` and are freed by
 * `deleter(self)`. Only the versioned form has flags, so only it can mark memory as read-only.
 */
#ifndef SHMRING_DLPACK_ABI_H
#define SHMRING_DLPACK_ABI_H

#include <stddef.h>
#include <stdint.h>

#define SHMRING_DLPACK_MAJOR 1u
#define SHMRING_DL_READ_ONLY 1u
#define SHMRING_DL_IS_COPIED 2u

enum { SHMRING_DL_CPU = 1 };
enum { SHMRING_DL_HANDLE = 3, SHMRING_DL_COMPLEX = 5 }; /* the others are in the rows of dtypes.py */

typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;

typedef struct {
    int32_t device_type;
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: C-contiguous (producers before 1.2) */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version; /* of another major version nothing but `deleter` may be touched */
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

/* What the capsule `type(x).__dlpack_c_exchange_api__` points to. It lives as long as the process. */
typedef struct DLPackExchangeAPI {
    DLPackVersion version;
    struct DLPackExchangeAPI *prev_api; /* an older table, or NULL; version and prev_api never move */
    int (*allocate)(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
                    void (*set_error)(void *error_ctx, const char *kind, const char *message));
    int (*managed_from_object)(void *object, DLManagedTensorVersioned **out);
    int (*object_from_managed)(DLManagedTensorVersioned *tensor, void **out);
    int (*tensor_from_object)(void *object, DLTensor *out); /* borrowed, no flags; may be NULL */
    void *current_work_stream;
} DLPackExchangeAPI;

_Static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8, "DLPack's small structs have no padding");
_Static_assert(sizeof(void *) != 8 || (sizeof(DLTensor) == 48 && offsetof(DLManagedTensorVersioned, dl_tensor) == 32 &&
                                       offsetof(DLPackExchangeAPI, tensor_from_object) == 40),
               "DLPack's structs as its header lays them out");

#endif
