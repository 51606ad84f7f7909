"""From a call of the user to calls of primitives: checks arguments, takes trees apart, passes tokens."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from shmring.communicator import Communicator
from shmring.core.base.arguments import checked_rank
from shmring.dtypes import DTYPE_CODES, OPS, is_defined, op_code
from shmring.errors import ClosedError
from shmring.jax.functions.handler import Registered, registered
from shmring.jax.functions.operations import PRIMITIVES, TOKEN

Comm: TypeAlias = Communicator | str | None
Tree: TypeAlias = Any
"""An array, or a pytree of arrays; of results each is a `jax.Array`. Types cannot express that."""
Token: TypeAlias = jax.Array | None
_Axis: TypeAlias = tuple[int, bool] | None


def new_token() -> jax.Array:
    """Return a token: calls that pass it on, from the result of one to the argument of the next, are in that order.

    Returns
    -------
    jax.Array
        One byte; its value has no meaning.

    Notes
    -----
    A call with ``token=`` has no effect in the sense of JAX; only the token orders it among other calls. So a program
    passes *one* token through *all* its calls, in the same order on all ranks.
    """
    return jnp.zeros(TOKEN.shape, TOKEN.dtype)


# ---- calls -----------------------------------------------------------------------------------------------------------


def bind(name: str, operands: list, entry: Registered, token, like=None, **parameters) -> list:
    """Bind one call: ordered, or with a token after operands and results. ``like``: the result of a receive."""
    if entry.comm.closed:
        raise ClosedError(f"{entry!r}: is closed")
    if like is not None:
        parameters["like"] = (like.shape, carrier(like.dtype))
    given = [x.dtype for x in (*operands, like) if x is not None]
    operands = [x.astype(carrier(x.dtype)) for x in operands]
    if token is not None:
        token = jnp.asarray(token)
        if token.shape != TOKEN.shape or token.dtype != TOKEN.dtype:
            raise TypeError(f"token={token!r}: must be of new_token(), or of the call before")
        operands.append(token)
    results = PRIMITIVES[name].bind(*operands, comm=entry, ordered=token is None, **parameters)
    if given and given[0] != carrier(given[0]) and name != "send":
        results[0] = results[0].astype(given[0])
    return results


def apply(name: str, tree, comm: Comm, token, *, blocks: _Axis = None, joined: _Axis = None, **parameters):
    """Bind a call for each array of a tree.

    ``blocks``: the axis with the blocks of the operand, and whether it is tiled; ``joined``: that of the result.
    """
    entry = registered(comm)
    if "root" in parameters:
        parameters["root"] = checked_rank(parameters["root"], entry.comm.size, "root")
    leaves, structure = jax.tree.flatten(tree)
    results = []
    for leaf in leaves:
        x = as_array(leaf)
        if blocks is not None:
            x = to_blocks(x, *blocks, entry.comm.size)
        y, *rest = bind(name, [x], entry, token, **parameters)
        results.append(y if joined is None else from_blocks(y, *joined))
        token = rest[-1] if rest else None
    found = jax.tree.unflatten(structure, results)
    return found if token is None else (found, token)


def combine(name: str, tree, op: str, comm: Comm, token, **parameters):
    """`apply` for a reduction: check the operation and the dtypes."""
    canonical = OPS[op_code(op)]
    for leaf in jax.tree.leaves(tree):
        dtype = np.dtype(as_array(leaf).dtype).name
        if dtype not in DTYPE_CODES:
            raise TypeError(f"{name}: {dtype} cannot be combined; convert it, or use a call that only moves elements")
        if not is_defined(canonical, dtype):
            raise ValueError(f"{name}: op={op!r} is not defined for {dtype}")
    return apply(name, tree, comm, token, op=canonical, **parameters)


# ---- arguments -------------------------------------------------------------------------------------------------------


def as_array(x: Any) -> jax.Array:
    x = jnp.asarray(x)
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(f"arrays of {x.dtype} have no bytes to send; for a key use jax.random.key_data")
    return x


def carrier(dtype) -> np.dtype:
    """The dtype in which elements are sent: XLA may pack elements of less than a byte."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else np.uint8)
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 8:
        return np.dtype(np.float32)
    return np.dtype(dtype)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def check_axis(axis: int, ndim: int) -> int:
    found = operator.index(axis)
    if not -ndim <= found < ndim:
        raise ValueError(f"axis={axis}: the array has {ndim} axes")
    return found % ndim


def to_blocks(x, axis: int, tiled: bool, size: int) -> jax.Array:
    """Make the axis of blocks the leading one."""
    axis = check_axis(axis, x.ndim)
    length = x.shape[axis]
    if tiled and length % size == 0:
        x = x.reshape(*x.shape[:axis], size, length // size, *x.shape[axis + 1 :])
    elif tiled or length != size:
        wanted = f"a multiple of {size}" if tiled else str(size)
        raise ValueError(f"axis {axis} of an array of shape {x.shape} has the blocks: its length must be {wanted}")
    return jnp.moveaxis(x, axis, 0)


def from_blocks(y: jax.Array, axis: int, tiled: bool) -> jax.Array:
    """Move the leading axis of blocks to ``axis``."""
    if not tiled:
        return jnp.moveaxis(y, 0, check_axis(axis, y.ndim))
    axis = check_axis(axis, y.ndim - 1)
    y = jnp.moveaxis(y, 0, axis)
    return y.reshape(*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :])
