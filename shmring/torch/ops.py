"""Custom operators: collectives that `torch.compile` and `torch.export` keep in their graphs.

    from shmring.torch import ops
    y = ops.all_reduce(x)               # a new tensor, with gradients
    ops.all_reduce_(x)                  # in place, without
    torch.ops.shmring.all_reduce(x)     # the operator in graphs

A graph holds names, not objects: ``comm`` is the name of a communicator (`shmring.torch.set_communicator`), ``""`` the
default one. The operators are defined by `torch.library.Library` and not by its decorators, which take ten times as
long in each call. For eager calls `shmring.torch.all_reduce_` is faster.

Gradients are those of the sum of all ranks' losses: the backward pass makes the transposed collective.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.library import Library, register_autograd, register_fake

import shmring.torch.tensor_calls as tensor_calls
from shmring.dtypes import LINEAR_OPS, OPS, op_code
from shmring.launch.named import communicator

__all__ = ["all_gather", "all_reduce", "all_reduce_", "reduce_scatter"]

_library = Library("shmring", "DEF")
_ops = torch.ops.shmring


# ---- what users call -------------------------------------------------------------------------------------------------


def all_reduce(x: torch.Tensor, op: str = "sum", comm: str = "") -> torch.Tensor:
    """Combine ``x`` element by element over all ranks into a new tensor; every rank gets the same bits.

    Parameters
    ----------
    x : torch.Tensor
        On the CPU; shape and dtype equal on all ranks.
    op : str
        As in `shmring.Communicator.all_reduce`, but no callable. ``sum`` and ``avg`` have gradients.
    comm : str
        The name of the communicator; ``""``: the default one.

    Returns
    -------
    torch.Tensor
        Contiguous, of the shape of ``x``.

    Notes
    -----
    Collective, and so is the backward pass: all ranks run it, or none. Raises as `shmring.Communicator.all_reduce`, and
    `KeyError` for an unknown name.
    """
    return _ops.all_reduce.default(x, op, comm)


def all_reduce_(x: torch.Tensor, op: str = "sum", comm: str = "") -> torch.Tensor:
    """Combine ``x`` element by element over all ranks, in place, without gradients.

    Parameters
    ----------
    x, op, comm
        As in `all_reduce`.

    Returns
    -------
    torch.Tensor
        ``x``.

    Notes
    -----
    Collective; raises as `all_reduce`. For inference, where graphs are made without gradients.
    """
    _ops.all_reduce_.default(x, op, comm)
    return x


def all_gather(x: torch.Tensor, comm: str = "") -> torch.Tensor:
    """Collect the tensors of all ranks, in rank order, on every rank, with gradients.

    Parameters
    ----------
    x, comm
        As in `all_reduce`.

    Returns
    -------
    torch.Tensor of shape ``(size, *x.shape)``
        ``.flatten(0, 1)`` of it is the concatenation.

    Notes
    -----
    Raises as `all_reduce`. Collective, and so is the backward pass, which is a `reduce_scatter`: the gradients of a
    part are summed over all ranks on the rank that contributed it.
    """
    return _ops.all_gather.default(x, comm)


def reduce_scatter(x: torch.Tensor, op: str = "sum", comm: str = "") -> torch.Tensor:
    """Combine the tensors of all ranks; rank i gets ``x[i]`` of the result, with gradients.

    Parameters
    ----------
    x : torch.Tensor of shape ``(size, *S)``
        Shape and dtype equal on all ranks.
    op, comm
        As in `all_reduce`.

    Returns
    -------
    torch.Tensor of shape S

    Notes
    -----
    Collective, and so is the backward pass, which is an `all_gather`. Raises as `all_reduce`.
    """
    return _ops.reduce_scatter.default(x, op, comm)


# ---- implementations -------------------------------------------------------------------------------------------------


def _all_reduce(x, op="sum", comm=""):
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    return communicator(comm).all_reduce(x, out, op=op)


def _all_reduce_(x, op="sum", comm=""):
    tensor_calls.all_reduce_(x, op, comm=comm)


def _all_gather(x, comm=""):
    return communicator(comm).all_gather(x)


def _reduce_scatter(x, op="sum", comm=""):
    return communicator(comm).reduce_scatter(x, op=op)


# ---- shapes, for tracing -----------------------------------------------------------------------------------------


def _nothing(*args: Any) -> None:
    """For an operator whose schema is sufficient."""


def _like(x, op="sum", comm=""):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _gathered(x, comm=""):
    return x.new_empty((communicator(comm).size, *x.shape))


def _scattered(x, op="sum", comm=""):
    size = communicator(comm).size
    torch._check(
        x.dim() > 0 and x.shape[0] == size, lambda: f"x has shape {x.shape}; its first dimension must be {size}"
    )
    return x.new_empty(x.shape[1:])


# ---- gradients -------------------------------------------------------------------------------------------------------


def _keep_call(ctx, inputs, output):
    *_, ctx.op, ctx.comm = inputs


def _keep_gather(ctx, inputs, output):
    _, ctx.comm = inputs


def _transposed_all_reduce(ctx, gradient):
    _check_linear("all_reduce", ctx.op)
    return all_reduce(gradient, ctx.op, ctx.comm), None, None


def _transposed_all_gather(ctx, gradient):
    return reduce_scatter(gradient, "sum", ctx.comm), None


def _transposed_reduce_scatter(ctx, gradient):
    op = _check_linear("reduce_scatter", ctx.op)
    gathered = all_gather(gradient, ctx.comm)
    return (gathered if op == "sum" else gathered / gathered.shape[0]), None, None


def _check_linear(name: str, op: str) -> str:
    """The canonical name of ``op``, which must have a gradient."""
    found = OPS[op_code(op)]
    if found not in LINEAR_OPS:
        raise NotImplementedError(f"{name}(op={op!r}) has no gradient; {', '.join(LINEAR_OPS)} have")
    return found


# ---- the definitions -------------------------------------------------------------------------------------------------

_OPERATORS = (
    # schema, what it does, its shapes, and for those with gradients what to keep and the transposed
    ("all_reduce_(Tensor(a!) x, str op='sum', str comm='') -> ()", _all_reduce_, _nothing, None),
    (
        "all_reduce(Tensor x, str op='sum', str comm='') -> Tensor",
        _all_reduce,
        _like,
        (_keep_call, _transposed_all_reduce),
    ),
    (
        "all_gather(Tensor x, str comm='') -> Tensor",
        _all_gather,
        _gathered,
        (_keep_gather, _transposed_all_gather),
    ),
    (
        "reduce_scatter(Tensor x, str op='sum', str comm='') -> Tensor",
        _reduce_scatter,
        _scattered,
        (_keep_call, _transposed_reduce_scatter),
    ),
)

for _schema, _do, _shape, _gradient in _OPERATORS:
    _name = _schema.partition("(")[0]
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(_name, _do, "CPU")
    register_fake(f"shmring::{_name}", _shape, lib=_library)
    if _gradient is not None:
        register_autograd(f"shmring::{_name}", _gradient[1], setup_context=_gradient[0], lib=_library)
