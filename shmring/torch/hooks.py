"""Communication hooks for `torch.nn.parallel.DistributedDataParallel`."""

import torch
import torch.distributed as dist

# No `from __future__ import annotations` here: torch compares a hook's annotations with its classes, not their names.


def bf16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in bfloat16: half the bytes; each sum is made in float32 and rounded once.

    Torch's own hook of this kind works with NCCL only.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup or None
        The state of ``model.register_comm_hook(group, bf16_hook)``; None: the default group.
    bucket : torch.distributed.GradBucket
        The bucket that torch passes.

    Returns
    -------
    torch.futures.Future
        The averaged gradients, in their own dtype.
    """
    gradients = bucket.buffer()
    group = dist.group.WORLD if group is None else group
    small = gradients.to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(small, group=group, async_op=True)

    def widen(future: torch.futures.Future) -> torch.Tensor:
        return gradients.copy_(future.value()[0])

    return work.get_future().then(widen)
