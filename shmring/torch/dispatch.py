"""Makes a c10d call at once or submits it as asynchronous work; profiling and coalescing of calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from shmring.collective.async_work import submit
from shmring.errors import ShmringError
from shmring.torch.errors import torch_form
from shmring.torch.profiler import is_profiled, record_until_over, recording
from shmring.torch.work import FINISHED, NO_TIME, CombinedWork, DoneWork, PendingWork, Tensors


class _DeferredCall(partial):
    """A call to be made by the progress thread; ``label`` is its name in errors."""

    label = ""


class CallDispatch(dist.ProcessGroup):
    """What all calls of `shmring.torch.ProcessGroup` share."""

    _comm: Any
    _timeout_s: float | None
    _recorded_as = "shmring"  # prefix of event names in profiles
    _in_background = "{} in the background"  # the name of the event that lasts until such a call is over
    _coalesced: list[dist.Work] | None = None

    def _perform(self, name: str, function: Callable, arguments: tuple, results: Tensors, opts, seen=False):
        """Call ``function(comm, timeout, *arguments)``, at once or, if ``opts.asyncOp``, in the background."""
        if is_profiled() and not seen:
            label = f"{self._recorded_as}:{name}"
            with recording(label, arguments):
                work = self._perform(name, function, arguments, results, opts, True)
            if not work.is_completed():
                record_until_over(self._in_background.format(label), work)
            return work
        timeout = opts.timeout
        timeout_s = timeout.total_seconds() if timeout > NO_TIME else self._timeout_s
        if opts.asyncOp:
            return self._perform_later(
                name, _DeferredCall(function, self._comm, timeout_s, *arguments), results, timeout_s
            )
        try:
            function(self._comm, timeout_s, *arguments)
        except ShmringError as error:
            raise torch_form(error, timeout_s) from error
        return FINISHED

    def _perform_later(self, name: str, call: _DeferredCall, results: Tensors, timeout_s: float | None) -> dist.Work:
        engine = self._comm.engine
        if engine.progress is not None and engine.progress.is_own_thread():
            # A callback of an earlier call submits this one. It may wait by a future, which would block the only thread
            # that could make the call, so it is made at once.
            try:
                call()
            except ShmringError as error:
                raise torch_form(error, timeout_s) from error
            return DoneWork(results)
        call.label = name
        return self._record(PendingWork(submit(engine, call), results, timeout_s))

    def _record(self, work: dist.Work) -> dist.Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    # ---- several calls as one ----

    def _start_coalescing(self, device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        return CombinedWork(works)
