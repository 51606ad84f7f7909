"""Collectives of torch.distributed beside the checks of test_torch_checks: earlier names, and the bits of gloo."""

import torch
import torch.distributed as dist
from support.torch_groups import on_group

SIZES = (1, 2, 3)


@on_group(*SIZES)
def test_the_names_of_earlier_versions_of_torch(rank):
    n, group = dist.get_world_size(), dist.group.WORLD
    want = torch.arange(n).repeat_interleave(2).float()
    out = torch.empty(2 * n)
    group._allgather_base(out, torch.full((2,), float(rank)), dist.distributed_c10d.AllgatherOptions()).wait()
    assert torch.equal(out, want)
    out = torch.empty(2 * n)
    group.allgather_into_tensor_coalesced([out], [torch.full((2,), float(rank))]).wait()
    assert torch.equal(out, want)
    share = torch.empty(2)
    group._reduce_scatter_base(share, want.clone(), dist.distributed_c10d.ReduceScatterOptions()).wait()
    assert torch.equal(share, torch.full((2,), float(n * rank)))
    share = torch.empty(2)
    group.reduce_scatter_tensor_coalesced([share], [want.clone()]).wait()
    assert torch.equal(share, torch.full((2,), float(n * rank)))
    out = torch.empty(2 * n)
    group.alltoall_base(out, torch.full((2 * n,), float(rank)), [], [], dist.distributed_c10d.AllToAllOptions()).wait()
    assert torch.equal(out, want)


@on_group(2)
def test_sums_of_two_ranks_have_the_bits_of_gloo(rank, seed):
    """Random tensors, so that the order of additions would show: exact for two ranks, where there is one order."""
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(seed + rank)
    for dtype in (torch.float32, torch.float64):
        for count in (1, 100, 4097, 300_001):
            x = torch.randn(count, dtype=dtype)
            y = x.clone()
            dist.all_reduce(x)
            dist.all_reduce(y, group=gloo)
            assert torch.equal(x, y)
