"""The machine: processors, topology, locality of ranks, NUMA policy."""
