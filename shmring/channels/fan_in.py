"""Many senders to one receiver: a channel for each, fair turns, and one wait for all of them."""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

from shmring.channels import aio
from shmring.channels.api import channel
from shmring.channels.waiting import wait
from shmring.core.base.timeouts import deadline_after
from shmring.errors import EndOfStreamError, PeerLostError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from shmring.channels.records import RecordSender
    from shmring.channels.sender import Sender
    from shmring.typing import WhenFull

MOST_SENDERS = 1024

_LEAST_S = 1e-9  # not 0, which would take all pieces of a long message


@overload
def fan_in(
    nsenders: int,
    capacity_nbytes: int = ...,
    *,
    dtype: None = None,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> tuple[list[Sender], FanInReceiver]: ...
@overload
def fan_in(
    nsenders: int,
    capacity_nbytes: int = ...,
    *,
    dtype: DTypeLike,
    when_full: WhenFull = ...,
    allow_pickle: bool | None = ...,
) -> tuple[list[RecordSender], FanInReceiver]: ...
def fan_in(
    nsenders: int,
    capacity_nbytes: int = 1 << 20,
    *,
    dtype: DTypeLike | None = None,
    when_full: WhenFull = "wait",
    allow_pickle: bool | None = None,
) -> tuple[list[Sender] | list[RecordSender], FanInReceiver]:
    """Make channels from many senders to one receiver, which takes from them in turn.

    Parameters
    ----------
    nsenders : int
        The number of senders, 1 to 1024.
    capacity_nbytes : int, default 1 MiB
        Size of the ring of each sender, as in `channel`.
    dtype, when_full, allow_pickle
        As in `channel`.

    Returns
    -------
    list of Sender, FanInReceiver
        With a dtype, list of RecordSender. Each end belongs to the process that first uses it.

    Notes
    -----
    Raises as `channel`. Senders share nothing: none waits for another, and a sender that stops, dies, or sends long
    messages does not delay the others. The memory has no name. Any thread may call.
    """
    if not isinstance(nsenders, int) or isinstance(nsenders, bool):
        raise TypeError(f"nsenders={nsenders!r}: must be an int")
    if not 1 <= nsenders <= MOST_SENDERS:
        raise ValueError(f"nsenders={nsenders}: must be from 1 to {MOST_SENDERS}")
    settings: dict[str, Any] = {
        "capacity_nbytes": capacity_nbytes,
        "dtype": dtype,
        "when_full": when_full,
        "allow_pickle": allow_pickle,
    }
    ends = [channel(**settings) for _ in range(nsenders)]
    return [sender for sender, _ in ends], FanInReceiver([receiver for _, receiver in ends], settings)


class FanInReceiver:
    """The receiving ends of a fan-in; made by `shmring.fan_in`.

    Takes from its senders in turn: after a message of one sender, each other sender with a message comes before that
    sender comes again. The messages of one sender keep their order; between senders there is none. Belongs to the
    process that uses it first, and to one thread at a time.
    """

    _receivers: list[Any]
    _settings: dict[str, Any]
    _over: list[bool]
    _turn: int
    _last_sender: int

    def __new__(cls, receivers: list[Any], settings: dict[str, Any]) -> FanInReceiver:
        if not isinstance(receivers, list) or not receivers or not isinstance(settings, dict):
            raise TypeError(f"FanInReceiver({receivers!r}, ...): call shmring.fan_in() instead")
        self = object.__new__(cls)
        self._receivers, self._settings = receivers, settings
        self._over = [False] * len(receivers)  # what the caller knows: nothing more comes from this sender
        self._turn, self._last_sender = 0, -1
        return self

    @property
    def last_sender(self) -> int:
        """The number of the sender of the last message, and of the last `next_ready`; -1 before."""
        return self._last_sender

    def take(self) -> FanInReceiver:
        """Make this end belong to this process now. Raises as `Receiver.take`."""
        for receiver in self._receivers:
            receiver.take()
        return self

    def close(self) -> None:
        """Close this end in good order. Raises as `Receiver.close`."""
        self._last().close()  # raises, and nothing was closed, if it has leased memory
        for receiver in self._receivers:
            receiver.close()

    def __enter__(self) -> FanInReceiver:
        return self.take()

    def __exit__(self, *exception: Any) -> None:
        self._last().__exit__(*exception)
        for receiver in self._receivers:
            receiver.__exit__(*exception)

    @property
    def closed(self) -> bool:
        """Whether this end was closed here."""
        return self._last().closed

    def new_sender(self, number: int) -> Any:
        """Make a new sender in the place of one from which nothing more comes, as it was closed or has died.

        Parameters
        ----------
        number : int
            The place, as `last_sender` and the ``rank`` of a `PeerLostError` number it.

        Returns
        -------
        Sender
            Or `RecordSender`, of a channel of its own; the process that first uses it owns it.

        Raises
        ------
        ValueError
            Messages of the sender in that place may still come; or there is no such place.
        """
        if not isinstance(number, int) or not 0 <= number < len(self._receivers):
            raise ValueError(f"number={number!r}: must be from 0 to {len(self._receivers) - 1}")
        if not self._over[number]:
            raise ValueError(f"sender {number} is {self._receivers[number].peer!r}, or its end was not received yet")
        sender, receiver = channel(**self._settings)
        self._receivers[number].close()
        self._receivers[number], self._over[number] = receiver, False
        return sender

    # ---- turns ----

    def _last(self) -> Any:
        """The receiver of the last turn."""
        return self._receivers[self._last_sender]

    def _look(self, limit: float = 0) -> tuple[int, PeerLostError | None] | None:
        """The number of the first sender in turn that has a message, or has left without closing, with that error; None
        if there is none. Raises if all are over."""
        n, vacant = len(self._receivers), None
        for i in (*range(self._turn, n), *range(self._turn)):
            found = self._receivers[i].look_ahead(limit)
            if found is True:
                return i, None
            if isinstance(found, PeerLostError) and not self._over[i]:
                if found.pid:
                    return i, found
                vacant = vacant or (i, found)  # no process has taken that end: after the messages of all others
            elif found is not False:
                self._over[i] = True
        if all(self._over):
            raise EndOfStreamError("all senders are closed or dead, and all their messages were received")
        return vacant

    def _find(self, timeout: float | None) -> tuple[int, PeerLostError | None] | None:
        """As `_look`, but waits; None after the timeout."""
        deadline = deadline_after(timeout)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = self._look(max(left, _LEAST_S) if left is not None and timeout else 0)
            if found is not None or left == 0:
                return found
            wait(self.awaited, left)

    @property
    def awaited(self) -> list[Any]:
        """The receivers from which a message may come; `shmring.wait` waits for these."""
        return [receiver for receiver, over in zip(self._receivers, self._over, strict=True) if not over]

    def next_ready(self, timeout: float | None = None) -> Any:
        """Wait for the receiver that has the turn: it has a whole message, so its calls need not wait.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        Receiver
            Or `RecordReceiver`; `last_sender` is the number of its sender. Receive from it in any way: `recv`,
            `recv_many`, `recv_into`, `peek` and `release`.

        Raises
        ------
        queue.Empty
            No message came in time.
        PeerLostError
            A sender has died, or left without closing, and all its messages were received; ``rank`` is its number.
            Reported once for each sender; the fan-in stays usable with the others, and `new_sender` gives its place to
            a new one.
        EndOfStreamError
            All senders are closed or dead, and all their messages were received.
        ValueError
            A lease of the last `peek` is open.
        """
        found = self._find(timeout)
        if found is None:
            raise queue.Empty
        i, error = found
        self._turn = (i + 1) % len(self._receivers)
        if error is not None:
            self._over[i], error.rank = True, i
            raise error
        self._last_sender = i
        return self._receivers[i]

    # ---- receiving ----

    def recv(self, timeout: float | None = None) -> Any:
        """Receive the next message of the sender that has the turn. Raises as `next_ready` and `Receiver.recv`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.

        Returns
        -------
        bytes, numpy.ndarray, object or record
            As `Receiver.recv`, or `RecordReceiver.recv`, returns; `last_sender` is the number of its sender.
        """
        return self.next_ready(timeout).recv(0)

    def recv_from(self, timeout: float | None = None) -> tuple[int, Any]:
        """Receive the next message, with the number of its sender: ``(last_sender, recv(timeout))``.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.
        """
        message = self.recv(timeout)
        return self.last_sender, message

    def try_recv(self, default: Any = None) -> Any:
        """Receive the next message if there is one. Raises as `recv`.

        Parameters
        ----------
        default : object
            The result if there is no message.
        """
        try:
            return self.recv(0)
        except queue.Empty:
            return default

    async def recv_async(self) -> Any:
        """Await what `recv` returns, in an event loop of asyncio: see `Receiver.recv_async`."""
        import asyncio

        while True:
            with suppress(queue.Empty):
                return self.recv(0)
            waits = [asyncio.ensure_future(aio.readable(receiver)) for receiver in self.awaited]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()
                await asyncio.gather(*waits, return_exceptions=True)

    def poll(self, timeout: float | None = 0) -> bool:
        """Whether `recv` would return or raise without waiting: see `Receiver.poll`.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; None for ever, 0 not at all.
        """
        try:
            return self._find(timeout) is not None
        except EndOfStreamError:
            return True

    def __iter__(self) -> FanInReceiver:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except EndOfStreamError:
            raise StopIteration from None

    def __aiter__(self) -> FanInReceiver:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.recv_async()
        except EndOfStreamError:
            raise StopAsyncIteration from None

    # ---- state ----

    def __bool__(self) -> bool:
        return True  # one without messages is one, too

    def __len__(self) -> int:
        """Messages sent and not yet received, of all senders: a hint."""
        return sum(map(len, self._receivers))

    @property
    def peers(self) -> list[str]:
        """State of each sender: ``absent``, ``here``, ``closed`` or ``lost``."""
        return [receiver.peer for receiver in self._receivers]

    @property
    def peer_pids(self) -> list[int]:
        """Process id of each sender; 0 if no process has taken that end yet."""
        return [receiver.peer_pid for receiver in self._receivers]

    def __reduce__(self) -> tuple:
        return FanInReceiver, (self._receivers, self._settings)

    def __repr__(self) -> str:
        return f"<shmring.FanInReceiver of {len(self._receivers)} senders{', closed' if self.closed else ''}>"
