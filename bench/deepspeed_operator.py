"""DeepSpeed's all-reduce in shared memory: the torch operator that its inference calls, built from its own sources."""

import importlib.util
import os
from glob import glob
from pathlib import Path

NAME = "deepspeed_shm_comm"
FLAGS = ["-O2", "-fopenmp"]  # as DeepSpeed's own builder has them


def operator(comm, folder):
    """``torch.ops.deepspeed.inference_all_reduce_`` for all ranks, which all call; ``folder`` has the sources."""
    import torch

    os.environ["LOCAL_SIZE"] = str(comm.size)
    os.environ.setdefault("MASTER_ADDR", "shmring-bench")  # not connected to: its segments have their names by it
    os.environ.setdefault("MASTER_PORT", str(comm.broadcast_object(os.getpid())))
    library = _build(Path(folder) / "csrc") if comm.rank == 0 else None
    spec = importlib.util.spec_from_file_location(NAME, comm.broadcast_object(library))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize(comm.size, comm.rank)
    return torch.ops.deepspeed.inference_all_reduce_


def remove_names(comm):
    """Remove the names that DeepSpeed leaves behind. All ranks call, when they have made their last call of it."""
    comm.barrier()
    if comm.rank == 0:
        for name in glob(f"/dev/shm/deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_*"):
            os.unlink(name)


def _build(source):
    """Compile the operator (or find it compiled); the path of the library."""
    from torch.utils import cpp_extension

    sources = [str(source / "cpu/comm" / name) for name in ("shm_interface.cpp", "shm.cpp")]
    paths = [str(source / "cpu/includes")]
    module = cpp_extension.load(
        NAME, sources, extra_cflags=FLAGS, extra_ldflags=["-fopenmp"], extra_include_paths=paths
    )
    return module.__file__
