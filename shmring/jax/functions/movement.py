"""Collectives that move elements as they are, of any dtype of JAX."""

from __future__ import annotations

from collections.abc import Iterable

from shmring.core.base.arguments import checked_rank
from shmring.jax.functions.binding import Comm, Token, Tree, apply
from shmring.jax.functions.handler import registered


def all_gather(x: Tree, axis: int = 0, *, tiled: bool = False, comm: Comm = None, token: Token = None) -> Tree:
    """Collect ``x`` of all ranks, in rank order, on every rank.

    Parameters
    ----------
    x : array_like or pytree of them
        Shape and dtype equal on all ranks; any dtype of JAX.
    axis : int
        The new axis, of length size. If tiled: an axis of ``x``, along which the arrays are joined.
    tiled : bool
    comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array or pytree of them
        Like ``x``, but for the axis. With a token: a pair of it and the next token.

    Notes
    -----
    Collective; raises as `all_reduce`. Transpose: `reduce_scatter` by sum.
    """
    return apply("all_gather", x, comm, token, joined=(axis, tiled))


def gather(x: Tree, root: int = 0, *, comm: Comm = None, token: Token = None) -> Tree:
    """Collect ``x`` of all ranks, in rank order, on the root; the others get zeros.

    Parameters
    ----------
    x, comm, token
        As in `all_gather`.
    root : int

    Returns
    -------
    jax.Array of shape ``(size, *x.shape)``, or pytree of them
        With a token: a pair of it and the next token.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for a wrong root. Transpose: `scatter`.
    """
    return apply("gather", x, comm, token, root=root)


def scatter(x: Tree, root: int = 0, *, comm: Comm = None, token: Token = None) -> Tree:
    """Distribute the blocks of the root's ``x``: rank i gets ``x[i]``.

    Parameters
    ----------
    x : array_like of shape ``(size, *S)``, or pytree of them
        Shape and dtype equal on all ranks; the values of other ranks than the root are ignored.
    root : int
    comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array of shape S, or pytree of them
        With a token: a pair of it and the next token.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for a wrong root or shape. Transpose: `gather`.
    """
    return apply("scatter", x, comm, token, blocks=(0, False), root=root)


def all_to_all(
    x: Tree, split_axis: int = 0, concat_axis: int = 0, *, tiled: bool = False, comm: Comm = None, token: Token = None
) -> Tree:
    """Exchange blocks: this rank gets block number *rank* of the ``x`` of each rank, in rank order.

    Parameters
    ----------
    x, comm, token
        As in `all_gather`.
    split_axis : int
        The axis of the blocks, of length size; the result lacks it. If tiled: its length is a multiple of size, and is
        divided by size in the result.
    concat_axis : int
        The new axis, of length size. If tiled: the axis along which the blocks are joined.
    tiled : bool

    Returns
    -------
    jax.Array or pytree of them
        As `jax.lax.all_to_all`. With a token: a pair of it and the next token.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for an axis of another length. Transpose: `all_to_all` with the
    axes exchanged.
    """
    return apply("all_to_all", x, comm, token, blocks=(split_axis, tiled), joined=(concat_axis, tiled))


def broadcast(x: Tree, root: int = 0, *, comm: Comm = None, token: Token = None) -> Tree:
    """Return the root's ``x`` on every rank.

    Parameters
    ----------
    x : array_like or pytree of them
        Shape and dtype equal on all ranks; any dtype of JAX. The values of other ranks than the root are ignored.
    root : int
    comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array or pytree of them
        Like ``x``. With a token: a pair of it and the next token.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for a wrong root. Transpose: `reduce` by sum.
    """
    return apply("broadcast", x, comm, token, root=root)


def permute(x: Tree, pairs: Iterable[tuple[int, int]], *, comm: Comm = None, token: Token = None) -> Tree:
    """Send ``x`` along pairs of ranks, as `jax.lax.ppermute`.

    Parameters
    ----------
    x, comm, token
        As in `all_gather`.
    pairs : iterable of (source, destination)
        Equal on all ranks. A rank is at most once a source and at most once a destination.

    Returns
    -------
    jax.Array or pytree of them
        The ``x`` of the source; zeros on a rank that is no destination. With a token: a pair of it and the next token.

    Notes
    -----
    Raises as `all_reduce`, and `ValueError` for wrong pairs. Sends messages with a tag of its own, so only ranks that
    occur in the pairs wait for each other. Transpose: `permute` with each pair reversed.
    """
    entry = registered(comm)
    size = entry.comm.size
    found = tuple((checked_rank(s, size, "source"), checked_rank(d, size, "destination")) for s, d in pairs)
    for place, what in enumerate(("source", "destination")):
        if len({pair[place] for pair in found}) < len(found):
            raise ValueError(f"pairs={found}: a rank is more than once a {what}")
    return apply("permute", x, entry, token, pairs=found)
