"""When a call of torch's is made: now, in the background, or now because a callback makes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from shmring.collective.async_work import submit
from shmring.errors import ShmringError
from shmring.torch.errors import torch_form
from shmring.torch.profiler import is_profiled, recording
from shmring.torch.work import FINISHED, NO_TIME, DoneWork, PendingWork, SeveralWorks, Tensors


class _Call(partial):
    """A call to be made later, with the name it goes by in errors."""

    label = ""


class Calls(dist.ProcessGroup):
    """What the calls of `shmring.torch.ProcessGroup` have in common."""

    _comm: Any
    _timeout_s: float | None
    _recorded_as = "shmring"  # in profiles
    _together: list[dist.Work] | None = None

    def _perform(self, name: str, function: Callable, arguments: tuple, results: Tensors, opts, seen=False):
        """Make the call ``function(comm, timeout, *arguments)``: at once, or in the background if torch says so."""
        if is_profiled() and not seen:
            with recording(f"{self._recorded_as}:{name}", arguments):
                return self._perform(name, function, arguments, results, opts, True)
        timeout = opts.timeout
        timeout_s = timeout.total_seconds() if timeout > NO_TIME else self._timeout_s
        if opts.asyncOp:
            return self._perform_later(name, _Call(function, self._comm, timeout_s, *arguments), results, timeout_s)
        try:
            function(self._comm, timeout_s, *arguments)
        except ShmringError as error:
            raise torch_form(error, timeout_s) from error
        return FINISHED

    def _perform_later(self, name: str, call: _Call, results: Tensors, timeout_s: float | None) -> dist.Work:
        engine = self._comm.engine
        if engine.progress is not None and engine.progress.is_own_thread():
            # A callback of an earlier call. It may wait by a future, which knows nothing of this thread, and nobody but
            # this thread could make the call: so it is made at once.
            try:
                call()
            except ShmringError as error:
                raise torch_form(error, timeout_s) from error
            return DoneWork(results)
        call.label = name
        return self._noted(PendingWork(submit(engine, call), results, timeout_s))

    def _noted(self, work: dist.Work) -> dist.Work:
        if self._together is not None:
            self._together.append(work)
        return work

    # ---- several calls as one ----

    def _start_coalescing(self, device) -> None:
        self._together = []

    def _end_coalescing(self, device) -> dist.Work:
        works, self._together = self._together or [], None
        return SeveralWorks(works)
