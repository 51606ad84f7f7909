"""Python objects in collectives.

Every call begins with one small collective of *labels*. A label says how the object was packed, how much of it is still
to come, and holds the beginning of it: what is short is there at once. The rest follows in further collectives on
bytes, of which all ranks know the sizes from the labels.

A rank whose object cannot be packed takes part all the same: it sends a label that says so, and every rank raises
`ObjectError`. So the ranks stay in step and the communicator usable. Objects are unpacked after the last byte has come,
so what fails there disturbs nobody else either.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from shmring.arrays.pickle5 import Pickled, empty_buffers, pack, require_pickle, unpack
from shmring.errors import MismatchError, ObjectError

# Five lines of an eager. Most objects that are sent for their meaning, not their mass, fit.
LABEL_NBYTES = 256

# Bytes of one rank in one staged collective: they stay in the second-level cache from staging to copying out.
PIECE_NBYTES = 256 << 10
GRAIN_NBYTES = 4096


class Call(IntEnum):
    """Which call a label belongs to: the collectives under two of them may look the same to the engine."""

    BROADCAST = 1
    GATHER = 2
    ALL_GATHER = 3
    SCATTER = 4
    ALL_TO_ALL = 5


class Label(NamedTuple):
    """What is sent ahead of an object. ``beginning`` is that of its letter, or an error's text if it is ``unfit``."""

    call: Call
    root: int
    unfit: bool
    letter_nbytes: int
    rest_nbytes: int
    """What follows the label: the rest of the letter, and the enclosures."""
    longest: int
    """The largest ``rest_nbytes`` of all labels that its sender sends."""
    beginning: memoryview


_HEAD = struct.Struct("<IHHqQQQ")
_MAGIC = 0x4A624F73
_BEGINNING_NBYTES = LABEL_NBYTES - _HEAD.size


