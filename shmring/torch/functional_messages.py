"""Torch's functional operator for several messages at once, for groups of shmring.

`torch.ops._c10d_functional.batch_p2p_ops` asks the group for a backend in C++, which these groups do not have. For
them it sends and receives by the group's own methods; for groups of other backends torch's own function is called.
Compiled programs call it for `torch.distributed.batch_isend_irecv`.
"""

from __future__ import annotations

import torch
from torch._C._distributed_c10d import _register_work, _resolve_process_group
from torch.library import Library


def _batch(group, op_list, peer_list, tag_list, tensors):
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


def define(kind: type) -> Library | None:
    """Define the operator for groups of this class, if this torch has it and lets its own function be called.

    The definition lasts as long as what is returned.
    """
    if not hasattr(torch.ops._c10d_functional, "batch_p2p_ops") or not hasattr(torch.library, "get_kernel"):
        return None
    of_torch = torch.library.get_kernel("_c10d_functional::batch_p2p_ops", "CPU")

    def batch(keys, op_list, peer_list, tag_list, tensors, group_name):
        group = _resolve_process_group(group_name)
        if isinstance(group, kind):
            return _batch(group, op_list, peer_list, tag_list, tensors)
        return of_torch.call_boxed(keys, op_list, peer_list, tag_list, tensors, group_name)

    library = Library("_c10d_functional", "IMPL")
    library.impl("batch_p2p_ops", batch, "CPU", with_keyset=True)
    return library
