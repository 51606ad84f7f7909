"""The drivers of PyTorch: methods of a communicator on tensors, and `torch.distributed` in `support.torch_groups`."""

import numpy as np
import torch
import torch.distributed as dist

from shmring.torch import all_reduce_
from support.drivers import Direct
from support.inputs import NUMPY_DTYPES
from support.oracle import FUNCTIONS, check, draw

OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
}
IN_PLACE = ("all_reduce", "reduce", "broadcast")
# Types that torch has and NumPy has not, through integers of their size.
EXTENSIONS = {
    NUMPY_DTYPES["bfloat16"]: (np.int16, torch.bfloat16),
    NUMPY_DTYPES["float8_e4m3fn"]: (np.uint8, torch.float8_e4m3fn),
    NUMPY_DTYPES["float8_e5m2"]: (np.uint8, torch.float8_e5m2),
}


def tensor(x):
    """The memory of a NumPy array as a tensor."""
    if x is None:
        return None
    if x.dtype in EXTENSIONS:
        integer, dtype = EXTENSIONS[x.dtype]
        return torch.from_numpy(x.view(integer)).view(dtype)
    return torch.from_numpy(x)


def memory(found, dtype):
    """The memory of a tensor as a NumPy array of that dtype."""
    if dtype in EXTENSIONS:
        return found.view(torch.int16 if dtype.itemsize == 2 else torch.uint8).numpy().view(dtype)
    return found.numpy()


class Tensors(Direct):
    """The method of the communicator, on tensors; and `all_reduce_`."""

    @staticmethod
    def takes(case):
        has_dtype = case.dtype not in ("uint16", "uint32", "uint64")
        return has_dtype and case.layout in ("plain", "strided", "fortran") and case.op not in FUNCTIONS

    def call(self, case, x, out, keywords):
        given, into = tensor(x), tensor(out)
        if (case.kind, case.place) == ("all_reduce", "in") and out is None and case.salt % 2:
            found = all_reduce_(given, keywords["op"], comm=self.comm)
        else:
            found = super().call(case, given, into, keywords)
        if found is None:
            return None
        if found is given:
            return x
        if found is into:
            return out
        assert isinstance(found, torch.Tensor)
        return memory(found, x.dtype)


class Torch(Direct):
    """Every form of the collectives of `torch.distributed`: lists of tensors or one tensor, at once or asynchronous."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size, self.name = rank, dist.get_world_size(), "Torch"

    @staticmethod
    def takes(case):
        return (
            hasattr(Torch, case.kind)  # torch has no scans
            and (case.op in OPS if not case.dtype.startswith("complex") else case.op == "sum")  # as torch has it
            and case.dtype not in ("uint16", "uint32", "uint64")
            and case.layout in ("plain", "strided", "fortran")
            and (case.place == "in" if case.kind in IN_PLACE else case.place == "out")
            and not (case.counts and case.kind in ("gather", "scatter"))
        )

    def call(self, case, x, out, keywords):
        work = getattr(self, case.kind)(case, tensor(x), tensor(out), keywords, async_op=bool(case.salt & 2))
        if case.salt & 2:
            work.wait()
        if case.kind in ("reduce", "gather") and self.rank != keywords["root"]:
            return None
        return x if case.kind in IN_PLACE else out

    def close(self):
        dist.barrier()

    @staticmethod
    def blocks(case, whole, counts):
        """One tensor, in the form of a list of the blocks of all ranks."""
        return list(whole.unbind()) if not case.counts else list(whole.split(counts))

    def all_reduce(self, case, x, out, keywords, **how):
        return dist.all_reduce(x, OPS[case.op], **how)

    def reduce(self, case, x, out, keywords, **how):
        return dist.reduce(x, keywords["root"], OPS[case.op], **how)

    def broadcast(self, case, x, out, keywords, **how):
        return dist.broadcast(x, keywords["root"], **how)

    def all_gather(self, case, x, out, keywords, **how):
        if case.salt % 2 or case.counts or not out.is_contiguous():
            return dist.all_gather(self.blocks(case, out, keywords.get("counts")), x, **how)
        return dist.all_gather_into_tensor(out, x, **how)

    def gather(self, case, x, out, keywords, **how):
        is_root = self.rank == keywords["root"]
        return dist.gather(x, self.blocks(case, out, None) if is_root else None, keywords["root"], **how)

    def scatter(self, case, x, out, keywords, **how):
        is_root = self.rank == keywords["root"]
        return dist.scatter(out, self.blocks(case, x, None) if is_root else None, keywords["root"], **how)

    def reduce_scatter(self, case, x, out, keywords, **how):
        if case.salt % 2 or case.counts:
            blocks = self.blocks(case, x, keywords.get("counts"))
            return dist.reduce_scatter(out, blocks, OPS[case.op], **how)
        return dist.reduce_scatter_tensor(out, x, OPS[case.op], **how)

    def all_to_all(self, case, x, out, keywords, **how):
        sent = keywords.get("counts")
        got = [counts[self.rank] for counts in case.all_counts(self.size)] if case.counts else None
        if case.salt % 2:
            return dist.all_to_all(self.blocks(case, out, got), self.blocks(case, x, sent), **how)
        return dist.all_to_all_single(out, x, got, sent, **how)


def torch_cases(number, seed, **fixed):
    """Cases for this driver."""
    return draw(number, f"{seed} torch", Torch.takes, **fixed)


def run_torch_cases(rank, number, seed):
    """Make these calls; one rank's part. Over several nodes gloo adds in another order."""
    driver = Torch(rank)
    cases = torch_cases(number, seed)
    if dist.group.WORLD.comm.nodes is not None:
        cases = [case for case in cases + torch_cases(number, seed, fill="small") if case.is_exact]
    for case in cases:
        check(driver, case)
    driver.close()
