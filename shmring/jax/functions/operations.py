"""The table of operations, and the primitives of JAX that are made from it.

Each row defines an operation: the shape of its result, and its transpose. Abstract evaluation,
lowering, batching, jvp and transpose are written once, for all rows.

An operation moves whole elements between ranks, or combines them one by one, and leaves the order within an array as it
is. So the only axis with a meaning is the leading one of an operand or result that has a block for each rank; a batch
axis is an axis like others behind it.

Each call is bound in one of two ways. *Ordered*: with an ordered effect of JAX, whose token XLA passes from call to
call in program order. By *token*: with an array of one byte as last operand and last result, which the program passes.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core, dispatch, effects
from jax._src.interpreters import mlir
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from shmring.collectives.p2p.requests import ANY_SOURCE, ANY_TAG
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.dtypes import LINEAR_OPS, OP_CODES
from shmring.jax.functions.handler import Registered, capsule, name_of

TARGET = "shmring"
TOKEN = core.ShapedArray((1,), np.dtype(np.uint8))
STATUS = core.ShapedArray((2,), np.dtype(np.int32))
NO_PEER = -2
BY_NAME = -1  # instead of the number of a communicator


@dataclass(frozen=True)
class Operation:
    """A row: the operands and results, the number in C, and the transpose as a function of the cotangent."""

    name: str
    kind: int = 0  # 0: no communication
    x: bool = True
    out: bool = True
    x_blocks: bool = False  # the operand has a leading axis, a block for each rank
    out_blocks: bool = False
    status: bool = False
    transpose: Callable | None = None  # of the sum: (cotangent, Registered, **parameters) -> cotangent of the operand
    nterms: Callable = lambda comm: comm.size  # how many terms the result of `avg` has on this rank

    def avals(self, *operands, comm, ordered, like=None, **_):
        """Types of the results, and effects."""
        results = []
        if self.out:
            shape, dtype = like or (operands[0].shape, operands[0].dtype)
            shape = shape[1:] if self.x_blocks else shape
            shape = (comm.comm.size, *shape) if self.out_blocks else shape
            results.append(core.ShapedArray(shape, dtype))
        if self.status:
            results.append(STATUS)
        if not ordered:
            results.append(TOKEN)
        return results, {EFFECT} if ordered and self.kind else set()


# ---- the table -------------------------------------------------------------------------------------------------------


def call(name: str, x, comm: Registered, **parameters) -> Any:
    """Bind an ordered call with one result."""
    return PRIMITIVES[name].bind(x, comm=comm, ordered=True, **parameters)[0]


def _call_of(name: str, *kept: str, **more: str) -> Callable:
    """A transpose that is the call of another operation with some of the parameters, and ``more``."""
    return lambda ct, comm, **given: call(name, ct, comm, **more, **{key: given[key] for key in kept})


def _permute_back(ct, comm, pairs):
    return call("permute", ct, comm, pairs=tuple((dest, source) for source, dest in pairs))


def _send_back(ct, comm, dst, src, tag, out_tag):
    if src == ANY_SOURCE or out_tag == ANY_TAG:
        raise ValueError("sendrecv from any source or with any tag has no transpose: name the source and the tag")
    return call("sendrecv", ct, comm, dst=src, src=dst, tag=out_tag, out_tag=tag)


def _scan_back(name: str) -> Callable:
    """A scan from the last rank to the first: mirror the ranks, scan, mirror them again."""

    def transpose(ct, comm, **_):
        last = comm.comm.size - 1
        mirror = partial(call, "permute", comm=comm, pairs=tuple((rank, last - rank) for rank in range(last + 1)))
        return mirror(call(name, mirror(ct), comm, op="sum"))

    return transpose


def _collective(name: str, **rules) -> Operation:
    kind = COLLECTIVES[name]
    return Operation(name, kind.code, x_blocks=bool(kind.blocks_in), out_blocks=bool(kind.blocks_out), **rules)


# Kinds: collectives/plan/kinds.py, and handler.pyx from 101 on. Exported graphs contain them, so none may change.
TABLE = (
    _collective("all_reduce", transpose=_call_of("copy_to_all")),
    Operation("copy_to_all", transpose=_call_of("all_reduce", op="sum")),
    _collective("reduce", transpose=_call_of("broadcast", "root")),
    _collective("broadcast", transpose=_call_of("reduce", "root", op="sum")),
    _collective("all_gather", transpose=_call_of("reduce_scatter", op="sum")),
    _collective("reduce_scatter", transpose=_call_of("all_gather")),
    _collective("gather", transpose=_call_of("scatter", "root")),
    _collective("scatter", transpose=_call_of("gather", "root")),
    _collective("all_to_all", transpose=_call_of("all_to_all")),
    _collective("scan", transpose=_scan_back("scan"), nterms=lambda comm: comm.rank + 1),
    _collective("exscan", transpose=_scan_back("exscan"), nterms=lambda comm: max(comm.rank, 1)),
    _collective("barrier", x=False, out=False),
    Operation("send", 101, out=False),
    Operation("recv", 102, x=False, status=True),
    Operation("sendrecv", 103, status=True, transpose=_send_back),
    Operation("permute", 104, transpose=_permute_back),
)


# ---- order -----------------------------------------------------------------------------------------------------------


class OrderedCalls(effects.Effect):
    """The effect of an ordered call. There is one for all communicators: all calls of a program are in one order."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "shmring"


