"""Names of mpi4py that a communicator does not have: looking one up is an AttributeError that names the call to use."""

from __future__ import annotations

_OURS = {
    "rank": ("Get_rank",),
    "size": ("Get_size",),
    "all_reduce(x), of numbers, too; all_reduce_object(obj)": ("Allreduce", "allreduce"),
    "reduce(x), of numbers, too; reduce_object(obj)": ("Reduce",),
    "broadcast(x)": ("Bcast",),
    "broadcast_object(obj)": ("bcast",),
    "all_gather(x)": ("Allgather",),
    "all_gather_object(obj)": ("allgather",),
    "all_gather(x, counts=...)": ("Allgatherv",),
    "gather(x); gather_object(obj)": ("Gather",),
    "gather(x, counts=...)": ("Gatherv",),
    "scatter(x); scatter_object(objs)": ("Scatter",),
    "scatter(x, counts=...)": ("Scatterv",),
    "all_to_all(x)": ("Alltoall",),
    "all_to_all_object(objs)": ("alltoall",),
    "all_to_all(x, counts=...)": ("Alltoallv", "Alltoallw"),
    "reduce_scatter(x)": ("Reduce_scatter_block",),
    "reduce_scatter(x, counts=...)": ("Reduce_scatter",),
    "scan(x)": ("Scan",),
    "exscan(x)": ("Exscan",),
    "barrier()": ("Barrier",),
    "all_reduce(x, async_op=True)": ("Iallreduce",),
    "broadcast(x, async_op=True)": ("Ibcast",),
    "barrier(async_op=True)": ("Ibarrier",),
    'plan("all_reduce", x)': ("Allreduce_init",),
    'plan("broadcast", x)': ("Bcast_init",),
    "send(x, dst); send_object(obj, dst)": ("Send", "Ssend", "Bsend", "Rsend", "ssend", "bsend"),
    "recv(x, src); recv_object(src)": ("Recv", "Mrecv"),
    "isend(x, dst)": ("Isend", "Issend", "Ibsend", "issend", "ibsend"),
    "irecv(x, src)": ("Irecv",),
    "sendrecv(x, dst, out, src)": ("Sendrecv", "Sendrecv_replace"),
    "probe(src)": ("Probe", "Mprobe", "mprobe"),
    "iprobe(src)": ("Iprobe", "Improbe", "improbe"),
    "split(color, key)": ("Split",),
    "subgroup(ranks)": ("Create", "Create_group"),
    "dup()": ("Dup", "Clone"),
    "close()": ("Free", "Disconnect"),
    "abort(reason)": ("Abort",),
    "shrink()": ("Shrink",),
    "name": ("Get_name",),
}


class Hint:
    """The attribute under a name of mpi4py: getting it raises an error that names the call to use."""

    __slots__ = ("_name", "_ours")
    __doc__ = None

    def __init__(self, name: str, ours: str) -> None:
        self._name, self._ours = name, ours

    def __get__(self, thing: object, owner: type) -> object:
        if thing is None:
            return self
        raise AttributeError(
            f"{owner.__name__!r} object has no attribute {self._name!r}, a name of mpi4py; here it is "
            f"comm.{self._ours} (docs/coming-from.md)",
            name=self._name,
            obj=thing,
        )

    def __set__(self, thing: object, value: object) -> None:  # a data descriptor: `inspect` takes it for no method
        text = f"{type(thing).__name__!r} object has no attribute {self._name!r}"
        raise AttributeError(text, name=self._name, obj=thing)


HINTS = {name: Hint(name, ours) for ours, names in _OURS.items() for name in names}
