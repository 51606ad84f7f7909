"""What `torch.distributed` calls return: a torch `Work` for a call that is over, and one for a call under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from shmring.collective.async_work import Work
from shmring.errors import ShmringError
from shmring.torch.errors import torch_form

Tensors = Sequence[torch.Tensor]


NO_TIME = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """Torch's timeouts in seconds: what is not positive means none was given."""
    return timeout.total_seconds() if timeout is not None and timeout > NO_TIME else None


class DoneWork(dist.Work):
    """A call that is over. Without tensors it can be the same object every time."""

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
        """Nothing to be done: there is no stream."""

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results."""
        return self._results

    def get_future(self) -> torch.futures.Future:
        """A future that has the result tensors."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self._results)
        return future


FINISHED = DoneWork()


class PendingWork(dist.Work):
    """A call under way, with its own way to wait and to hear of the end.

    Parameters
    ----------
    under_way : shmring.Work or shmring.Request
        The call.
    results : sequence of torch.Tensor
        What `result` and the future give.
    timeout_s : float, optional
        That of the call, for messages. A request has none, so `wait` goes by it.
    """

    def __init__(self, under_way, results: Tensors, timeout_s: float | None) -> None:
        super().__init__()
        self._under_way = under_way
        self._results = list(results)
        self._timeout_s = timeout_s
        self._future: torch.futures.Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over; raise what it raised."""
        patience_s = seconds(timeout)
        try:
            self._finish(patience_s)
        except ShmringError as error:
            raise torch_form(error, patience_s or self._timeout_s) from error
        except TimeoutError as error:
            raise dist.DistBackendError(f"shmring: Timed out after {patience_s} s: {error}") from error
        return True

    def _finish(self, patience_s: float | None) -> None:
        if patience_s is None and isinstance(self._under_way, Work):
            self._under_way.hasten()
        self._under_way.wait(patience_s)

    def is_completed(self) -> bool:
        """Whether the call is over, however it ended. Does not block."""
        return self._under_way.done()

    def is_success(self) -> bool:
        """Whether the call is over and went well. Does not block."""
        return self._under_way.done() and self._under_way.exception() is None

    def exception(self):
        """What the call raised; None if it went well or is not over."""
        return self._under_way.exception() if self._under_way.done() else None

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the results, once the call is over."""
        self.wait()
        return self._results

    def get_future(self) -> torch.futures.Future:
        """A future that gets the result tensors, or the error.

        What is chained to it runs on the communicator's thread, in the place in the order of calls where this stands.
        """
        if self._future is None:
            over: torch.futures.Future = torch.futures.Future()
            # An error gets to those who wait in C++ only if it is raised in a callback of a future.
            self._future = over.then(self._outcome)
            self._when_over(lambda: over.set_result(None))
        return self._future

    def _outcome(self, _) -> list[torch.Tensor]:
        self.wait()
        return self._results

    def _when_over(self, call: Callable[[], None]) -> None:
        self._under_way.add_done_callback(lambda _: call())


class SeveralWorks(DoneWork):
    """Several calls under way, as one."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        super().__init__([t for work in works for t in work._results])
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all of them."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future:
        """A future that gets the result tensors of all."""
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(self._outcome)

    def _outcome(self, _) -> list[torch.Tensor]:
        self.wait()
        return self._results
