"""``torch.distributed`` with one of its backends: gloo, or one that a package has registered."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.distributed as dist

from .backend import Backend as Base


class Backend(Base):
    """A rank of the default process group."""

    calls: ClassVar = {
        "all_reduce": "dist.all_reduce(x)",
        "reduce": "dist.reduce(x, 0)",
        "broadcast": "dist.broadcast(x, 0)",
        "all_gather": "dist.all_gather_into_tensor(y, x)",
        "gather": ("dist.gather(x, parts)", "dist.gather(x)"),
        "reduce_scatter": "dist.reduce_scatter_tensor(y, x)",
        "scatter": ("dist.scatter(y, parts)", "dist.scatter(y)"),
        "all_to_all": "dist.all_to_all_single(y, x)",
        "barrier": "dist.barrier()",
        "ping_pong": ("dist.send(x, partner); dist.recv(y, partner)", "dist.recv(y, partner); dist.send(x, partner)"),
    }

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        torch.set_num_threads(task["threads"])
        store = f"file://{task['folder']}/store"
        dist.init_process_group(task["group"], init_method=store, rank=rank, world_size=self.size)
        self.version = f"torch {torch.__version__}"
        self.names = {"dist": dist}

    def statement(self, problem) -> str:
        statement = super().statement(problem)
        x, y = (as_tensor(array, problem.number.name) for array in (problem.x, problem.y))
        whole = x if problem.op == "scatter" else y
        self.names.update(x=x, y=y, parts=list(whole.chunk(self.size)))
        return statement

    def close(self) -> None:
        dist.destroy_process_group()


def as_tensor(array, dtype: str) -> torch.Tensor:
    """A tensor on the memory of an array; bfloat16 is stored as bits."""
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
