"""Custom operators: what torch checks of them, gradients, and graphs that hold them whole."""

import io
import os

import pytest
from support.harness import run_ranks
from support.on_ranks import on_ranks

torch = pytest.importorskip("torch")

for _slow in ("torch._dynamo", "torch.export", "torch.testing._internal.optests"):
    pytest.importorskip(_slow)  # before the nursery forks, once for all ranks

from shmring.torch import ops, set_communicator  # noqa: E402
from shmring.vllm import ops as _of_vllm_groups  # noqa: E402, F401  defines operators

pytestmark = pytest.mark.torch


def tensor_of(rank, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


# ---- torch's own checks ----------------------------------------------------------------------------------------------


@on_ranks(2)
def test_opcheck_finds_nothing_in_any_operator(comm):
    set_communicator(comm, "checked")
    x, rows = torch.randn(3, 2), torch.randn(comm.size, 3, 2)
    calls = {
        "all_reduce": (x, "sum", "checked"),
        "all_reduce_": (x, "max", "checked"),
        "all_gather": (x, "checked"),
        "reduce_scatter": (rows, "avg", "checked"),
    }
    assert set(calls) == set(ops.__all__)
    seen = []
    for name, arguments in calls.items():
        operator = getattr(torch.ops.shmring, name).default
        seen.append(torch.library.opcheck(operator, arguments))
        if not operator._schema.is_mutable:
            wants = (arguments[0].clone().requires_grad_(), *arguments[1:])
            seen.append(torch.library.opcheck(operator, wants))
            seen.append(torch.library.opcheck(operator, (arguments[0].transpose(-1, -2), *arguments[1:])))
    assert {outcome for each in seen for outcome in each.values()} == {"SUCCESS"}


# ---- gradients -------------------------------------------------------------------------------------------------------


def losses(xs, weights, reduced, gathered, scattered):
    """What all ranks compute, in one process or with each rank's part of it: their losses."""
    y = reduced(xs)
    z = gathered([a * a for a in xs])
    s = scattered([a.unsqueeze(0) * b for a, b in zip(xs, weights, strict=True)])
    return [(a**3).sum() + (b.sin() * w).sum() + (c**2).sum() for a, b, c, w in zip(y, z, s, weights, strict=True)]


def gradients_in_one_process(size, op):
    xs = [tensor_of(rank, 4).requires_grad_() for rank in range(size)]
    weights = [tensor_of(10 + rank, size, 4) for rank in range(size)]
    scale = size if op == "avg" else 1

    def reduced(parts):
        return [sum(parts) / scale] * size

    def gathered(parts):
        return [torch.stack(parts)] * size

    def scattered(parts):
        return list(sum(parts) / scale)

    sum(losses(xs, weights, reduced, gathered, scattered)).backward()
    return [x.grad for x in xs]


def gradients_of_a_rank(comm, op):
    set_communicator(comm)
    x = tensor_of(comm.rank, 4).requires_grad_()
    weight = tensor_of(10 + comm.rank, comm.size, 4)
    calls = (
        lambda parts: [ops.all_reduce(parts[0], op)],
        lambda parts: [ops.all_gather(parts[0])],
        lambda parts: [ops.reduce_scatter(parts[0], op)],
    )
    losses([x], [weight], *calls)[0].backward()
    return (x.grad - gradients_in_one_process(comm.size, op)[comm.rank]).abs().max().item()


@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("size", [1, 3])
def test_gradients_are_those_of_the_sum_of_all_losses(size, op):
    assert max(run_ranks(size, gradients_of_a_rank, op)) < 1e-12


def ask_for_the_gradient_of_max(comm):
    set_communicator(comm)
    x = torch.ones(3, requires_grad=True)
    y = ops.all_reduce(x * (comm.rank + 1), "max")
    with pytest.raises(NotImplementedError, match=r"all_reduce\(op='max'\) has no gradient"):
        y.sum().backward()
    second = torch.autograd.grad(torch.autograd.grad((ops.all_reduce(x) ** 3).sum(), x, create_graph=True)[0].sum(), x)
    return y.tolist(), second[0].tolist()


def test_calls_without_a_gradient_raise_and_those_with_one_have_a_second():
    # (sum of both x)**3, for both losses: first derivative 2 * 3 * s**2, second 2 * 2 * 6 * s, s = 2.
    assert run_ranks(2, ask_for_the_gradient_of_max) == [([2.0] * 3, [48.0] * 3)] * 2


# ---- graphs ----------------------------------------------------------------------------------------------------------


class Layers(torch.nn.Module):
    """Every operator once, between things that a compiler would like to fuse."""

    def forward(self, x):
        y = ops.all_reduce(x * 2, comm="ranks").relu()
        z = ops.all_gather(y + 1, comm="ranks")
        w = ops.reduce_scatter(z * z, comm="ranks")
        ops.all_reduce_(w, "max", comm="ranks")
        return w.sin() + z.sum(0)


OPERATORS = sorted(f"shmring.{name}.default" for name in ops.__all__)


def compile_layers(comm, backend):
    set_communicator(comm, "ranks")
    if backend == "inductor":
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers in a rank
    layers = Layers()
    torch._dynamo.reset()
    compiled = torch.compile(layers, fullgraph=True, backend=backend, dynamic=True)
    worst = 0.0
    for rows in (4, 6):
        x = tensor_of(comm.rank, rows, 3)
        worst = max(worst, (compiled(x) - layers(x)).abs().max().item())
    explained = torch._dynamo.explain(layers)(tensor_of(comm.rank, 4, 3))
    return worst, explained.graph_break_count


def test_all_operators_stay_in_one_graph_under_compile(long_run):
    for backend in ["aot_eager", *(["inductor"] if long_run else [])]:
        for worst, breaks in run_ranks(2, compile_layers, backend, timeout=400):
            assert worst < 1e-12
            assert breaks == 0


@on_ranks(2)
def test_compiled_gradients_are_the_eager_ones(comm):
    set_communicator(comm)
    x = tensor_of(comm.rank, 4).requires_grad_()

    def loss(x):
        return (ops.all_gather(ops.all_reduce(x.sin())) ** 2).sum()

    loss(x).backward()
    eager, x.grad = x.grad, None
    torch.compile(loss, fullgraph=True, backend="aot_eager")(x).backward()
    assert torch.equal(x.grad, eager)


@on_ranks(2)
def test_an_exported_program_holds_the_operators_and_can_be_saved(comm):
    set_communicator(comm, "ranks")
    x = tensor_of(comm.rank, 4, 3)
    file = io.BytesIO()
    torch.export.save(torch.export.export(Layers(), (x,)), file)
    file.seek(0)
    loaded = torch.export.load(file)
    held = sorted(str(node.target) for node in loaded.graph.nodes if str(node.target).startswith("shmring."))
    assert (held, torch.equal(loaded.module()(x), Layers()(x))) == (OPERATORS, True)


@on_ranks(2, 3)
def test_the_operators_of_vllm_groups_stay_in_one_graph(comm):
    set_communicator(comm, "group")
    own, last, calls = comm.rank, comm.size - 1, torch.ops.shmring_vllm
    counts = list(range(comm.size))  # rank 0 has no row

    def layer(x):
        y = x * 2
        calls.broadcast_(y, last, "group")
        whole = calls.all_gatherv(x[:own], counts, "group")
        parts = calls.gather(x, last, "group")  # on the other ranks its result is not used
        return y, parts if own == last else None, whole, calls.reduce_scatterv(whole + own, counts, "group")

    x = tensor_of(own, 4, 3)
    xs = [tensor_of(rank, 4, 3) for rank in range(comm.size)]
    rows = torch.cat([xs[rank][:rank] for rank in range(comm.size)])
    total = sum(rows + rank for rank in range(comm.size))
    wanted = (xs[last] * 2, torch.stack(xs) if own == last else None, rows, total.split(counts)[own])
    for found in (layer(x), torch.compile(layer, fullgraph=True, backend="aot_eager")(x)):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0) if other is not None else None
    checked = {
        "broadcast_": (x, last),
        "gather": (x, last),
        "all_gatherv": (x[:own], counts),
        "reduce_scatterv": (rows, counts),
    }
    for name, (given, how) in checked.items():
        outcome = torch.library.opcheck(getattr(calls, name).default, (given.clone(), how, "group"))
        assert set(outcome.values()) == {"SUCCESS"}
