"""Futures: the base of requests and of asynchronous work."""

import copy
from types import GenericAlias


cdef class Future:
    """Something under way, which ends with a result or an error; any thread may wait for it, or a task await it.

    A class of them has `done`, `add_done_callback`, and:

    - ``_settle(timeout)``: wait until it is over, for at most ``timeout`` seconds (None: no limit), else raise
      `TimeoutError`; return its error, or None.
    - ``_value()``: its result, once it is over without an error.
    """

    __class_getitem__ = classmethod(GenericAlias)

    cpdef _settle(self, timeout):
        raise TypeError(f"{type(self).__name__} cannot be made by its constructor")

    cpdef _value(self):
        return None

    def wait(self, timeout=None):
        """Wait until it is over, and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None: no limit. The call itself has a timeout of its own.

        Returns
        -------
        object
            The result of the call that blocks: of a receive the `Message`, of a collective the array, of a send None.

        Raises
        ------
        TimeoutError
            It is not over yet. It continues, and may be waited for again. Of a request, a `MessageTimeoutError`.
        ClosedError
            This process inherited it through fork, or the communicator is closed.
        RuntimeError
            Called from a callback that this work is queued behind: the wait could never end.
        Exception
            The error of the call that blocks, a new copy each time. A message that does not fit can still be received.
        """
        error = self._settle(timeout)
        if error is not None:
            raise _copy_of(error)
        return self._value()

    def result(self, timeout=None):
        """As `wait`, under the name that futures have for it.

        Parameters
        ----------
        timeout : float, optional
            As in `wait`.

        Returns
        -------
        object
        """
        return self.wait(timeout)

    def exception(self, timeout=None):
        """Wait until it is over, and return its error.

        Parameters
        ----------
        timeout : float, optional
            As in `wait`. This call may raise the errors of waiting, too.

        Returns
        -------
        Exception or None
            The error that `wait` would raise; None if the call succeeded.
        """
        return self._settle(timeout)

    def __await__(self):
        return _poll_in_event_loop(self).__await__()

    def __reduce__(self):
        raise TypeError(f"{type(self).__name__}: belongs to its process and can be neither copied nor pickled")


cdef object _copy_of(object error):
    """A copy to be raised: an error that is raised again grows a longer traceback, and two threads would store it."""
    try:
        again = copy.copy(error)
    except Exception:      # a class that cannot make one from its arguments
        return error
    if type(again) is not type(error):
        return error
    again.__cause__, again.__context__ = error.__cause__, error.__context__
    again.__suppress_context__ = error.__suppress_context__
    return again.with_traceback(error.__traceback__)


async def _poll_in_event_loop(future):
    """Poll, at first in every iteration of the event loop, later every millisecond."""
    import asyncio      # loading it takes longer than the rest of shmring
    pause_s = 0.0
    while not future.done():
        await asyncio.sleep(pause_s)
        pause_s = min(0.001, 2 * pause_s + 1e-5)
    return future.wait(0)
