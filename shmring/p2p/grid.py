"""Ranks in a Cartesian grid: coordinates and neighbours."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence


class Grid:
    """Ranks in a Cartesian grid; made by `grid`. The last coordinate changes fastest, as in C and in MPI.

    Attributes
    ----------
    dims : tuple of int
        The number of ranks along each axis.
    periodic : tuple of bool
        By axis: whether the first and the last rank are neighbours.
    size : int
        The number of ranks.
    """

    def __init__(self, dims: tuple[int, ...], periodic: tuple[bool, ...]) -> None:
        self.dims, self.periodic, self.size = dims, periodic, math.prod(dims)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """The coordinates of a rank.

        Parameters
        ----------
        rank : int

        Returns
        -------
        tuple of int
            The coordinate along each axis.

        Raises
        ------
        ValueError
            The grid has no such rank.
        """
        rank = operator.index(rank)
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank}: must be from 0 to {self.size - 1}, as the grid is {self.dims}")
        found = []
        for extent in reversed(self.dims):
            rank, coordinate = divmod(rank, extent)
            found.append(coordinate)
        return tuple(reversed(found))

    def rank(self, coordinates: Sequence[int]) -> int | None:
        """The rank at these coordinates.

        Parameters
        ----------
        coordinates : sequence of int
            The coordinate along each axis; on a periodic axis any integer, which is wrapped around.

        Returns
        -------
        int or None
            None if they are outside of the grid; `Communicator.send`, `Communicator.recv` and `Communicator.sendrecv`
            accept it.

        Raises
        ------
        ValueError
            The number of coordinates is not that of the axes.
        """
        if len(coordinates) != len(self.dims):
            raise ValueError(f"coordinates={coordinates!r}: the grid has {len(self.dims)} axes")
        rank = 0
        for place, extent, wraps in zip(map(operator.index, coordinates), self.dims, self.periodic, strict=True):
            if not (wraps or 0 <= place < extent):
                return None
            rank = rank * extent + place % extent
        return rank

    def neighbours(self, rank: int) -> list[tuple[int | None, int | None]]:
        """The neighbours of a rank.

        Parameters
        ----------
        rank : int

        Returns
        -------
        list of tuple
            By axis, the ranks before and after it; None: there is none.

        Raises
        ------
        ValueError
            The grid has no such rank.
        """
        here = self.coordinates(rank)

        def beside(axis: int, step: int) -> int | None:
            return self.rank([place + step * (i == axis) for i, place in enumerate(here)])

        return [(beside(axis, -1), beside(axis, 1)) for axis in range(len(self.dims))]

    def __repr__(self) -> str:
        return f"shmring.grid({self.dims}, periodic={self.periodic})"


def grid(dims: int | Sequence[int], periodic: bool | Sequence[bool] = False, *, size: int | None = None) -> Grid:
    """Arrange ranks in a Cartesian grid.

    Parameters
    ----------
    dims : int or sequence of int
        The number of ranks along each axis. With ``size`` some may be 0: they are chosen so that the grid has ``size``
        ranks, and are as equal as possible.
    periodic : bool or sequence of bool
        Whether the first and the last rank along an axis are neighbours; one value for all axes, or one for each.
    size : int, optional
        The number of ranks.

    Returns
    -------
    Grid

    Raises
    ------
    ValueError
        A number along an axis is negative, or 0 without ``size``; their product is not ``size``, or does not divide it;
        ``periodic`` has not one value for each axis.

    Notes
    -----
    Arithmetic alone: nothing is sent.

    Examples
    --------
    >>> place = shmring.grid((0, 0), periodic=(True, False), size=6)
    >>> place.dims, place.coordinates(4), place.neighbours(4)
    ((3, 2), (2, 0), [(2, 0), (None, 5)])
    """
    extents = [operator.index(n) for n in ([dims] if hasattr(dims, "__index__") else dims)]
    wraps = [bool(periodic)] * len(extents) if isinstance(periodic, (bool, int)) else [bool(one) for one in periodic]
    if not extents or min(extents) < (size is None):
        raise ValueError(f"dims={dims!r}: must be positive numbers of ranks, or 0 where size= is given")
    if len(wraps) != len(extents):
        raise ValueError(f"periodic={periodic!r}: must be one value, or one for each of {len(extents)} axes")
    if size is not None:
        extents = _filled(extents, operator.index(size))
    return Grid(tuple(extents), tuple(wraps))


def _filled(extents: list[int], size: int) -> list[int]:
    """The extents with those that are 0 chosen: the larger factors first, as in MPI."""
    given = math.prod(n for n in extents if n)
    free = extents.count(0)
    if size < 1 or size % given or (not free and given != size):
        raise ValueError(f"dims={tuple(extents)}: the grid cannot have size={size} ranks")
    chosen = [1] * free
    for factor in sorted(_prime_factors(size // given), reverse=True) if free else ():
        chosen[chosen.index(min(chosen))] *= factor
    rest = iter(sorted(chosen, reverse=True))
    return [n or next(rest) for n in extents]


def _prime_factors(number: int) -> list[int]:
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found + [number] * (number > 1)
