# Where the parts of an outbox segment lie; the picture is in core/c/layout.h.
from shmring.core.c.layout cimport shmring_eager_line, shmring_outbox

cdef size_t control_nbytes() noexcept
cdef shmring_outbox *control_area(char *base) noexcept
cdef shmring_eager_line *eager_slots(char *base) noexcept
cdef char *first_slot(char *base, int nslots) noexcept

# All offsets are counted from the start of the segment.
cdef size_t pair_queue_ends_offset(config) except? 0
cdef size_t pair_queue_offset(config, int size, int peer) except? 0
cdef size_t pair_queue_nbytes(config, int size) except? 0
cdef size_t helper_areas_offset(config, int size) except? 0
cdef size_t helper_area_nbytes(config) except? 0
cdef size_t helper_slot_nbytes(config) except? 0