EFFECT = OrderedCalls()
for _allowed in (
    effects.ordered_effects,
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(OrderedCalls)


@atexit.register  # after the engine's, so executed before it: calls that were dispatched are made before we leave
def _finish_calls() -> None:
    with contextlib.suppress(Exception):  # jax has a function of its own at exit, which reports the error
        jax.effects_barrier()


# ---- rules -----------------------------------------------------------------------------------------------------------


def describe(
    operation: Operation, number: int, nranks: int, name: bytes, *,
    op="sum", root=0, src=NO_PEER, dst=NO_PEER, tag=0, out_tag=0, pairs=(),
) -> np.ndarray:  # fmt: skip
    """The first operand of the custom call, as `handler` reads it. Exported graphs contain it."""
    numbers = (number, operation.kind, nranks, OP_CODES[op], root, src, dst, tag, out_tag, len(name))
    return np.array([*numbers, *name, *(rank for pair in pairs for rank in pair)], np.int64)


def _lower(operation: Operation, ctx, *operands, comm, ordered, like=None, **parameters):
    """The custom call, with its description as an operand, and the token of XLA if it is ordered."""
    module = ctx.module_context
    number, name = comm.number, b""
    if module.lowering_parameters.for_export:
        number, name = BY_NAME, name_of(comm).encode()
    else:
        module.add_keepalive(comm)
    described = describe(operation, number, comm.comm.size, name, **parameters)
    avals = [core.ShapedArray(described.shape, described.dtype), *ctx.avals_in]
    operands = (mlir.ir_constant(described), *operands)
    lower = jax.ffi.ffi_lowering(TARGET, has_side_effect=True)
    if not ordered:
        _check_one_device(operation, module.axis_context)
        return lower(ctx.replace(avals_in=avals), *operands)
    with_token = ctx.replace(avals_in=[core.abstract_token, *avals], avals_out=[core.abstract_token, *ctx.avals_out])
    token, *results = lower(with_token, ctx.tokens_in.get(EFFECT), *operands)
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({EFFECT: token})))
    return results


def _check_one_device(operation: Operation, context) -> None:
    """JAX itself refuses ordered effects for several devices."""
    ndevices = context.mesh.size if hasattr(context, "mesh") else context.num_devices
    if ndevices > 1:
        raise ValueError(
            f"shmring.jax.{operation.name} in a computation for {ndevices} devices: a rank is one process with one "
            "device; use it outside of shard_map and in a jit without a sharding over several devices"
        )


