# Where in the program a call is, for observers.
from libc.stdint cimport uint64_t

from shmring._c.layout cimport shmring_place

# ``file:line in function`` of the innermost frame outside this package; its end if that is too long. Makes Python
# objects, so signal handlers may run, and raise.
cdef bytes caller()

# Store it for the call with this ``number``, unless it is there.
cdef void store_place(shmring_place *place, uint64_t number, bytes text) noexcept
