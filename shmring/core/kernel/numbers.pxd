# How many element types and operations C was compiled for (core/kernel/numbers.h, which tools/enums.py writes).

cdef extern from "core/kernel/numbers.h" nogil:
    enum:
        NDTYPES "SHMRING_NDTYPES"
        NOPS "SHMRING_NOPS"


cdef inline int check_rows(tuple dtypes, tuple ops) except -1:
    """Raise unless a module was compiled for the rows of `shmring.dtypes`, from which it fills tables of C."""
    if len(dtypes) != NDTYPES or len(ops) != NOPS:
        raise ImportError(f"compiled for {NDTYPES} element types and {NOPS} operations, not for the {len(dtypes)} and "
                          f"{len(ops)} of shmring/dtypes.py: run tools/enums.py, and build again")
    return 0
