"""The sum of a tensor straight from the call into the engine: without `torch.distributed`, and as its group's method.

All calls of a communicator take tensors. Only the one that inference makes thousands of times a second has a form of
its own, in which the communicator may be omitted or given by name, and for which no Python code runs.
"""

from libc.stdint cimport int64_t

from shmring.core.base.timeouts cimport resolve_timeout, timeout_to_ns
from shmring.collectives.calls.calls cimport combine
from shmring.communicator cimport Communicator
from shmring.collectives.engine.kinds cimport KIND_ALL_REDUCE
from shmring.torch.methods cimport is_plain

import torch
from torch.distributed import AllreduceOptions, ReduceOp

from shmring.errors import ShmringError
from shmring.launch.named import by_name, communicator
from shmring.torch.errors import torch_form
from shmring.torch.profiler import FLAG, FLAGS    # that module shows collectives in profiles
from shmring.torch.work import FINISHED, NO_TIME


cdef dict names = by_name
cdef dict flags = FLAGS
cdef object is_profiled = FLAG
cdef object count_modes = torch._C._len_torch_dispatch_stack
cdef object OptionsOfAllReduce = AllreduceOptions
cdef object finished = FINISHED
cdef object no_time = NO_TIME
cdef object ALL_REDUCE = AllreduceOptions()
cdef Py_hash_t HASH_OF_SUM = hash(ReduceOp(ReduceOp.SUM))    # to compare operations takes longer


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
    cdef int64_t timeout_ns = resolve_timeout(timeout, calls.timeout_ns)
    try:
        return combine(calls.executor, KIND_ALL_REDUCE, tensor, None, op, timeout_ns, False)
    except ShmringError as error:
        raise error.with_traceback(None) from error.__cause__    # without the lines of the engine


def allreduce(self, tensors=None, opts=ALL_REDUCE, timeout=None, *, tensor=None, op=None):
    """Reduce one tensor, dense or sparse, in place."""
    cdef int64_t timeout_ns
    # The most common call, on the shortest path: each attribute of the options takes 0.1 us and more. The layout and
    # the device are not tested, as the engine refuses others.
    comm = self._comm
    if (type(tensors) is not list or len(<list> tensors) != 1 or type(opts) is not OptionsOfAllReduce
            or not isinstance(comm, Communicator) or opts.asyncOp or hash(opts.reduceOp) != HASH_OF_SUM
            or flags[is_profiled] or not is_plain((<list> tensors)[0]) or count_modes()
            or timeout is not None or op is not None):
        how = {"op": op, "timeout": timeout}
        return self._allreduce(tensors if tensor is None else tensor, *(() if opts is ALL_REDUCE else (opts,)),
                               **{name: value for name, value in how.items() if value is not None})
    limit = opts.timeout
    timeout_s = limit.total_seconds() if limit > no_time else self._timeout_s
    timeout_ns = timeout_to_ns(timeout_s)
    try:
        combine((<Communicator> comm).executor, KIND_ALL_REDUCE, tensors[0], None, "sum", timeout_ns, False)
    except ShmringError as error:
        raise torch_form(error, timeout_s) from error.__cause__
    except Exception:
        if tensors[0].layout is torch.strided and tensors[0].is_cpu:
            raise
        return self._allreduce(tensors, opts)
    return finished
