"""The `Work` objects that calls return: for a finished call, a pending one, and several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Event

import torch
import torch.distributed as dist

from shmring.collectives.calls.async_work import Work
from shmring.errors import ShmringError
from shmring.torch.errors import torch_form
from shmring.torch.methods import unseen

Tensors = Sequence[torch.Tensor]


NO_TIME = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """A torch timeout in seconds; None if it is not positive, torch's value for no timeout given."""
    return timeout.total_seconds() if timeout is not None and timeout > NO_TIME else None


class DoneWork(dist.Work):
    """A finished call. Without tensors one object serves all calls."""

    def __init__(self, results: Tensors = ()) -> None:
        super().__init__()
        self._results = list(results)

    def wait(self, timeout=None) -> bool:
        """True."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self):
        """None."""
        return None

    def synchronize(self) -> None:
        """Nothing to do: there is no stream."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results."""
        return self._results

    @unseen
    def get_future(self) -> torch.futures.Future:
        """A future that holds the result tensors."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._results)
        return future


FINISHED = DoneWork()


class PendingWork(dist.Work):
    """A pending call.

    Parameters
    ----------
    under_way : shmring.Work or shmring.Request
        The core's handle of the call.
    results : sequence of torch.Tensor
        The value of `result` and of the future.
    timeout_s : float, optional
        Timeout of the call. `wait` applies it to requests, which have none of their own.
    """

    def __init__(self, under_way, results: Tensors, timeout_s: float | None) -> None:
        super().__init__()
        self._under_way = under_way
        self._results = list(results)
        self._timeout_s = timeout_s
        self._future: torch.futures.Future | None = None
        self.recorded: Event | None = None  # set when a profiler has the end of the call

    @unseen
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over; raise what it raised."""
        try:
            self._complete(seconds(timeout))
        finally:
            if self.recorded is not None and self._under_way.done():
                self.recorded.wait()
        return True

    def _complete(self, wait_s: float | None) -> None:
        try:
            self._finish(wait_s)
        except ShmringError as error:
            raise torch_form(error, wait_s or self._timeout_s) from error.__cause__
        except TimeoutError as error:
            raise dist.DistBackendError(f"shmring: Timed out after {wait_s} s: {error}") from error

    def _finish(self, wait_s: float | None) -> None:
        if wait_s is None and isinstance(self._under_way, Work):
            self._under_way.hasten()
        self._under_way.wait(wait_s)

    @unseen
    def is_completed(self) -> bool:
        """Whether the call is over, however it ended. Does not block."""
        return self._under_way.done()

    def is_success(self) -> bool:
        """Whether the call is over and succeeded. Does not block."""
        return self._under_way.done() and self._under_way.exception() is None

    def exception(self):
        """The exception of the call; None if it succeeded or is not over."""
        return self._under_way.exception() if self._under_way.done() else None

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    @unseen
    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results, once the call is over."""
        self._complete(None)
        return self._results

    @unseen
    def get_future(self) -> torch.futures.Future:
        """A future of the result tensors, or of the error.

        Its callbacks run on the communicator's progress thread, before the next call in the order of calls.
        """
        if self._future is None:
            over: torch.futures.Future = torch.futures.Future()
            # Waiters in C++ get an error only if it is raised in a callback of a future.
            self._future = over.then(unseen(lambda _: self.result()))
            self._when_over(lambda: over.set_result(None))
        return self._future

    def _when_over(self, call: Callable[[], None]) -> None:
        self._under_way.add_done_callback(lambda _: call())


class CombinedWork(DoneWork):
    """Several calls as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__([t for work in works for t in work._results])
        self._works = works

    @unseen
    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until all calls are over; raise what one of them raised."""
        for work in self._works:
            work.wait(timeout)
        return True

    @unseen
    def is_completed(self) -> bool:
        """Whether all calls are over."""
        return all(work.is_completed() for work in self._works)

    @unseen
    def get_future(self) -> torch.futures.Future:
        """A future of the result tensors of all calls."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(self._outcome)

    @unseen
    def _outcome(self, _) -> list[torch.Tensor]:
        self.wait()
        return self._results
