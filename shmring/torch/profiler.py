"""Calls as events of torch's profiler: what was called, with the shapes of its tensors.

A call that goes on in the background is there with the time it took to submit it, for a profiler sees its own thread
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

is_profiled = torch.autograd._profiler_enabled


def recording(name: str, arguments: Iterable[Any]) -> AbstractContextManager:
    """A block that the profiler sees under this name. Tensors are found among the arguments, or in lists there."""
    arguments = list(arguments)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if not tensors:
        lists = [x for x in arguments if isinstance(x, (list, tuple))]
        tensors = [t for x in lists for t in x if isinstance(t, torch.Tensor)]
    return torch._C._profiler._RecordFunctionFast(name, tensors)
