"""NUMA memory policy of a range (mbind), and the nodes on which its pages are (move_pages).

Nothing is raised where the kernel refuses, as system-call filters of containers do, or has no nodes: memory is then
allocated on the node of the thread that touches it first, and the node may still be known afterwards.
"""

import re

from libc.errno cimport EINVAL
from libc.string cimport memset
from posix.unistd cimport _SC_PAGESIZE, sysconf

from shmring.core.memory.mapping cimport Mapping


cdef extern from "core/placement/numa_calls.h" nogil:
    const int SHMRING_MPOL_DEFAULT
    const int SHMRING_MPOL_PREFERRED
    const int SHMRING_MPOL_INTERLEAVE
    const int SHMRING_NODES_MAX
    ctypedef struct shmring_nodes:
        pass
    void add_node(shmring_nodes *nodes, int node)
    int set_policy(void *address, size_t nbytes, int mode, const shmring_nodes *nodes)
    int get_thread_policy(int *mode)
    int get_policy(const void *address, int *mode, shmring_nodes *nodes)
    int nodes_of_pages(unsigned long count, void **pages, int *nodes)
    int get_node(unsigned *node)

cdef enum:
    BATCH = 1024        # pages per system call

cdef size_t PAGE_NBYTES = sysconf(_SC_PAGESIZE)


def current_node():
    """The node of the processor on which this thread runs; -1 if unknown."""
    cdef unsigned node = 0
    return -1 if get_node(&node) else <int> node


def has_thread_policy():
    """Whether this thread has a memory policy of its own, as ``numactl`` sets it."""
    cdef int mode = SHMRING_MPOL_DEFAULT
    return get_thread_policy(&mode) == 0 and mode != SHMRING_MPOL_DEFAULT


def lay(Mapping mapping not None, size_t offset, size_t nbytes, nodes):
    """Set the memory policy of a range, rounded inwards at its start; to be called before its pages are allocated.

    One node: preferred, not strict, as the kernel kills processes that may use only a full node. Several nodes:
    interleaved by page.

    Returns
    -------
    int
        0, or the error number with which the kernel refused.
    """
    cdef shmring_nodes mask
    cdef size_t start = (offset + PAGE_NBYTES - 1) // PAGE_NBYTES * PAGE_NBYTES
    cdef size_t end = min(offset + nbytes, mapping.nbytes)
    cdef int node
    memset(&mask, 0, sizeof(mask))
    for node in nodes:
        if not 0 <= node < SHMRING_NODES_MAX:
            return EINVAL
        add_node(&mask, node)
    if mapping.address == NULL or start >= end:
        return 0
    return set_policy(mapping.address + start, end - start,
                      SHMRING_MPOL_PREFERRED if len(nodes) == 1 else SHMRING_MPOL_INTERLEAVE, &mask)


def lay_like(Mapping mapping not None, size_t offset, size_t nbytes, size_t address):
    """Set the memory policy that the memory at ``address`` has; whether it has one."""
    cdef shmring_nodes mask
    cdef int mode
    memset(&mask, 0, sizeof(mask))
    if mapping.address == NULL or offset % PAGE_NBYTES or nbytes > mapping.nbytes - offset:
        return False
    if get_policy(<void *> address, &mode, &mask) or mode == SHMRING_MPOL_DEFAULT:
        return False
    return set_policy(mapping.address + offset, nbytes, mode, &mask) == 0


def bytes_by_node(Mapping mapping not None, size_t offset=0, nbytes=None):
    """The nodes on which the pages of a range are.

    Parameters
    ----------
    mapping : Mapping
    offset, nbytes : int
        The range; by default all. Pages that begin in it count as a whole.

    Returns
    -------
    dict of int to int, or None
        Bytes on each node, without pages that this process has never touched; None if unknown.
    """
    cdef void *pages[BATCH]
    cdef int nodes[BATCH]
    cdef size_t at, end
    cdef unsigned long n, i
    if mapping.address == NULL:
        return {}
    at = (offset + PAGE_NBYTES - 1) // PAGE_NBYTES * PAGE_NBYTES
    end = mapping.nbytes if nbytes is None else min(mapping.nbytes, offset + <size_t> nbytes)
    found = {}
    while at < end:
        n = 0
        while at < end and n < BATCH:
            pages[n] = mapping.address + at
            n += 1
            at += PAGE_NBYTES
        if nodes_of_pages(n, pages, nodes):
            return None if offset or nbytes is not None else _bytes_in_maps(<size_t> mapping.address, mapping.nbytes)
        for i in range(n):
            if nodes[i] >= 0:
                found[nodes[i]] = found.get(nodes[i], 0) + PAGE_NBYTES
    return found


def _bytes_in_maps(size_t address, size_t nbytes):
    """The bytes of a whole mapping on each node, from /proc/self/numa_maps, which works under system-call filters."""
    found = {}
    try:
        with open("/proc/self/numa_maps") as maps:
            for line in maps:
                start, _, rest = line.partition(" ")
                if address <= int(start, 16) < address + nbytes:
                    kib = re.search(r"kernelpagesize_kB=(\d+)", rest)
                    page = int(kib[1]) << 10 if kib else PAGE_NBYTES
                    for node, count in re.findall(r"\bN(\d+)=(\d+)", rest):
                        found[int(node)] = found.get(int(node), 0) + int(count) * page
    except (OSError, ValueError):
        return None
    return found or None
