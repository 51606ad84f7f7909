"""Calls as events of torch's profiler: calls of a process group with the shapes of their tensors, and the collectives
that the engine makes for any call of this process, by the names that timelines have.

A profiler records its own thread, unless it is made with ``profile_all_threads``. So a call in the background has two
events in the thread that submits it: its submission, and another one that lasts until the call is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.autograd.profiler

from shmring.engine.recording import show_calls

is_profiled = torch.autograd._profiler_enabled


def recording(name: str, arguments: Iterable[Any]) -> AbstractContextManager:
    """A context recorded under this name, with the tensors among the arguments, or in lists among them."""
    arguments = list(arguments)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if not tensors:
        lists = [x for x in arguments if isinstance(x, (list, tuple))]
        tensors = [t for x in lists for t in x if isinstance(t, torch.Tensor)]
    return torch._C._profiler._RecordFunctionFast(name, tensors)


def record_until_over(name: str, work: torch.distributed.Work) -> None:
    """Record an event that begins now and ends when the work is over."""
    with torch.profiler.record_function(name) as event:
        event._call_end_callbacks_on_future(work.get_future())


def _range(call: str, facts: dict[str, Any]) -> AbstractContextManager:
    return torch._C._profiler._RecordFunctionFast(call, (), facts)


show_calls(vars(torch.autograd.profiler), "_is_profiler_enabled", _range)