class ObjectCalls:
    """The calls on Python objects of `shmring.Communicator`."""

    rank: int
    size: int
    config: Any
    broadcast: Callable
    gather: Callable
    all_gather: Callable
    scatter: Callable
    all_to_all: Callable
    abort: Callable
    is_closed: bool
    is_broken: bool

    def broadcast_object(self, obj=None, root=0, *, timeout=...):
        """Give every rank a copy of the root's object.

        Parameters
        ----------
        obj : object
            On the root: anything that can be pickled. Ignored on the others.
        root : int
        timeout : float, optional
            Seconds to wait for peers that live, in each of the collectives that this call is made of; None for ever.
            The communicator's own by default.

        Returns
        -------
        object
            ``obj`` itself on the root, a copy on the others.

        Raises
        ------
        TypeError, ValueError
            A bad argument, or the setting ``allow_pickle=False``. Nothing was sent; the communicator stays usable.
        ObjectError
            The root cannot pickle it (all ranks get this error), or this rank cannot unpickle it (only this rank does).
            The communicator stays usable and in step.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            The communicator is broken.

        Notes
        -----
        Collective. One round of eager messages for what pickles to some 200 bytes. Large arrays inside the object are not
        copied into the pickle: each moves from its own memory into fresh memory of the receiver by a `broadcast`, and
        arrives writable if it was. The object must not be changed meanwhile. **Unpickling runs what the peer sent.**
        """
        self._admit(timeout)
        root = self._checked_root(root)
        labels, outgoing = self._address(Call.BROADCAST, [obj] if self.rank == root else [], root)
        arrival = None
        with self._turn():
            raw = labels if self.rank == root else np.empty((1, LABEL_NBYTES), np.uint8)
            self.broadcast(raw, root=root, timeout=timeout)
            (label,) = self._read(raw, [root], Call.BROADCAST, root)
            if not label.unfit:
                arrival = None if self.rank == root else Arrival(label)
                self._broadcast_rest(outgoing, arrival, root, timeout)
        self._refuse_unfit([label], [root], outgoing)
        return obj if arrival is None else arrival.open(root)

    def gather_object(self, obj, root=0, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on the root.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list or None
            On the root one object per rank: copies, but for its own, which is ``obj`` itself. None on the others.

        Raises
        ------
        TypeError, ValueError, ObjectError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `broadcast_object`.

        Notes
        -----
        Collective. Labels go to all ranks; what does not fit in them goes to the root by `gather` in pieces, as many as
        the longest object needs: cheapest where sizes are alike.
        """
        self._admit(timeout)
        root = self._checked_root(root)
        labels, outgoing = self._address(Call.GATHER, [obj], root)
        everyone = range(self.size)
        arrivals: list[Arrival | None] = []
        with self._turn():
            said = self._read(self.all_gather(labels[0], timeout=timeout), everyone, Call.GATHER, root)
            if not any(label.unfit for label in said):
                if self.rank == root:
                    arrivals = [None if r == root else Arrival(said[r]) for r in everyone]

                def move(block):
                    return self.gather(block[0], root=root, timeout=timeout)

                _carry(_longest(said), outgoing, arrivals, move)
        self._refuse_unfit(said, everyone, outgoing)
        return _open_all(arrivals, obj) if self.rank == root else None

    def all_gather_object(self, obj, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on every rank.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object per rank: copies, but for this rank's own, which is ``obj`` itself.

        Raises
        ------
        TypeError, ValueError, ObjectError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `broadcast_object`.

        Notes
        -----
        Collective. What does not fit in labels goes by one padded `all_gather` where the longest object is short (to
        256 KiB), else by one `broadcast` per rank and array, which moves no byte twice and pads nothing.
        """
        self._admit(timeout)
        labels, outgoing = self._address(Call.ALL_GATHER, [obj], -1)
        everyone = range(self.size)
        arrivals: list[Arrival | None] = []
        with self._turn():
            said = self._read(self.all_gather(labels[0], timeout=timeout), everyone, Call.ALL_GATHER, -1)
            if not any(label.unfit for label in said):
                arrivals = [None if r == self.rank else Arrival(said[r]) for r in everyone]
                if _longest(said) <= PIECE_NBYTES:

                    def move(block):
                        return self.all_gather(block[0], timeout=timeout)

                    _carry(_longest(said), outgoing, arrivals, move)
                else:
                    for r in everyone:
                        self._broadcast_rest(outgoing, arrivals[r], r, timeout)
        self._refuse_unfit(said, everyone, outgoing)
        return _open_all(arrivals, obj)

    def scatter_object(self, objs=None, root=0, *, timeout=...):
        """Give rank i a copy of the root's ``objs[i]``.

        Parameters
        ----------
        objs : sequence of ``size`` objects
            On the root. Ignored on the others.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        object
            ``objs[root]`` itself on the root, a copy of ``objs[rank]`` on the others.

        Raises
        ------
        TypeError, ValueError, ObjectError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `broadcast_object`. If the root cannot pickle one of the objects, all ranks get `ObjectError`.

        Notes
        -----
        Collective. What does not fit in labels goes by `scatter` in pieces, as many as the longest object needs.
        """
        self._admit(timeout)
        root = self._checked_root(root)
        is_root = self.rank == root
        objs = self._one_for_each(objs) if is_root else []
        labels, outgoing = self._address(Call.SCATTER, objs, root)
        arrivals: list[Arrival | None] = []

        def move(block):
            share = np.empty(block.shape[1], np.uint8)
            return self.scatter(block if is_root else None, share, root=root, timeout=timeout)[np.newaxis]

        with self._turn():
            raw = np.empty((1, LABEL_NBYTES), np.uint8)
            self.scatter(labels if is_root else None, raw[0], root=root, timeout=timeout)
            (label,) = self._read(raw, [root], Call.SCATTER, root)
            if not label.unfit:
                arrivals = [None if is_root else Arrival(label)]
                _carry(label.longest, outgoing, arrivals, move)
        self._refuse_unfit([label], [root], outgoing)
        (arrival,) = arrivals
        return objs[root] if arrival is None else arrival.open(root)

    def all_to_all_object(self, objs, *, timeout=...):
        """Rank i's ``objs[j]`` becomes element i of rank j's result: a transposition over ranks.

        Parameters
        ----------
        objs : sequence of ``size`` objects
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object from each rank: copies, but for ``objs[rank]``, which is this rank's own.

        Raises
        ------
        TypeError, ValueError, ObjectError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `broadcast_object`. If a rank cannot pickle one of its objects, all ranks get `ObjectError`.

        Notes
        -----
        Collective. What does not fit in labels goes by `all_to_all` in pieces, as many as the longest object needs.
        """
        self._admit(timeout)
        objs = self._one_for_each(objs)
        labels, outgoing = self._address(Call.ALL_TO_ALL, objs, -1)
        everyone = range(self.size)
        arrivals: list[Arrival | None] = []

        def move(block):
            return self.all_to_all(block, timeout=timeout)

        with self._turn():
            said = self._read(self.all_to_all(labels, timeout=timeout), everyone, Call.ALL_TO_ALL, -1)
            if not any(label.unfit for label in said):
                arrivals = [None if r == self.rank else Arrival(said[r]) for r in everyone]
                _carry(max(label.longest for label in said), outgoing, arrivals, move)
        self._refuse_unfit(said, everyone, outgoing)
        return _open_all(arrivals, objs[self.rank])

    # ---- what the calls share ----

    def _admit(self, timeout) -> None:
        """Refuse, before anything is sent, what the first collective would refuse, or a later one too late."""
        if timeout is not ... and timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout={timeout!r}: must be seconds from 0 up, or None to wait for ever")
        require_pickle(self.config.allow_pickle)

    def _checked_root(self, root) -> int:
        root = operator.index(root)
        if not 0 <= root < self.size:
            raise ValueError(f"root={root}: must be a rank, from 0 to {self.size - 1}")
        return root

    def _one_for_each(self, objs) -> Sequence:
        if not isinstance(objs, Sequence) or isinstance(objs, (str, bytes)):
            raise TypeError(f"objs must be a sequence of one object per rank, not {type(objs).__name__}")
        if len(objs) != self.size:
            raise ValueError(f"objs has {len(objs)} objects; it must have one per rank, {self.size}")
        return objs

    def _address(self, call: Call, objs: Sequence, root: int) -> tuple[np.ndarray, list[Departure]]:
        """Pack; a label for each object, and what follows them. Objects for oneself stay: they have empty labels."""
        pickleds: list[Pickled | None] = []
        try:
            goes_to_many = call in (Call.BROADCAST, Call.GATHER, Call.ALL_GATHER)
            pickleds = [pack(o) if goes_to_many or r != self.rank else None for r, o in enumerate(objs)]
        except Exception as error:
            text = f"rank {self.rank} cannot pickle its object: {type(error).__name__}: {error}".encode()
            label = _write(call, root, True, text, len(text), 0, 0)
            return np.stack([label] * len(objs)), [Departure(error=error)]
        outgoing = [Departure(pickled) for pickled in pickleds]
        longest = max((departure.rest_nbytes for departure in outgoing), default=0)
        labels = [
            _write(call, root, False, pickled.stream, pickled.stream.nbytes, departure.rest_nbytes, longest)
            if pickled is not None
            else _write(call, root, False, b"", 0, 0, longest)
            for pickled, departure in zip(pickleds, outgoing, strict=True)
        ]
        return np.stack(labels) if labels else np.empty((0, LABEL_NBYTES), np.uint8), outgoing

    def _read(self, raw: np.ndarray, ranks: Sequence[int], call: Call, root: int) -> list[Label]:
        """The labels of ``ranks``, all of this very call."""
        labels = []
        for row, r in zip(raw, ranks, strict=True):
            magic, said, unfit, said_root, letter_nbytes, rest_nbytes, longest = _HEAD.unpack_from(row)
            if magic != _MAGIC or said != call or said_root != root:
                theirs = _in_words(said, said_root) if magic == _MAGIC else "a collective on arrays"
                raise MismatchError(
                    f"ranks disagree: rank {self.rank} called {_in_words(call, root)}, rank {r} called {theirs}",
                    (self.rank, r),
                )
            end = _HEAD.size + min(letter_nbytes, _BEGINNING_NBYTES)
            beginning = memoryview(row)[_HEAD.size : end]
            labels.append(Label(call, root, bool(unfit), letter_nbytes, rest_nbytes, longest, beginning))
        return labels

    @staticmethod
    def _refuse_unfit(labels: Sequence[Label], ranks: Sequence[int], outgoing: list[Departure]) -> None:
        """Raise what the first rank with an unfit object has to say."""
        for label, r in zip(labels, ranks, strict=True):
            if label.unfit:
                cause = outgoing[0].error if outgoing else None
                raise ObjectError(bytes(label.beginning).decode("utf-8", "replace"), r) from cause

    def _broadcast_rest(self, outgoing: list[Departure], arrival: Arrival | None, root: int, timeout) -> None:
        """Move what follows the root's label to all others: each part by itself, from its own memory into fresh one."""
        for part in (outgoing[0] if arrival is None else arrival).parts():
            self.broadcast(part, root=root, timeout=timeout)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One call on objects at a time; what interrupts it between two of its collectives ends the communicator.

        The ranks would be out of step otherwise: some have a collective before them that this one will not come to.
        """
        with vars(self).setdefault("_object_turn", _Turn()):
            try:
                yield
            except BaseException as error:
                if not self.is_closed and not self.is_broken:
                    self.abort(f"{type(error).__name__}: {error}")
                raise


class _Turn:
    """A lock that a thread which has it already is refused: a signal handler must not call inside a call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise RuntimeError("a signal handler or callback made a call on objects inside one of its thread")
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *exc: object) -> None:
        self._holder = 0
        self._lock.release()


