"""The sum of a tensor without `torch.distributed`: straight from the call into the engine.

All calls of a communicator take tensors. Only the one that inference makes thousands of times a second has a form of
its own, in which the communicator may be omitted or given by name, and for which no Python code runs.
"""

from shmring.base.timeouts cimport resolve_timeout
from shmring.collective.calls cimport combine
from shmring.communicator cimport Communicator
from shmring.engine.kinds cimport KIND_ALL_REDUCE

import shmring.torch.profiler      # shows collectives in profiles  # no-cython-lint

from shmring.launch.named import by_name, communicator


cdef dict names = by_name


cdef inline Communicator calls_of(comm):
    """The communicator itself, or the one of that name; None: the default one."""
    if comm is None or isinstance(comm, str):
        return names.get(comm or "") or communicator(comm or "")
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
    return combine(calls.executor, KIND_ALL_REDUCE, tensor, None, op, resolve_timeout(timeout, calls.timeout_ns), False)
