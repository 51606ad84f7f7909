"""Torch's functional operator for several messages at once, for groups that are written in Python.

`torch.ops._c10d_functional.batch_p2p_ops` asks the group for a backend in C++, which these groups do not have. This one
sends and receives by the group's own methods, so it serves groups of every backend. Compiled programs call it for
`torch.distributed.batch_isend_irecv`.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import _register_work, _resolve_process_group
from torch.library import Library


def _batch(op_list, peer_list, tag_list, tensors, group_name):
    group = _resolve_process_group(group_name)
    results = []
    for op, peer, tag, x in zip(op_list, peer_list, tag_list, tensors, strict=True):
        if op == "isend":
            work, result = group.send([x], peer, tag), x.new_empty(0)
        elif op == "irecv":
            work, result = group.recv([x], peer, tag), x
        else:
            raise ValueError(f"{op!r}: must be isend or irecv")
        _register_work(result, work)  # for wait_tensor(result)
        results.append(result)
    return results


def define() -> Library | None:
    """Define the operator for CPU tensors, if this torch has one. The definition lasts as long as what is returned."""
    if not hasattr(torch.ops._c10d_functional, "batch_p2p_ops"):
        return None
    library = Library("_c10d_functional", "IMPL")
    library.impl("batch_p2p_ops", _batch, "CPU")
    return library


_definition = define()
