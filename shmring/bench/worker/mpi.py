"""MPI through mpi4py: MPICH, Open MPI, Intel MPI."""

from __future__ import annotations

from typing import ClassVar

from mpi4py import MPI

from .backend import Backend as Base
from .backend import Unsupported
from .probe import title_of_mpi

REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class Backend(Base):
    """A rank of ``MPI.COMM_WORLD``; the calls on buffers, which are mpi4py's fast ones."""

    calls: ClassVar = {
        "all_reduce": "comm.Allreduce(MPI.IN_PLACE, x)",
        "reduce": ("comm.Reduce(MPI.IN_PLACE, x)", "comm.Reduce(x, None)"),
        "broadcast": "comm.Bcast(x)",
        "all_gather": "comm.Allgather(x, y)",
        "gather": ("comm.Gather(x, y)", "comm.Gather(x, None)"),
        "reduce_scatter": "comm.Reduce_scatter_block(x, y)",
        "scatter": ("comm.Scatter(x, y)", "comm.Scatter(None, y)"),
        "all_to_all": "comm.Alltoall(x, y)",
        "barrier": "comm.Barrier()",
        "ping_pong": ("comm.Send(x, partner); comm.Recv(y, partner)", "comm.Recv(y, partner); comm.Send(x, partner)"),
    }

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        comm = MPI.COMM_WORLD
        if (comm.rank, comm.size) != (self.rank, self.size):
            raise RuntimeError(f"started as rank {rank} of {self.size}, but MPI has rank {comm.rank} of {comm.size}")
        self.version = title_of_mpi(MPI.Get_library_version())
        self.names = {"comm": comm, "MPI": MPI}

    def statement(self, problem) -> str:
        if problem.op in REDUCING and problem.number.name in ("float16", "bfloat16"):
            raise Unsupported(f"MPI has no {problem.number.name}")
        return super().statement(problem)

    def close(self) -> None:
        MPI.Finalize()
