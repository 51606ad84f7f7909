"""Print the nodes of the pages of a small group, by policy: the table of ``docs/maintainers/placement-tests.md``."""

import os
import sys

import numpy as np
from support.placement_rows import placement

import shmring
from shmring.core.placement.numa_policy import memory_nodes
from shmring.core.placement.topology import discover

HOMES = [node for node in discover().nodes if node.processors]
PAGE = os.sysconf("SC_PAGESIZE")


def look(comm):
    os.sched_setaffinity(0, HOMES[comm.rank].processors)
    with comm.dup() as here:  # made after the ranks are bound to their nodes
        x = np.ones(1 << 18, np.float32)
        array = here.array(x)
        result = here.shared_result(x.shape, np.float32)
        here.all_reduce(array, result)
        here.sendrecv(x, (here.rank + 1) % here.size, np.empty_like(x), (here.rank - 1) % here.size)
        here.barrier()
        found = placement(here)
        here.barrier()
        return found


def main():
    nodes = memory_nodes()
    for policy in ("auto", "interleave", f"bind:{nodes[-1]}"):
        found = shmring.spawn(look, len(HOMES), init={"placement": policy})
        assert all(rows[0].nodes for rows in found), "the kernel does not say"
        print(f"placement={policy}, {len(HOMES)} ranks, one on each node; pages on node " + " ".join(map(str, nodes)))
        for i in range(len(found[0])):
            row = found[found[0][i].rank][i]  # as its writer reports it, which has touched all of it
            counts = " ".join(f"{row.nodes.get(node, 0) // PAGE:6}" for node in nodes)
            print(f"  {row.kind:7} {row.number} of rank {row.rank}, on node {row.home}: {counts}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
