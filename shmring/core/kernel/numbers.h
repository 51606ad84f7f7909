/* The element types and operations, in the order of dtypes.py. Written by tools/enums.py. */
#ifndef SHMRING_NUMBERS_H
#define SHMRING_NUMBERS_H

#define SHMRING_DTYPES(X) \
    X(FLOAT64) X(FLOAT32) X(FLOAT16) X(BFLOAT16) X(INT8) X(INT16) X(INT32) X(INT64) X(UINT8) X(UINT16) \
    X(UINT32) X(UINT64) X(BOOL) X(COMPLEX64) X(COMPLEX128) X(FLOAT8_E4M3FN) X(FLOAT8_E5M2)
#define SHMRING_OPS(X) \
    X(SUM) X(PROD) X(MIN) X(MAX) X(AVG) X(BAND) X(BOR) X(BXOR) X(LAND) X(LOR) X(ABSMAX)

#define SHMRING_NDTYPES 17
#define SHMRING_NOPS 11

#endif
