"""Checks of collectives that every rank of a group runs, on one node or on several."""

import pytest
import torch
import torch.distributed as dist


def filled(shape, rank, dtype=torch.float32):
    """Small whole numbers that differ by rank and position, and whose sums are exact in every dtype."""
    n = torch.Size(shape).numel()
    return ((torch.arange(n) % 5 + rank) % 7).reshape(shape).to(dtype)


def fold(op, tensors):
    """The answer, in rank order, by torch itself."""
    first, *rest = tensors
    wide = first.dtype if first.dtype not in (torch.float16, torch.bfloat16) else torch.float32
    total = first.to(wide)
    for t in rest:
        total = op(total, t.to(wide))
    return total.to(first.dtype)


def odd_tensors(rank):
    """What no case of the oracle has: tensors without dimensions or elements, float8, an input inside the output."""
    n = dist.get_world_size()
    for shape in ((), (2, 0, 3)):
        x = filled(shape, rank)
        dist.all_reduce(x)
        assert torch.equal(x, fold(torch.add, [filled(shape, r) for r in range(n)]))
        outs = [torch.empty(shape) for _ in range(n)]
        dist.all_gather(outs, filled(shape, rank))
        assert all(torch.equal(outs[r], filled(shape, r)) for r in range(n))
    want = [filled((3, 4), r).to(torch.float8_e4m3fn) for r in range(n)]
    outs = [torch.empty_like(want[0]) for _ in range(n)]
    dist.all_gather(outs, want[rank])
    assert all(torch.equal(a.float(), b.float()) for a, b in zip(outs, want, strict=True))
    whole = torch.zeros(n, 3)
    whole[rank] = rank + 1
    dist.all_gather_into_tensor(whole, whole[rank])
    assert torch.equal(whole, torch.arange(1.0, n + 1)[:, None].expand(n, 3))
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.ones(2 * n), op=dist._make_nccl_premul_sum(0.5))
    assert torch.equal(out, torch.full((2,), n / 2))


def all_reduce_ops(rank):
    n = dist.get_world_size()
    whole = {
        dist.ReduceOp.PRODUCT: torch.mul,
        dist.ReduceOp.MIN: torch.minimum,
        dist.ReduceOp.MAX: torch.maximum,
        dist.ReduceOp.BAND: torch.bitwise_and,
        dist.ReduceOp.BOR: torch.bitwise_or,
        dist.ReduceOp.BXOR: torch.bitwise_xor,
    }
    for op, fn in whole.items():
        x = filled((17,), rank, torch.int64) + 1
        dist.all_reduce(x, op=op)
        assert torch.equal(x, fold(fn, [filled((17,), r, torch.int64) + 1 for r in range(n)])), op
    total = sum(filled((9,), r) for r in range(n))
    x = filled((9,), rank)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert torch.equal(x, total / n)
    for factor in (0.5, torch.full((1,), 0.25)):
        x = filled((9,), rank)
        dist.all_reduce(x, op=dist._make_nccl_premul_sum(factor))
        assert torch.equal(x, total * float(factor))
    x = filled((3,), rank, torch.complex64)
    with pytest.raises((RuntimeError, ValueError)):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    with pytest.raises(TypeError, match="band"):
        dist.all_reduce(filled((3,), rank), op=dist.ReduceOp.BAND)
    dist.barrier()  # still usable


