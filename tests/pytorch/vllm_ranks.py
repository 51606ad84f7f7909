"""A program: ranks of a vLLM group, forked after vLLM has been imported once, check the calls of its communicator."""

import multiprocessing
import os
import signal
import sys
import tempfile

import pytest
import torch
import torch.distributed as dist
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.platforms import current_platform

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def data(rank, shape, dtype):
    """The tensor of a rank: any rank can make that of another."""
    generator = torch.Generator().manual_seed(1000 * rank + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def total(n, shape, dtype):
    """The sum in rank order, in float32, rounded once."""
    result = data(0, shape, dtype).float()
    for rank in range(1, n):
        result = result + data(rank, shape, dtype).float()
    return result.to(dtype)


def everyone(tp, make):
    """What `make` returns for each rank of the group."""
    return [make(rank) for rank in range(tp.world_size)]


def reductions(tp):
    n, own = tp.world_size, tp.rank_in_group
    for dtype in DTYPES:
        for shape in ((1, 1), (1, 4096), (32, 4096), (7, 1001)):
            x = data(own, shape, dtype)
            assert torch.equal(tp.all_reduce(x), total(n, shape, dtype)), (dtype, shape)
        wide = (3, n * 4)
        parts = total(n, wide, dtype).chunk(n, dim=1)
        assert torch.equal(tp.reduce_scatter(data(own, wide, dtype), dim=1), parts[own])
        long = (n * 2, 5)
        assert torch.equal(tp.reduce_scatter(data(own, long, dtype), dim=0), total(n, long, dtype).chunk(n)[own])
    with pytest.raises(ValueError, match="cannot be divided"):
        tp.reduce_scatter(torch.ones(n + 1, 2), dim=0)


def movements(tp):
    n, own = tp.world_size, tp.rank_in_group
    for dtype in (*DTYPES, torch.int64, torch.float8_e4m3fn):
        for shape, dim in (((4, 6), 0), ((4, 6), 1), ((4, 6), -1), ((1, 128), -1), ((2, 3, 5), 1)):
            parts = everyone(tp, lambda r, shape=shape, dtype=dtype: data(r, shape, torch.float32).to(dtype))
            whole = torch.cat([p.view(torch.uint8) if p.dtype.itemsize == 1 else p for p in parts], dim)
            same = lambda x, whole=whole: torch.equal(x.view(whole.dtype), whole)  # noqa: E731
            assert same(tp.all_gather(parts[own].clone(), dim)), (dtype, shape, dim)
            for root in range(n):
                gathered = tp.gather(parts[own].clone(), root, dim)
                assert same(gathered) if own == root else gathered is None
    strided = data(own, (6, 4), torch.float32).t()
    assert torch.equal(tp.all_gather(strided, 0), torch.cat([data(r, (6, 4), torch.float32).t() for r in range(n)]))
    for root in range(n):
        x = data(own, (3, 3), torch.bfloat16)
        assert torch.equal(tp.broadcast(x, root), data(root, (3, 3), torch.bfloat16))
    shape, dtype, before = torch.Size((5, 2)), torch.bfloat16, (own - 1) % n
    tp.send(data(own, shape, dtype), (own + 1) % n)
    assert torch.equal(tp.recv(shape, dtype, before), data(before, shape, dtype))


def uneven(tp):
    n, own = tp.world_size, tp.rank_in_group
    sizes = [(3 * r + 2) % 5 for r in range(n)]
    for dtype in (torch.bfloat16, torch.float32):
        xs = [data(r, (sizes[r], 8), dtype) for r in range(n)]
        whole = torch.cat(xs)
        assert torch.equal(tp.all_gatherv(xs[own], 0, sizes), whole)
        first, second = tp.all_gatherv([xs[own], xs[own][:, :3].contiguous()], 0, sizes)
        assert torch.equal(first, whole)
        assert torch.equal(second, whole[:, :3])
        rows = (sum(sizes), 6)
        part = tp.reduce_scatterv(data(own, rows, dtype), 0, sizes)
        assert torch.equal(part, total(n, rows, dtype).split(sizes)[own])
    with pytest.raises(ValueError, match="has 1 rows"):
        tp.all_gatherv(torch.ones(1, 2), 0, [9] * n)


def traced(tp):
    """The calls stay in the graph of a compiled function."""

    def layer(x):
        y = tp.all_reduce(x * 2)
        z = tp.device_communicator.broadcast(y * (own + 1), n - 1)  # that of the group is torch.distributed's
        gathered = tp.gather(z + own, 1, -1)
        whole = tp.all_gatherv(x[: sizes[own]], 0, sizes)
        return (
            tp.all_gather(y + 1, -1),
            tp.reduce_scatter(y, 0),
            z,
            torch.zeros(0) if gathered is None else gathered,
            whole,
            tp.reduce_scatterv(whole + own, 0, sizes),
        )

    n, own = tp.world_size, tp.rank_in_group
    sizes = [rank % n for rank in range(1, n + 1)]  # the last has none
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for seed in range(2):
        x = data(own + seed, (n, 6), torch.float32)
        for found, wanted in zip(compiled(x.clone()), layer(x.clone()), strict=True):
            assert torch.equal(found, wanted)


def collectives(tp):
    communicator = tp.device_communicator
    assert type(communicator).__name__ == "ShmringCommunicator"
    assert dist.get_backend(tp.device_group) == "shmring"
    for check in (reductions, movements, uneven, traced):
        check(tp)
    assert communicator._comm.stats()["calls"] > 0


def stages(_):
    """Dictionaries of tensors go through a pipeline."""
    pp = parallel_state.get_pp_group()
    assert pp.use_cpu_custom_send_recv
    n, own = pp.world_size, pp.rank_in_group
    for rows in (1, 7, 700):
        sent = {
            "hidden_states": data(rows, (rows, 256), torch.bfloat16),
            "residual": data(rows + 1, (256, rows), torch.float32).t(),
            "positions": torch.arange(rows),
            "scales": data(rows, (rows, 4), torch.float32).to(torch.float8_e4m3fn).view(torch.uint8),
            "nothing": torch.empty(0, 256, dtype=torch.bfloat16),
            "step": rows,
        }
        found = sent if own == 0 else pp.recv_tensor_dict(own - 1)
        if own < n - 1:
            pp.send_tensor_dict(found, own + 1)
        assert list(found) == list(sent)
        for name, x in sent.items():
            same = torch.equal(found[name], x) and found[name].dtype == x.dtype if name != "step" else found[name] == x
            assert same, name
        if own > 0:
            found["hidden_states"].zero_()  # what was received can be written


def death(tp):
    """One rank dies in the middle of all-reduces."""
    import shmring

    own, last = tp.rank_in_group, tp.world_size - 1
    for step in range(1000):
        if own == last and step == 500:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            tp.all_reduce(torch.ones(4096, dtype=torch.bfloat16))
        except shmring.PeerLostError as error:
            assert step == 500
            print(f"lost rank {error.rank}", flush=True)
            os._exit(0)
    raise AssertionError("no error")


def in_rank(rank, n, case, store):
    shape = {"pipeline_model_parallel_size": n} if case == "stages" else {"tensor_model_parallel_size": n}
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(n, rank, f"file://{store}", rank, current_platform.dist_backend)
        parallel_state.initialize_model_parallel(**shape)
        globals()[case](parallel_state.get_tp_group())
        print("all as wanted", flush=True)
        dist.barrier()
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


def main(case, n):
    if case == "platform":
        print(type(current_platform).__name__, current_platform.dist_backend)
        return 0
    store = f"{tempfile.mkdtemp(prefix='shmring-vllm-', dir=os.getcwd())}/store"
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=in_rank, args=(rank, n, case, store)) for rank in range(n)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    ends = [rank.exitcode for rank in ranks]
    return ends != ([0] * (n - 1) + [-signal.SIGKILL if case == "death" else 0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
