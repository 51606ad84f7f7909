"""Every collective of torch.distributed, in every form, against exact answers."""

import pytest
import torch
import torch.distributed as dist
from support.torch_checks.collectives import (
    all_reduce_ops,
    coalesced,
    disagreed,
    integer_averages,
    modes,
    objects,
    odd_tensors,
    sparse,
)
from support.torch_checks.driver import run_torch_cases
from support.torch_groups import on_group, run_group

SIZES = (1, 2, 3)


@pytest.mark.parametrize("n", SIZES)
def test_every_case_is_right_in_every_form(n, seed):
    run_group(n, run_torch_cases, 120, seed)


@pytest.mark.parametrize("n", SIZES)
def test_tensors_of_odd_shapes_and_types(n):
    run_group(n, odd_tensors)

@pytest.mark.parametrize("n", SIZES)
def test_averages_of_integers_are_rounded_to_zero(n):
    run_group(n, integer_averages)


@pytest.mark.parametrize("n", SIZES)
def test_all_reduce_has_every_operation_and_refuses_those_without_meaning(n):
    run_group(n, all_reduce_ops)


@pytest.mark.parametrize("n", SIZES)
def test_coalesced_forms(n):
    run_group(n, coalesced)


@pytest.mark.parametrize("n", SIZES)
def test_sparse_tensors_are_summed(n):
    run_group(n, sparse)


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


@pytest.mark.parametrize("n", SIZES)
def test_objects(n):
    run_group(n, objects)


def test_tensors_of_autograd_and_of_inference_mode():
    run_group(2, modes)


def test_ranks_that_disagree_all_get_an_error():
    run_group(2, disagreed)


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