# ---- the two ends of a way -------------------------------------------------------------------------------------------


class Departure:
    """What follows the label of one object to be sent, as flat arrays of bytes in their order."""

    def __init__(self, pickled: Pickled | None = None, error: Exception | None = None) -> None:
        self.error = error
        self._parts = []
        if pickled is not None:
            self._parts = [pickled.stream[_BEGINNING_NBYTES:], *pickled.buffers]
        self.rest_nbytes = sum(part.nbytes for part in self._parts)

    def parts(self) -> Iterator[np.ndarray]:
        """The parts that are not empty, from where they are."""
        return (np.frombuffer(part, np.uint8) for part in self._parts if part.nbytes)


class Arrival:
    """An object under way to here."""

    def __init__(self, label: Label) -> None:
        self._letter = np.empty(label.letter_nbytes, np.uint8)
        self._letter[: label.beginning.nbytes] = label.beginning
        self._enclosures: list[np.ndarray] = []

    def parts(self) -> Iterator[np.ndarray]:
        """Where the parts go, each to be filled before the next is asked for: the letter tells of the enclosures."""
        if self._letter.nbytes > _BEGINNING_NBYTES:
            yield self._letter[_BEGINNING_NBYTES:]
        self._enclosures = empty_buffers(self._letter)
        yield from self._enclosures

    def open(self, sender: int) -> Any:
        """The object."""
        try:
            return unpack(self._letter, self._enclosures)
        except Exception as error:
            raise ObjectError(
                f"cannot unpickle what rank {sender} sent: {type(error).__name__}: {error}", sender
            ) from error


