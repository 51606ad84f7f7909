"""DeepSpeed's all-reduce in shared memory: the torch operator that its inference calls, built from its own sources."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

import torch

from .backend import Backend as Base
from .backend import Unsupported
from .gloo import as_tensor

NAME = "deepspeed_shm_comm"
FLAGS = ["-O2", "-fopenmp"]  # as DeepSpeed's own builder has them


class Backend(Base):
    """A rank of ``torch.ops.deepspeed.inference_all_reduce_``; the ranks find each other by environment variables."""

    calls: ClassVar = {"all_reduce": "inference_all_reduce_(x)"}

    def __init__(self, task: dict, barrier, rank: int) -> None:
        super().__init__(task, barrier, rank)
        torch.set_num_threads(task["threads"])
        self._level = load(task["library"], self.size, rank).vector_kernel_level()
        self.version = f"DeepSpeed {task['release']}, torch {torch.__version__}".replace("  ", " ")
        self.names = {"inference_all_reduce_": torch.ops.deepspeed.inference_all_reduce_}

    def statement(self, problem) -> str:
        statement = super().statement(problem)
        dtype = problem.number.name
        # Other types are silently left as they are, and unsuitable processors fault: DeepSpeed's Python asks, too.
        if dtype not in ("float32", "float16", "bfloat16"):
            raise Unsupported(f"has no {dtype}")
        if self._level < (1 if dtype == "float32" else 2):
            raise Unsupported(f"this processor lacks the instructions that DeepSpeed needs for {dtype}")
        self.names["x"] = as_tensor(problem.x, dtype)
        return statement


def load(library: str, size: int, rank: int) -> Any:
    """The module of the operator, which has found the other ranks; ``torch.ops.deepspeed`` has its calls then."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.initialize(size, rank)
    return module


def build(source: str) -> str:
    """Compile the operator from DeepSpeed's folder ``csrc`` (or find it compiled); the path of the library."""
    from torch.utils import cpp_extension

    folder = Path(source)
    sources = [str(folder / "cpu/comm" / name) for name in ("shm_interface.cpp", "shm.cpp")]
    paths = [str(folder / "cpu/includes")]
    module = cpp_extension.load(
        NAME, sources, extra_cflags=FLAGS, extra_ldflags=["-fopenmp"], extra_include_paths=paths
    )
    return module.__file__
