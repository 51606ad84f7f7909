# Reading the memory of another process (core/c/peer_memory.h).
cdef extern from "core/c/peer_memory.h" nogil:
    bint read_peer_memory(int pid, void *destination, const void *source, size_t nbytes)
