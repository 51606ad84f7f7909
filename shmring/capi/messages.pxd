# Messages without the GIL: functions of the table.
from shmring.capi cimport shmring_api


cdef void add_messages(shmring_api *api) noexcept
