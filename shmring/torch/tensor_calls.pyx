"""Collectives on tensors without `torch.distributed`: straight from the call into the engine.

Address, dtype, strides and device of a tensor come from DLPack's exchange table in one call of some 50 ns. These are
the calls of a communicator, except that the communicator may be omitted or given by name. The custom operators
(`shmring.torch.ops`) use names, since a graph cannot hold a communicator.
"""

from shmring.base.timeouts cimport resolve_timeout
from shmring.collective.calls cimport combine
from shmring.communicator cimport Communicator
from shmring.engine.signature cimport KIND_ALL_REDUCE

import shmring.torch.profiler      # shows collectives in profiles  # no-cython-lint

from shmring.launch.init import init

cdef dict by_name = {}          # "" is the default communicator
cdef Communicator default = None  # by_name[""]


def communicator(str name=""):
    """Return the communicator of that name; by default the one that calls without ``comm`` use.

    The default one is made at its first use by `shmring.init`, from the environment variables of the launcher
    (torchrun, ``shmring run``, ...), unless `set_communicator` has set another.

    Parameters
    ----------
    name : str

    Returns
    -------
    Communicator

    Raises
    ------
    KeyError
        No communicator has that name.
    Exception
        Any error of `shmring.init`, if the default one is made.

    Notes
    -----
    Collective if it makes the default one.
    """
    if name in by_name:
        return by_name[name]
    if name:
        raise KeyError(f"no communicator is named {name!r}: call shmring.torch.set_communicator(comm, {name!r}) first")
    set_communicator(init())
    return default


def set_communicator(Communicator comm not None, str name=""):
    """Name a communicator for calls and custom operators; ``""`` makes it the default.

    Parameters
    ----------
    comm : Communicator
        Kept alive until its name is given to another one. Not closed by this module.
    name : str
        Stored in the graphs of compiled and exported programs, so it must be the same on all ranks and in all runs.

    Notes
    -----
    Not collective.
    """
    global default
    by_name[name] = comm
    if not name:
        default = comm


cdef Communicator calls_of(comm):
    if not comm:        # None or ""
        return default if default is not None else communicator()
    if isinstance(comm, str):
        return communicator(comm)
    return comm


def all_reduce_(tensor, op="sum", *, comm=None, timeout=...):
    """Combine ``tensor`` element by element over all ranks, in place; every rank gets the same bits.

    Parameters
    ----------
    tensor : torch.Tensor
        On the CPU; shape and dtype equal on all ranks.
    op : str or callable
        As in `shmring.Communicator.all_reduce`.
    comm : Communicator or str, optional
        The communicator or its name; by default `communicator()`.
    timeout : float, optional
        As in `shmring.Communicator.all_reduce`.

    Returns
    -------
    torch.Tensor
        ``tensor``.

    Notes
    -----
    Collective; raises as `shmring.Communicator.all_reduce`. Not recorded by autograd, like a write to ``tensor.data``.
    The operator `shmring.torch.ops.all_reduce` has gradients.
    """
    cdef Communicator calls = calls_of(comm)
    return combine(calls.engine, KIND_ALL_REDUCE, tensor, None, op, resolve_timeout(timeout, calls.timeout_ns), False)


def broadcast_(tensor, int root=0, *, comm=None, timeout=...):
    """Copy the root's ``tensor`` into that of every other rank.

    Parameters
    ----------
    tensor : torch.Tensor
        Shape and dtype equal on all ranks.
    root : int
    comm, timeout
        As in `all_reduce_`.

    Returns
    -------
    torch.Tensor
        ``tensor``.

    Notes
    -----
    Collective; raises as `shmring.Communicator.broadcast`. Not recorded by autograd.
    """
    return calls_of(comm).broadcast(tensor, root=root, timeout=timeout)


def all_gather(tensor, out=None, *, comm=None, timeout=...):
    """Collect the tensors of all ranks, in rank order, on every rank.

    Parameters
    ----------
    tensor : torch.Tensor of shape S
        Shape and dtype equal on all ranks.
    out : torch.Tensor of shape (size, *S), optional
        A new one by default.
    comm, timeout
        As in `all_reduce_`.

    Returns
    -------
    torch.Tensor
        ``out``.

    Notes
    -----
    Collective; raises as `shmring.Communicator.all_gather`. Not recorded by autograd.
    """
    return calls_of(comm).all_gather(tensor, out, timeout=timeout)


def reduce_scatter(tensor, out=None, op="sum", *, comm=None, timeout=...):
    """Combine the tensors of all ranks; rank i gets ``tensor[i]`` of the result.

    Parameters
    ----------
    tensor : torch.Tensor of shape (size, *S)
        Shape and dtype equal on all ranks.
    out : torch.Tensor of shape S, optional
        A new one by default.
    op, comm, timeout
        As in `all_reduce_`.

    Returns
    -------
    torch.Tensor
        ``out``.

    Notes
    -----
    Collective; raises as `shmring.Communicator.reduce_scatter`. Not recorded by autograd.
    """
    return calls_of(comm).reduce_scatter(tensor, out, op=op, timeout=timeout)


def plan(str collective, *args, comm=None, **kwargs):
    """Prepare a collective that is called repeatedly on the same tensors; see `shmring.Communicator.plan`.

    Parameters
    ----------
    collective : str
        The name of a method of the communicator that can be planned, such as ``"all_reduce"``.
    *args, **kwargs
        Its arguments, except ``async_op``. Tensors must be contiguous; they are kept alive and must keep their
        storage: no `resize_`, no `set_`.
    comm : Communicator or str, optional
        As in `all_reduce_`.

    Returns
    -------
    Prepared
        ``plan()`` makes the call with the current contents of the tensors, ``plan.start()`` makes it asynchronously.

    Raises
    ------
    TypeError, ValueError
        A bad argument.

    Notes
    -----
    Not collective, unless it makes the default communicator. The memory of the tensors is looked up once, here.
    """
    return calls_of(comm).plan(collective, *args, **kwargs)
