"""PyTorch over shmring beside gloo (and DeepSpeed's operator): calls, training steps, a decoding step.

    OMP_NUM_THREADS=1 shmring run -n 2 bench/bench_torch.py
    OMP_NUM_THREADS=1 shmring run -n 2 bench/bench_torch.py --deepspeed ~/DeepSpeed      its sources; needs ninja

All contenders live in the same processes and take turns of a few milliseconds, in an order drawn anew in each cycle. A
figure is the median over the cycles of the slowest rank's time per call, in microseconds; in brackets the median over
cycles of how many times as long as the row's first contender of shmring it took. ``trip`` is what two barriers took
beside the row: there and back between the ranks. That answers are right is for ``tests/``, but for one look here.
"""

import argparse
import statistics
from contextlib import contextmanager

import deepspeed_operator
import pytest
from sides import output_of, run_of
from turns import compare

GLOO, GROUP, OPERATOR, DIRECT, PLAN, DEEPSPEED = "gloo", "torch.distributed", "operator", "direct", "plan", "deepspeed"
SHARED = "shared gradients"
NO_OP = "no-op group"  # a group in Python whose calls do nothing: what torch itself takes
SIZES = (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)


class Arena:
    """Where contenders take turns: their groups, and the clock."""

    def __init__(self, args):
        import torch.distributed as dist

        import shmring.torch

        dist.init_process_group("shmring")
        self.shmring, self.gloo = dist.group.WORLD, dist.new_group(backend="gloo")
        self.no_op = self._make_no_op_group()
        self.comm = shmring.torch.communicator()
        self.args = args
        self.deepspeed = deepspeed_operator.operator(self.comm, args.deepspeed) if args.deepspeed else None

    def _make_no_op_group(self):
        import torch.distributed as dist

        from shmring.torch.processgroup import ProcessGroup
        from shmring.torch.work import FINISHED

        class NoOp(ProcessGroup):
            def allreduce(self, tensors, opts):
                return FINISHED

            def shutdown(self):
                """The communicator is the other group's."""

        def make(options, settings):
            return NoOp(self.shmring.comm, options.store, options.timeout)

        dist.Backend.register_backend("noop", make, extended_api=True, devices=["cpu"])
        return dist.new_group(backend="noop")

    def reducers(self):
        """Contender -> a function that sums a tensor over the ranks, in place."""
        import torch
        import torch.distributed as dist

        import shmring.torch
        from shmring.torch import ops  # noqa: F401  makes the operators known

        found = {
            DIRECT: shmring.torch.all_reduce_,
            OPERATOR: torch.ops.shmring.all_reduce_.default,
            GROUP: lambda x: dist.all_reduce(x, group=self.shmring),
            GLOO: lambda x: dist.all_reduce(x, group=self.gloo),
        }
        if self.deepspeed is not None:
            found[DEEPSPEED] = self.deepspeed
        return found

    def row(self, title, calls):
        """Time some contenders, name -> call without arguments, and print the row."""
        found = compare(self.comm, calls, seconds=self.args.seconds, cycles=self.args.cycles)
        if self.comm.rank == 0:
            us, first = {name: found.median(name) for name in calls}, next(iter(calls))
            cells = "  ".join(
                f"{name} {us[name]:.{1 if us[name] >= 10 else 2}f} ({found.ratio(name, first):.2f})" for name in calls
            )
            print(f"{title:<22} trip {statistics.median(found.trip_us) * 1e3:4.0f} ns  {cells}", flush=True)

    def close(self):
        """Leave the groups, and remove the names that DeepSpeed leaves behind. All ranks call."""
        import torch.distributed as dist

        self.comm.barrier()
        if self.deepspeed is not None:
            deepspeed_operator.remove_names(self.comm)
        dist.destroy_process_group()


@contextmanager
def arena_of(args):
    """An arena, for a while."""
    arena = Arena(args)
    try:
        yield arena
    finally:
        arena.close()


