"""Calls as events of torch's profiler: the name of the call and the shapes of its tensors.

The event of an asynchronous call lasts as long as its submission, since a profiler records only its own thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

is_profiled = torch.autograd._profiler_enabled


def recording(name: str, arguments: Iterable[Any]) -> AbstractContextManager:
    """A context recorded under this name, with the tensors among the arguments, or in lists among them."""
    arguments = list(arguments)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if not tensors:
        lists = [x for x in arguments if isinstance(x, (list, tuple))]
        tensors = [t for x in lists for t in x if isinstance(t, torch.Tensor)]
    return torch._C._profiler._RecordFunctionFast(name, tensors)
