/* The kernels in the instructions that the ABI promises. */
#include "kernel_unit.h"

#define SET baseline
#define VB 16
#include "vectors.h"

#include "kernels.h"
