"""Context parallel: the sequence of an attention is cut among the ranks, and keys and values go around.

Torch's `context_parallel` refuses the CPU's attention (docs/torch.md), so its ring is called with that operator.
"""

import pytest
import torch
import torch.distributed as dist
from support.torch_groups import on_group, run_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention
from torch.nn import Module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

context = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._attention")

TOKENS = 2  # the dimension
BLOCK = 128  # tokens of a block of flexible attention, fixed there
FLEX = context._ContextParallel.AttentionType.FLEX
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
GRADIENT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def drawn(count):
    """Queries, keys, values, and the gradient of the result, of so many tokens: the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, count, 16, generator=generator) for _ in range(4)]


def alone(count, causal):
    """The result in one process, and the gradients of queries, keys and values."""
    *inputs, weight = drawn(count)
    inputs = [x.requires_grad_() for x in inputs]
    result = scaled_dot_product_attention(*inputs, is_causal=causal)
    return [result.detach(), *torch.autograd.grad(result, inputs, weight)]


def share(x, rank, n, balanced):
    """The tokens of a rank: one range, or the i-th from both ends, which have equal work under a causal mask."""
    if not balanced:
        return x.chunk(n, TOKENS)[rank].contiguous()
    parts = x.chunk(2 * n, TOKENS)
    return torch.cat([parts[rank], parts[2 * n - 1 - rank]], TOKENS)


def check(found, wanted, rank, n, balanced=False):
    for part, whole in zip(found, wanted, strict=True):
        torch.testing.assert_close(part, share(whole, rank, n, balanced), rtol=1e-4, atol=1e-5)


def ring(rank, method, balanced, causal):
    n, group = dist.get_world_size(), dist.group.WORLD
    _attention.set_rotate_method(method)
    context._cp_options.enable_load_balance = balanced
    q, k, v, weight = (share(x, rank, n, balanced) for x in drawn(48))
    before = group.comm.stats()["calls"]
    out, logsumexp, *_ = context._templated_ring_attention(group, TOKENS, ATTENTION, q, k, v, is_causal=causal)
    gradients = context._templated_ring_attention_backward(
        group, TOKENS, GRADIENT, weight, "grad_out", q, k, v, out, logsumexp, causal, dropout_p=0.0
    )
    assert group.comm.stats()["calls"] > before
    check([out, *gradients], alone(48, causal), rank, n, balanced)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("method", ["allgather", "alltoall"])
@pytest.mark.parametrize(("balanced", "causal"), [(True, True), (False, True), (False, False)])
def test_attention_in_a_ring_is_that_of_one_process(n, method, balanced, causal):
    run_group(n, ring, method, balanced, causal)


class Attention(Module):
    """To what came before, in blocks."""

    def forward(self, q, k, v, block_mask):
        return flex_attention(q, k, v, block_mask=block_mask)


@on_group(2)
def test_flexible_attention_to_gathered_keys_is_that_of_one_process(rank):
    """Results only: there are no gradients on CPUs."""
    n = dist.get_world_size()
    count, mesh = n * BLOCK, init_device_mesh("cpu", (n,))
    mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, count, count, device="cpu")
    attention = context._ContextParallel(TOKENS, FLEX)._apply(Attention(), mesh)
    *inputs, _, own_mask = context._context_parallel_shard(mesh, [*drawn(count), mask], [TOKENS] * 5)
    check([attention(*inputs, own_mask)], alone(count, True)[:1], rank, n)


@on_group(2, 4)
def test_keys_that_flexible_attention_gathers_have_gradients(rank):
    n, name = dist.get_world_size(), dist.group.WORLD.group_name
    keys, values, weight, _ = drawn(48)
    own = [share(x, rank, n, False).requires_grad_() for x in (keys, values)]
    whole = torch.ops.cplib.flex_cp_allgather(*own, TOKENS, name)
    assert torch.equal(whole[0], keys)
    assert torch.equal(whole[1], values)
    for gradient in torch.autograd.grad(whole, own, [weight, weight]):
        assert torch.equal(gradient, n * share(weight, rank, n, False))