def parser_of(doc, rows, sizes):
    """The options that rows have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", default=rows)
    parser.add_argument("--sizes", nargs="*", type=int, default=sizes, help="bytes of the sums")
    parser.add_argument("--seconds", type=float, default=4, help="for each row")
    parser.add_argument("--cycles", type=int, default=200, help="at most, for each row")
    parser.add_argument("--deepspeed", default="", metavar="FOLDER", help="DeepSpeed's sources")
    return parser


def all_reduce(arena):
    """Sums of float32, from one element up."""
    import torch
    import torch.distributed as dist

    for nbytes in arena.args.sizes:
        nothing = torch.zeros(nbytes // 4)
        calls = {}
        for name, reduce in arena.reducers().items():
            x = torch.zeros(nbytes // 4)
            x[0] = arena.comm.rank + 1
            reduce(x)
            assert x[0] == arena.comm.size * (arena.comm.size + 1) / 2, f"{name} is wrong"
            x.zero_()
            calls[name] = lambda reduce=reduce, x=x: reduce(x)
        calls[PLAN] = arena.comm.plan("all_reduce", torch.zeros(nbytes // 4))
        calls[NO_OP] = lambda x=nothing: dist.all_reduce(x, group=arena.no_op)
        arena.row(f"all_reduce {nbytes} B", calls)


def training_step(arena):
    """DistributedDataParallel: forward, backward and an optimizer step of a small network."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def network():
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(6)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))

    x = torch.randn(16, 256)
    arena.row(
        "training step",
        {
            GROUP: step_of(DistributedDataParallel(network(), process_group=arena.shmring), x),
            GLOO: step_of(DistributedDataParallel(network(), process_group=arena.gloo), x),
            "alone": step_of(network(), x),
        },
    )


def large_step(arena):
    """The same for 64 MiB of gradients and one row of input, so that moving the gradients takes most of the time."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import shmring.torch

    def parallel(group):
        torch.manual_seed(0)
        network = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)])
        return DistributedDataParallel(network, process_group=group, gradient_as_bucket_view=True)

    x = torch.randn(1, 2048)
    model = parallel(arena.shmring)
    others = {GROUP: parallel(arena.shmring), GLOO: parallel(arena.gloo)}
    calls = {name: step_of(each, x) for name, each in {SHARED: model, **others}.items()}
    with shmring.torch.share_gradients(model) as shared:
        for _ in range(3):
            calls[SHARED]()
        assert shared.nbytes > 60 << 20, "the gradients are not shared"
        arena.row("step, 64 MiB of gradients", calls)


def step_of(model, x):
    """A training step of ``model`` on input ``x``: forward, backward and SGD."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def decoding_step(arena):
    """One token through one transformer layer, its heads and feed-forward shared out: two sums of 4 KiB."""
    import torch
    from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

    width, head, past = 1024, 64, 128
    part = width // arena.comm.size
    torch.manual_seed(arena.comm.rank)
    qkv, mix = torch.randn(3 * part, width) / 32, torch.randn(width, part) / 32
    up, down = torch.randn(4 * part, width) / 32, torch.randn(width, 4 * part) / 64
    keys, values = torch.randn(2, part // head, past, head)
    token = torch.randn(1, width)

    def step_of(total):
        def step():
            with torch.inference_mode():
                x = layer_norm(token, (width,))
                q, k, v = linear(x, qkv).view(3, part // head, 1, head)
                mixed = linear(scaled_dot_product_attention(q + k, keys, values + v).view(1, part), mix)
                total(mixed)
                y = linear(gelu(linear(layer_norm(token + mixed, (width,)), up)), down)
                total(y)
                return y

        return step

    arena.row(
        "decoding step",
        {**{name: step_of(reduce) for name, reduce in arena.reducers().items()}, "no sums": step_of(lambda x: None)},
    )


def main():
    """Run the rows asked for, on every rank."""
    parser = parser_of(__doc__, ["all_reduce", "training_step", "large_step", "decoding_step"], SIZES)
    args = parser.parse_args()
    with arena_of(args) as arena:
        for row in args.rows:
            globals()[row](arena)


@pytest.mark.torch
def test_torch_beside_gloo(benchmark, tmp_path):
    """The whole program once, with one cycle."""
    pytest.importorskip("torch")
    command = run_of(2, __file__, "--cycles", "1", "--sizes", "4", "1048576")
    assert "decoding step" in benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)


if __name__ == "__main__":
    main()
