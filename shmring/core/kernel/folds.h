/* The forms of kernels: whole folds, and the parts of one (kernels.h has what they do). */
#ifndef SHMRING_FOLDS_H
#define SHMRING_FOLDS_H

#include <stddef.h>

typedef void (*reduce_kernel)(void *dst, const void *const *src, int nsrc, size_t count);
typedef void (*closing_kernel)(void *dst, const void *const *src, int nsrc, size_t count, int total);

/* `total`: how many operands all parts together have. */
typedef struct {
    reduce_kernel opens, carries;
    closing_kernel closes;
} carrier_t;

#endif
