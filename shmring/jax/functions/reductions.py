"""Collectives that combine the arrays of all ranks, and `copy_to_all`, their transpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmring.jax.functions.binding import Comm, Token, Tree, apply, combine

if TYPE_CHECKING:
    from shmring.typing import OpName


def all_reduce(x: Tree, op: OpName = "sum", *, comm: Comm = None, token: Token = None) -> Tree:
    """Combine ``x`` element by element over all ranks; every rank gets the same bits.

    Parameters
    ----------
    x : array_like or pytree of them
        Shape and dtype equal on all ranks.
    op : str
        As in `shmring.Communicator.all_reduce`, but no callable.
    comm : Communicator or str, optional
        The communicator or its name; by default `communicator()`. Static under `jax.jit`.
    token : jax.Array, optional
        The result of `new_token`, or the token that the call before has returned. By default calls are made in program
        order.

    Returns
    -------
    jax.Array or pytree of them
        Like ``x``. With a token: a pair of it and the next token.

    Raises
    ------
    TypeError
        ``x`` is no array of numbers, or its dtype cannot be combined.
    ValueError
        An unknown ``op``, or one that is not defined for the dtype.
    jax.errors.JaxRuntimeError
        During execution: an error of the engine, with its name and text.

    Notes
    -----
    Collective. ``sum``, ``avg``, ``min`` and ``max`` have derivatives. The result is one value that all ranks share,
    so the transpose is `copy_to_all`, the identity, and that of `copy_to_all` is ``all_reduce``.
    """
    return combine("all_reduce", x, op, comm, token)


def copy_to_all(x: Tree, *, comm: Comm = None) -> Tree:
    """Return ``x``, which is equal on all ranks; its gradients are summed over the ranks.

    Parameters
    ----------
    x : array_like or pytree of them
        Equal on all ranks, for example the parameters of a model.
    comm : Communicator or str, optional
        As in `all_reduce`.

    Returns
    -------
    jax.Array or pytree of them
        ``x``.

    Notes
    -----
    No communication; the transpose is `all_reduce` by sum. It marks where a value that all ranks share enters the
    computations of each, as `all_reduce` marks where they become one value again.
    """
    return apply("copy_to_all", x, comm, None)


def reduce(x: Tree, op: OpName = "sum", root: int = 0, *, comm: Comm = None, token: Token = None) -> Tree:
    """Combine ``x`` element by element over all ranks on the root; the others get zeros.

    Parameters
    ----------
    x, op, comm, token
        As in `all_reduce`.
    root : int

    Returns
    -------
    jax.Array or pytree of them
        As in `all_reduce`.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for a wrong root. Transpose: `broadcast`.
    """
    return combine("reduce", x, op, comm, token, root=root)


def reduce_scatter(
    x: Tree, op: OpName = "sum", axis: int = 0, *, tiled: bool = False, comm: Comm = None, token: Token = None
) -> Tree:
    """Combine ``x`` element by element over all ranks; rank i gets block i of the result.

    Parameters
    ----------
    x, op, comm, token
        As in `all_reduce`.
    axis : int
        The axis of the blocks, of length size; the result lacks it. If tiled: its length is a multiple of size, and is
        divided by size in the result.
    tiled : bool

    Returns
    -------
    jax.Array or pytree of them
        Like ``x``, but for the axis.

    Notes
    -----
    Collective; raises as `all_reduce`, and `ValueError` for an axis of another length. Transpose: `all_gather`.
    """
    return combine("reduce_scatter", x, op, comm, token, blocks=(axis, tiled))


def scan(x: Tree, op: OpName = "sum", *, comm: Comm = None, token: Token = None) -> Tree:
    """Combine ``x`` element by element over the ranks 0 to this one.

    Parameters
    ----------
    x, op, comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array or pytree of them
        As in `all_reduce`.

    Notes
    -----
    Collective; raises as `all_reduce`. Transpose: the scan from the last rank to this one.
    """
    return combine("scan", x, op, comm, token)


def exscan(x: Tree, op: OpName = "sum", *, comm: Comm = None, token: Token = None) -> Tree:
    """Combine ``x`` element by element over the ranks before this one; rank 0 gets zeros.

    Parameters
    ----------
    x, op, comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array or pytree of them
        As in `all_reduce`.

    Notes
    -----
    Collective; raises as `all_reduce`. Transpose: the exscan from the last rank to this one.
    """
    return combine("exscan", x, op, comm, token)
