"""The arguments of each collective: what tests of all of them call."""

import numpy as np

from shmring.collectives.plan.kinds import COLLECTIVES


def arguments_of(name, size, rank=0, root=0, n=4):
    """The arguments with which a rank can call a collective, and keywords; sizes are equal on all ranks."""
    kind = COLLECTIVES[name]
    if name == "barrier":
        return (), {}
    if name.endswith("_many"):
        return ([np.ones(n), np.ones((size, n))],), {}

    def array(blocks):
        return np.ones((blocks.among(size), n) if blocks else n)

    arrays = (array(kind.blocks_in),)
    if kind.inputs == "root" and kind.blocks_in:  # the others have no x
        arrays = (arrays[0] if rank == root else None, array(kind.blocks_out))
    return arrays, {"root": root} if kind.has_root else {}