def _batch(operation: Operation, args, dims, **parameters):
    primitive = PRIMITIVES[operation.name]
    x, d = args[0], dims[0]
    if any(dim is not None for dim in dims[1:]):
        raise ValueError(f"shmring.jax.{operation.name}: the token has a batch axis; pass it with in_axes=None")
    if operation.x_blocks or operation.out_blocks:
        x, d = jnp.moveaxis(x, d, int(operation.x_blocks)), int(operation.out_blocks)
    results = primitive.bind(x, *args[1:], **parameters)
    return results, [d, *[None] * (len(results) - 1)]


def _jvp(operation: Operation, primals, tangents, **parameters):
    primitive = PRIMITIVES[operation.name]
    results = primitive.bind(*primals, **parameters)
    zeros = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    dx = tangents[0] if tangents else None
    if dx is None or type(dx) is ad.Zero:
        return results, zeros
    op = parameters.get("op", "sum")
    if not parameters["ordered"]:
        raise NotImplementedError(
            f"shmring.jax.{operation.name} with a token has no derivative: the order of its calls and those of the "
            "derivative would be undefined. Call it without a token, or outside of the function that is differentiated"
        )
    if operation.transpose is not None and op in LINEAR_OPS:
        dy = primitive.bind(dx, **parameters)[0]
    elif operation.name == "all_reduce" and op in ("min", "max"):
        dy = _jvp_of_extremum(primals[0], results[0], dx, parameters["comm"])
    elif operation.out:
        raise NotImplementedError(
            f"shmring.jax.{operation.name} with op={op!r} has no derivative; sum and avg have one, and min and max of "
            "all_reduce"
        )
    else:
        raise NotImplementedError("shmring.jax.send has no derivative: use sendrecv or permute, which have one")
    return results, [dy, *zeros[1:]]


def _jvp_of_extremum(x, y, dx, comm):
    """The tangent of the rank that has the extremum; the mean if several ranks have it, as in `jnp.max`."""
    is_extreme = (x == y).astype(dx.dtype)
    return call("all_reduce", dx * is_extreme / call("all_reduce", is_extreme, comm, op="sum"), comm, op="sum")


def _transpose(operation: Operation, cotangents, x, *, ordered, like=None, **parameters):
    ct = cotangents[0]
    if type(ct) is ad.Zero:
        return [ad.Zero(x.aval.to_tangent_aval())]
    assert operation.transpose is not None  # else it has no rule
    op = parameters.get("op", "sum")
    if op not in LINEAR_OPS or not ordered:
        raise NotImplementedError(f"shmring.jax.{operation.name} has a transpose for sum and avg, and without a token")
    if op == "avg":
        ct = ct / operation.nterms(parameters["comm"].comm)
    return [operation.transpose(ct, **parameters)]


# ---- primitives ------------------------------------------------------------------------------------------------------


def _primitive(operation: Operation) -> Primitive:
    """Make the primitive of a row."""
    primitive = Primitive(f"shmring_{operation.name}")
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(operation.avals)
    if operation.kind:
        primitive.def_impl(partial(dispatch.apply_primitive, primitive))
        mlir.register_lowering(primitive, partial(_lower, operation), platform="cpu")
    else:
        primitive.def_impl(lambda x, **_: [x])
        mlir.register_lowering(primitive, lambda ctx, x, **_: [x])
    ad.primitive_jvps[primitive] = partial(_jvp, operation)
    if operation.transpose is not None:
        ad.primitive_transposes[primitive] = partial(_transpose, operation)
        batching.primitive_batchers[primitive] = partial(_batch, operation)
    return primitive


PRIMITIVES = {operation.name: _primitive(operation) for operation in TABLE}
jax.ffi.register_ffi_target(TARGET, capsule(), platform="cpu")