def integer_averages(rank):
    """NCCL's: the sum, divided and rounded to zero. Gloo has none."""
    n = dist.get_world_size()
    shares = torch.tensor([7, -7, 0, 1, -1, 100])
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        own = (shares * (rank + 1)).to(dtype) if dtype.is_signed else (shares.abs() + rank).to(dtype)
        sums = [(shares * (r + 1)).to(dtype) if dtype.is_signed else (shares.abs() + r).to(dtype) for r in range(n)]
        total = torch.stack(sums).sum(0, dtype=dtype)  # which wraps
        want = torch.tensor([int(abs(t) // n) * (1 if t > 0 else -1) for t in total.tolist()], dtype=dtype)
        x = own.clone()
        dist.all_reduce(x, dist.ReduceOp.AVG)
        assert torch.equal(x, want), (dtype, x, want)
        x, y = own.clone(), own.clone()
        dist.all_reduce_coalesced([x, y], dist.ReduceOp.AVG)
        assert torch.equal(x, want)
        assert torch.equal(y, want)
        x = own.clone()
        dist.reduce(x, n - 1, dist.ReduceOp.AVG)
        assert torch.equal(x, want if rank == n - 1 else own)
        out = torch.empty_like(own)
        dist.reduce_scatter(out, [own + r for r in range(n)], dist.ReduceOp.AVG)
        single = torch.empty_like(own)
        dist.reduce_scatter_tensor(single, torch.cat([own + r for r in range(n)]), dist.ReduceOp.AVG)
        assert torch.equal(out, single)
        total += n * rank
        want = torch.tensor([int(abs(t) // n) * (1 if t > 0 else -1) for t in total.tolist()], dtype=dtype)
        assert torch.equal(out, want), (dtype, out, want)
    with pytest.raises(TypeError, match="avg"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    dist.barrier()


def coalesced(rank):
    n = dist.get_world_size()
    total = sum(range(1, n + 1))
    tensors = [torch.full((k,), float(rank + 1)) for k in (1, 0, 7, 100_000)]
    dist.all_reduce_coalesced(tensors)
    assert all(torch.equal(t, torch.full_like(t, total)) for t in tensors)
    for device in (None, torch.device("cpu")):
        for async_ops in (False, True):
            sums = [torch.full((k,), float(rank + 1)) for k in (3, 50_000)]
            with dist.distributed_c10d._coalescing_manager(device=device, async_ops=async_ops) as cm:
                for t in sums:
                    dist.all_reduce(t)
            if async_ops:
                cm.wait()
            assert all(torch.equal(t, torch.full_like(t, total)) for t in sums)
            outs, shares = [torch.empty(n, 2) for _ in range(2)], [torch.empty(2) for _ in range(2)]
            with dist.distributed_c10d._coalescing_manager(device=device, async_ops=async_ops) as cm:
                for i in range(2):
                    dist.all_gather_into_tensor(outs[i], torch.full((2,), float(rank + i)))
            if async_ops:
                cm.wait()
            assert all(torch.equal(outs[i][r], torch.full((2,), float(r + i))) for i in range(2) for r in range(n))
            with dist.distributed_c10d._coalescing_manager(device=device, async_ops=async_ops) as cm:
                for i in range(2):
                    dist.reduce_scatter_tensor(shares[i], torch.full((2 * n,), float(i + 1)))
            if async_ops:
                cm.wait()
            assert all(torch.equal(shares[i], torch.full((2,), float(n * (i + 1)))) for i in range(2))
    lists = [[torch.empty(2), torch.empty(3)] for _ in range(n)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((3,), float(-rank))])
    assert all(torch.equal(lists[r][i], torch.full((2 + i,), float((-r, r)[i == 0]))) for r in range(n) for i in (0, 1))


def sparse(rank):
    n = dist.get_world_size()
    for nnz in (0, 1, 4):
        k = nnz + rank  # another number of entries on each rank
        torch.manual_seed(rank)
        indices = torch.stack([torch.randint(0, 4, (k,)), torch.randint(0, 3, (k,))])
        x = torch.sparse_coo_tensor(indices, torch.randint(0, 9, (k, 2)).float(), (4, 3, 2))
        want = x.to_dense()
        dist.all_reduce(want)
        for y in (x.clone(), x.coalesce()):
            work = dist.all_reduce(y, async_op=True)
            (result,) = work.get_future().wait()
            assert torch.equal(result.to_dense(), want)
            assert torch.equal(y.to_dense(), want)
    with pytest.raises(RuntimeError, match="only sums"):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    if n > 1:
        bad = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1), (3 + rank,))
        with pytest.raises(ValueError, match="of shapes"):
            dist.all_reduce(bad)
    dist.barrier()


def sparse_results(rank):
    """What is summed can be used as any other tensor: written to, summed again, given to optimizers."""
    n = dist.get_world_size()

    def own():
        return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (4,))

    x = own()
    dist.all_reduce(x)
    dist.all_reduce(x)
    assert x.to_dense().tolist() == [n * n, 0, 2 * n * n, 0]
    x.coalesce().values().mul_(0.5)
    assert x.coalesce().indices().tolist() == [[0, 2]]
    assert x.coalesce().values().tolist() == [n * n / 2, n * n]
    with torch.inference_mode():
        y = own()
    dist.all_reduce(y)
    assert y.is_inference()
    assert y.to_dense().tolist() == [n, 0, 2 * n, 0]
    for kind in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam):
        embedding = torch.nn.Embedding(4, 2, sparse=True)
        optimizer = kind(embedding.parameters(), 0.1)
        for _ in range(2):
            embedding(torch.tensor([rank, 2])).sum().backward()
            dist.all_reduce(embedding.weight.grad)
            optimizer.step()


def refused(rank):
    """Tensors whose bytes are not all that there is to them, or that have none here."""
    n = dist.get_world_size()
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.quint8)
    for kind in (torch.quint8, torch.qint8, torch.qint32):
        with pytest.raises(TypeError, match=str(kind)):
            dist.broadcast(torch.quantize_per_tensor(torch.ones(4), 0.5, 0, kind), 0)
    for call in (
        dist.all_reduce,
        lambda x: dist.all_gather([x] * n, x),
        lambda x: dist.all_gather_single(x, x),
        lambda x: dist.reduce_scatter(x, [x] * n),
        lambda x: dist.all_to_all([x] * n, [x] * n),
        lambda x: dist.gather(x, [x] * n if rank == 0 else None, 0),
        lambda x: dist.reduce(x, 0),
    ):
        with pytest.raises(TypeError):
            call(quantized)
    if dist.group.WORLD.comm.nodes is None:
        for call in (dist.isend, dist.irecv):
            with pytest.raises(TypeError, match="quint8"):
                call(quantized, (rank + 1) % n)
    with pytest.raises(TypeError, match="sparse_csr"):
        dist.all_reduce(torch.eye(3).to_sparse_csr())
    for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.all_gather([x] * n, x)):
        with pytest.raises(TypeError, match="meta"):
            call(torch.ones(3, device="meta"))
    dist.barrier()  # still usable


