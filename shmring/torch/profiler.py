"""Calls as events of torch's profiler: calls of a process group with the shapes of their tensors, and the collectives
that the engine makes for any call of this process, by the names that timelines have.

A profiler records its own thread, unless it is made with ``profile_all_threads``. So a call in the background has two
events in the thread that submits it: its submission, and another one that lasts until the call is over.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.autograd.profiler

from shmring.collectives.engine.recording import show_calls
from shmring.torch.work import PendingWork

is_profiled = torch.autograd._profiler_enabled  # in this thread
FLAGS, FLAG = vars(torch.autograd.profiler), "_is_profiler_enabled"  # in any thread, and read sooner


def recording(name: str, arguments: Iterable[Any]) -> AbstractContextManager:
    """A context recorded under this name, with the tensors among the arguments, or in lists among them."""
    arguments = list(arguments)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    if not tensors:
        lists = [x for x in arguments if isinstance(x, (list, tuple))]
        tensors = [t for x in lists for t in x if isinstance(t, torch.Tensor)]
    return torch._C._profiler._RecordFunctionFast(name, tensors)


def record_until_over(name: str, work: PendingWork) -> None:
    """Record an event that begins now and ends when the work is over, before `wait` returns.

    Another thread ends it, and the profiler that a program stops after its `wait` must not be read meanwhile.
    """
    future = work.get_future()
    with torch.profiler.record_function(name) as event:
        event._call_end_callbacks_on_future(future)
    work.recorded = threading.Event()
    future.add_done_callback(lambda _: work.recorded.set())  # callbacks run in the order in which they were added


def _range(call: str, facts: dict[str, Any]) -> AbstractContextManager:
    return torch._C._profiler._RecordFunctionFast(call, (), facts)


show_calls(FLAGS, FLAG, _range)
