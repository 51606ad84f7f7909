"""Messages between two ranks, and the barrier."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import jax

from shmring.collectives.p2p.requests import ANY_SOURCE, ANY_TAG
from shmring.core.base.arguments import checked_rank
from shmring.jax.functions.binding import Comm, Token, as_array, bind
from shmring.jax.functions.handler import Registered, registered

if TYPE_CHECKING:
    from jax.typing import ArrayLike

MOST_TAG = 2**31 - 2  # the one above is that of `permute`


class Status(NamedTuple):
    """Source and tag of a message: arrays of int32 without axes."""

    source: jax.Array
    tag: jax.Array


def send(x: ArrayLike, dst: int, tag: int = 0, *, comm: Comm = None, token: Token = None) -> Token:
    """Send ``x`` to a rank, which calls `recv` or `sendrecv`.

    Parameters
    ----------
    x, comm, token
        As in `all_gather`; not a pytree.
    dst : int
        The receiving rank.
    tag : int
        From 0 to 2**31 - 2.

    Returns
    -------
    None or jax.Array
        With a token, the next token.

    Notes
    -----
    Returns when the memory of ``x`` may be used again. A message that does not fit into the pair queue waits for its
    receiver, so two ranks that both send first may wait for each other: use `sendrecv`. No derivative, no batching.
    Raises as `all_reduce`, and `ValueError` for a wrong rank or tag.
    """
    entry = registered(comm)
    results = bind("send", [as_array(x)], entry, token, dst=checked_rank(dst, entry.comm.size, "dst"), tag=_tag(tag))
    return results[-1] if token is not None else None


@overload
def recv(
    like: ArrayLike | jax.ShapeDtypeStruct,
    src: int = ...,
    tag: int = ...,
    *,
    status: Literal[False] = ...,
    comm: Comm = ...,
    token: None = ...,
) -> jax.Array: ...
@overload
def recv(
    like: ArrayLike | jax.ShapeDtypeStruct,
    src: int = ...,
    tag: int = ...,
    *,
    status: Literal[True],
    comm: Comm = ...,
    token: None = ...,
) -> tuple[jax.Array, Status]: ...
@overload
def recv(
    like: ArrayLike | jax.ShapeDtypeStruct,
    src: int = ...,
    tag: int = ...,
    *,
    status: Literal[False] = ...,
    comm: Comm = ...,
    token: jax.Array,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def recv(
    like: ArrayLike | jax.ShapeDtypeStruct,
    src: int = ...,
    tag: int = ...,
    *,
    status: Literal[True],
    comm: Comm = ...,
    token: jax.Array,
) -> tuple[jax.Array, Status, jax.Array]: ...
def recv(
    like: ArrayLike | jax.ShapeDtypeStruct,
    src: int = ANY_SOURCE,
    tag: int = ANY_TAG,
    *,
    status: bool = False,
    comm: Comm = None,
    token: Token = None,
) -> Any:
    """Receive a message.

    Parameters
    ----------
    like : array_like or jax.ShapeDtypeStruct
        Shape and dtype of the message; values are ignored.
    src, tag : int
        Source and tag of the message; by default any.
    status : bool
        Also return the `Status` of the message.
    comm, token
        As in `all_reduce`.

    Returns
    -------
    jax.Array
        The message. With ``status`` or a token a tuple: the message, its `Status` if requested, the next token if there
        is one.

    Notes
    -----
    Derivatives take the result for a constant. Raises as `send`; a message of another length or dtype is a
    JaxRuntimeError.
    """
    entry = registered(comm)
    if not isinstance(like, jax.ShapeDtypeStruct):
        like = as_array(like)
    results = bind(
        "recv",
        [],
        entry,
        token,
        like=like,
        src=_source(src, entry),
        out_tag=_tag(tag, any_is_allowed=True),
    )
    return _with_status(results, status, token)


@overload
def sendrecv(
    x: ArrayLike,
    dst: int,
    src: int,
    *,
    tag: int = ...,
    out_tag: int = ...,
    status: Literal[False] = ...,
    comm: Comm = ...,
    token: None = ...,
) -> jax.Array: ...
@overload
def sendrecv(
    x: ArrayLike,
    dst: int,
    src: int,
    *,
    tag: int = ...,
    out_tag: int = ...,
    status: Literal[True],
    comm: Comm = ...,
    token: None = ...,
) -> tuple[jax.Array, Status]: ...
@overload
def sendrecv(
    x: ArrayLike,
    dst: int,
    src: int,
    *,
    tag: int = ...,
    out_tag: int = ...,
    status: Literal[False] = ...,
    comm: Comm = ...,
    token: jax.Array,
) -> tuple[jax.Array, jax.Array]: ...
@overload
def sendrecv(
    x: ArrayLike,
    dst: int,
    src: int,
    *,
    tag: int = ...,
    out_tag: int = ...,
    status: Literal[True],
    comm: Comm = ...,
    token: jax.Array,
) -> tuple[jax.Array, Status, jax.Array]: ...
def sendrecv(
    x: ArrayLike,
    dst: int,
    src: int,
    *,
    tag: int = 0,
    out_tag: int = 0,
    status: bool = False,
    comm: Comm = None,
    token: Token = None,
) -> Any:
    """Send ``x`` to a rank and receive an array like it, from the same rank or another one.

    Parameters
    ----------
    x, comm, token
        As in `all_gather`; not a pytree.
    dst, src : int
        The receiving rank, and the sending rank, which may be `shmring.ANY_SOURCE`.
    tag, out_tag : int
        Tags of the message that is sent, and of the one that is received, which may be `shmring.ANY_TAG`.
    status : bool
        As in `recv`.

    Returns
    -------
    jax.Array
        As `recv`.

    Notes
    -----
    Cannot deadlock. Raises as `send`. Transpose: `sendrecv` with ``dst`` and ``src``, and ``tag`` and ``out_tag``,
    exchanged; a call from any source or with any tag has none.
    """
    entry = registered(comm)
    results = bind(
        "sendrecv",
        [as_array(x)],
        entry,
        token,
        dst=checked_rank(dst, entry.comm.size, "dst"),
        src=_source(src, entry),
        tag=_tag(tag),
        out_tag=_tag(out_tag, any_is_allowed=True),
    )
    return _with_status(results, status, token)


def barrier(*, comm: Comm = None, token: Token = None) -> Token:
    """Wait until all ranks are in this call.

    Parameters
    ----------
    comm, token
        As in `all_reduce`.

    Returns
    -------
    None or jax.Array
        With a token, the next token.

    Notes
    -----
    Collective; raises as `all_reduce`. Ordered among the calls of this module, not among other computations.
    """
    results = bind("barrier", [], registered(comm), token)
    return results[-1] if token is not None else None


# ---- arguments, results ----------------------------------------------------------------------------------------------


def _source(src, entry: Registered) -> int:
    return ANY_SOURCE if operator.index(src) == ANY_SOURCE else checked_rank(src, entry.comm.size, "src")


def _tag(tag, any_is_allowed: bool = False) -> int:
    found = operator.index(tag)
    if not (0 <= found <= MOST_TAG or (any_is_allowed and found == ANY_TAG)):
        raise ValueError(f"tag={tag}: must be from 0 to {MOST_TAG}{', or ANY_TAG' if any_is_allowed else ''}")
    return found


def _with_status(results: list, status: bool, token):
    found = (results[0], Status(*results[1])) if status else (results[0],)
    found = found if token is None else (*found, results[-1])
    return found if len(found) > 1 else found[0]