def another_default_device(rank):
    """The tensors that a call needs are on the CPU, whatever the program's default is."""
    n = dist.get_world_size()
    outs = [torch.zeros(2 + r) for r in range(n)]
    x = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (3,))
    with torch.device("meta"):
        dist.all_reduce(x)
        dist.all_gather(outs, torch.full((2 + rank,), float(rank), device="cpu"))
        dist.barrier()
        dist.group.WORLD.monitored_barrier()
        memory = dist.group.WORLD.allocate_tensor(5000)
    assert x.to_dense().tolist() == [n, 0, 0]
    assert all(torch.equal(out, torch.full((2 + r,), float(r))) for r, out in enumerate(outs))
    assert memory.is_cpu


def objects(rank):
    n = dist.get_world_size()
    own = {"rank": rank, "text": "x" * (100 * rank), "tensor": torch.arange(rank)}
    found = [None] * n
    dist.all_gather_object(found, own)
    assert [one["rank"] for one in found] == list(range(n))
    assert torch.equal(found[-1]["tensor"], torch.arange(n - 1))
    several = [own, rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(several, 0)
    assert several[0]["rank"] == several[1] == 0
    found = [None] * n if rank == n - 1 else None
    dist.gather_object(own, found, n - 1)
    assert rank != n - 1 or [len(one["text"]) for one in found] == [100 * r for r in range(n)]
    out = [None]
    dist.scatter_object_list(out, [(r, "for you") for r in range(n)] if rank == 0 else None, 0)
    assert out == [(rank, "for you")]
    if n > 1:
        several = [None, None]
        if rank == 0:  # gloo's messages wait for their receivers
            dist.send_object_list([own, "on"], 1)
        dist.recv_object_list(several, (rank - 1) % n)
        if rank:
            dist.send_object_list([own, "on"], (rank + 1) % n)
        assert several[0]["rank"] == (rank - 1) % n
        assert several[1] == "on"


def modes(rank):
    n = dist.get_world_size()
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    assert torch.equal(leaf.detach(), torch.full((3,), float(n)))
    outs = [torch.zeros(3) for _ in range(n)]
    with torch.inference_mode():
        dead = torch.ones(3)
        dist.all_gather(outs, dead)
        inner = [torch.zeros(3) for _ in range(n)]
        work = dist.all_gather(inner, dead, async_op=True)
    work.wait()
    dist.all_reduce(dead)
    assert torch.equal(torch.stack(outs), torch.ones(n, 3))
    assert torch.equal(torch.stack(inner), torch.ones(n, 3))
    leaf = [torch.ones(2, requires_grad=True) for _ in range(n)]
    dist.all_gather(leaf, torch.zeros(2))
    assert all(x.requires_grad and not x.any() for x in leaf)


def disagreed(rank):
    with pytest.raises(RuntimeError, match="disagree"):
        dist.all_reduce(torch.ones(3 + rank))
    with pytest.raises(dist.DistBackendError, match="disagree"):
        dist.barrier()
