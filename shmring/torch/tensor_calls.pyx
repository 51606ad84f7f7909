"""Collectives on tensors without torch.distributed: straight from the call into the engine.

A tensor is reached through DLPack's exchange table, which knows address, dtype, strides and device in one call of some
50 ns. So these are the calls of a communicator, with one thing added: the communicator may be left out, or named. The
custom operators (`shmring.torch.ops`) come here, too; a graph can hold a name, but no communicator.
"""

from libc.stdint cimport int64_t

from shmring.arrays.array_view cimport array_t, target_array
from shmring.collective.base cimport CollectiveBase, resolve_timeout
from shmring.engine.signature cimport KIND_ALL_REDUCE, NO_ROOT

from shmring.launch.init import init

cdef dict chosen = {}           # name -> communicator; "" is the one that is used where none is given
cdef CollectiveBase usual = None         # chosen[""], looked at in each call


def communicator(str name=""):
    """The communicator of that name; by default the one of calls that are given none.

    That one is made when it is first needed, by `shmring.init` and so from what the launcher (torchrun, ``shmring
    run``, ...) exported, unless `set_communicator` chose another.

    Parameters
    ----------
    name : str

    Returns
    -------
    Communicator

    Raises
    ------
    KeyError
        No communicator was given that name.
    Exception
        What `shmring.init` raises, if the default one has to be made.

    Notes
    -----
    Collective when it makes the default one: all ranks must come to need it.
    """
    if name in chosen:
        return chosen[name]
    if name:
        raise KeyError(f"no communicator is named {name!r}: shmring.torch.set_communicator(comm, {name!r}) does that")
    set_communicator(init())
    return usual


def set_communicator(CollectiveBase comm not None, str name=""):
    """Give a communicator a name for calls and custom operators; ``""`` makes it the one they use by default.

    Parameters
    ----------
    comm : Communicator
        Kept alive by its name until that is given to another one. Who closes it does so himself.
    name : str
        What the graphs of compiled and exported programs hold, so the same on all ranks and in all runs.

    Notes
    -----
    Not collective; costs nothing to the calls.
    """
    global usual
    chosen[name] = comm
    if not name:
        usual = comm


cdef CollectiveBase calls_of(comm):
    if not comm:        # None, or the name ""
        return usual if usual is not None else communicator()
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
        Whose ranks take part, or its name; by default `communicator()`.
    timeout : float, optional
        As there.

    Returns
    -------
    torch.Tensor
        ``tensor``.

    Raises
    ------
    TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
        As there.

    Notes
    -----
    Collective. Autograd does not see it: the memory changes, as that of ``tensor.data`` would. The operator
    `shmring.torch.ops.all_reduce` has gradients.
    """
    cdef CollectiveBase calls = calls_of(comm)
    cdef array_t a
    cdef array_t b
    cdef int64_t timeout_ns = resolve_timeout(timeout, calls.timeout_ns)
    kept = target_array(tensor, &a)
    b = a
    return calls.perform(KIND_ALL_REDUCE, &a, &b, NO_ROOT, op, timeout_ns, None, kept, tensor, False)


def broadcast_(tensor, int root=0, *, comm=None, timeout=...):
    """Copy the root's ``tensor`` into that of all others.

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

    Raises
    ------
    TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
        As in `shmring.Communicator.broadcast`.

    Notes
    -----
    Collective. Autograd does not see it.
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

    Raises
    ------
    TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
        As in `shmring.Communicator.all_gather`.

    Notes
    -----
    Collective. Autograd does not see it.
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

    Raises
    ------
    TypeError, ValueError, PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
        As in `shmring.Communicator.reduce_scatter`.

    Notes
    -----
    Collective. Autograd does not see it.
    """
    return calls_of(comm).reduce_scatter(tensor, out, op=op, timeout=timeout)


def plan(str collective, *args, comm=None, **kwargs):
    """Prepare a collective on tensors that is made often; see `shmring.Communicator.plan`.

    Parameters
    ----------
    collective : str
        A method of the communicator, ``"all_reduce"`` or any other that a plan can make.
    *args, **kwargs
        What that takes, but for ``async_op``. Tensors must be contiguous; they are kept alive, and must keep their
        storage: no `resize_`, no `set_`.
    comm : Communicator or str, optional
        As in `all_reduce_`.

    Returns
    -------
    Prepared
        ``plan()`` makes the call with what the tensors hold by then, ``plan.start()`` makes it in the background.

    Raises
    ------
    TypeError, ValueError
        A bad argument.

    Notes
    -----
    Not collective, but for making the default communicator. The tensor's memory is looked up now, not in each call.
    """
    return calls_of(comm).plan(collective, *args, **kwargs)