def _open_all(arrivals: Sequence[Arrival | None], own: object) -> list:
    return [own if arrival is None else arrival.open(r) for r, arrival in enumerate(arrivals)]


# ---- in pieces -------------------------------------------------------------------------------------------------------


def _carry(
    longest: int,
    outgoing: Sequence[Departure],
    arrivals: Sequence[Arrival | None],
    move: Callable[[np.ndarray], Any],
) -> None:
    """Carry departures to arrivals through collectives on blocks of equal size, staged piece by piece.

    ``move`` takes a block with one row per departure and returns one with a row per arrival. Where a departure is at
    its end its row says nothing; so this moves as much as if all were as long as the longest, whose length all ranks
    know. Collectives with a count per rank would do without padding and staging; here is where they belong.
    """
    readers = [departure.parts() for departure in outgoing]
    writers = [iter(()) if arrival is None else arrival.parts() for arrival in arrivals]
    sources, places = [_Run(parts) for parts in readers], [_Run(parts) for parts in writers]
    for start in range(0, longest, PIECE_NBYTES):
        nbytes = _rounded(min(PIECE_NBYTES, longest - start))
        block = np.empty((len(sources), nbytes), np.uint8)
        for row, source in enumerate(sources):
            for at, piece in source.take(nbytes):
                block[row, at : at + piece.nbytes] = piece
        received = move(block)
        for row, place in enumerate(places):
            for at, piece in place.take(nbytes):
                piece[:] = received[row, at : at + piece.nbytes]


def _rounded(nbytes: int) -> int:
    """Up to the next of a few sizes, an eighth apart: a collective is planned anew for each size."""
    grain = max(GRAIN_NBYTES, 1 << max(0, nbytes.bit_length() - 4))
    return -(-nbytes // grain) * grain


class _Run:
    """Parts, one after the other, as if they were one."""

    def __init__(self, parts: Iterator[np.ndarray]) -> None:
        self._parts = parts
        self._part = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Iterator[tuple[int, np.ndarray]]:
        """The next bytes, at most ``nbytes``: pairs of (where in them, a view of a part)."""
        at = 0
        while at < nbytes:
            if not self._part.nbytes:
                part = next(self._parts, None)
                if part is None:
                    return
                self._part = part
            piece, self._part = self._part[: nbytes - at], self._part[nbytes - at :]
            yield at, piece
            at += piece.nbytes


# ---- labels ----------------------------------------------------------------------------------------------------------


def _write(call: Call, root: int, unfit: bool, letter, letter_nbytes: int, rest: int, longest: int) -> np.ndarray:
    label = bytearray(LABEL_NBYTES)
    beginning = memoryview(letter)[:_BEGINNING_NBYTES]
    _HEAD.pack_into(label, 0, _MAGIC, call, unfit, root, letter_nbytes, rest, longest)
    label[_HEAD.size : _HEAD.size + beginning.nbytes] = beginning
    return np.frombuffer(label, np.uint8)


def _in_words(call: int, root: int) -> str:
    name = Call(call).name.lower()
    return f"{name}_object(root={root})" if root >= 0 else f"{name}_object()"


def _longest(labels: Sequence[Label]) -> int:
    return max(label.rest_nbytes for label in labels)
