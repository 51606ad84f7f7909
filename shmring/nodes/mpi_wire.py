"""The wire of MPI, through mpi4py: any MPI that the program uses, over whatever network that supports.

A short collective is a persistent one of MPI 4 on memory of its own, to and from which its arrays are copied: to start
it takes half the time of a new call. MPI has no wait with a time limit, so every wait tests and lets others run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.core.base import lifecycle
from shmring.dtypes import DTYPE_CODES, DTYPES, OP_ROWS
from shmring.nodes.discovery import Places
from shmring.nodes.executor import ABANDONED, Persistent
from shmring.nodes.mpi_messages import MpiMessages

TESTS = 32  # in a row: each may move a part of a long array
YIELD_S = 0.02  # for how long a wait only lets others run between two tests, before it sleeps
SLEEP_S = 1e-3
SHORT_NBYTES = 8192  # in MPICH longer persistent ones may take twice as long as new ones
SHORT_REDUCE_SCATTER_NBYTES = 65536  # MPICH takes as long to begin a new one as for all else
MOST_PERSISTENT = 64 if MPI.Get_version() >= (4, 0) else 0  # of one team

_TYPES = {d.name: getattr(MPI, d.mpi) for d in DTYPES if d.mpi}
_OPS = {op.name: getattr(MPI, op.mpi) for op in OP_ROWS if op.mpi and not op.is_logical} | {"avg": MPI.SUM}
_NAMES = {"broadcast": "bcast", "reduce_scatter": "reduce_scatter_block"}


class MpiTeam:
    """Ranks that make collectives together: those of an mpi4py communicator, which is used by nobody else."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self._persistent: list[Persistent] = []
        comm.Set_errhandler(MPI.ERRORS_RETURN)

    def reduces(self, kind: str, op: str, dtype: str) -> bool:
        """Whether the wire has this reduction, with the same result on all ranks; ``avg`` by a sum.

        MPI's min and max lose NaNs, and short integers do not wrap around in Open MPI; its logical ones keep the value
        of a single operand, ours are 0 or 1.
        """
        row = DTYPES[DTYPE_CODES[dtype]]
        if not row.mpi or op not in _OPS:
            return False
        if row.family in "iu":
            return op not in ("sum", "prod") or row.itemsize >= 4
        return row.family != "b" and (op in ("sum", "prod") or (op == "avg" and kind not in ("scan", "exscan")))

    def begin(self, kind, x, out, in_place=False, root=-1, sizes=None, got=None, op=None, dtype="uint8") -> MPI.Request:
        """Begin a collective on arrays of bytes, None where this rank has none.

        ``sizes`` are the bytes of blocks that differ; of an all_to_all those sent, and ``got`` those received.
        """
        own, row = _TYPES[dtype], COLLECTIVES[kind]
        sent, given = of_mpi(x, own), of_mpi(out, own)
        if sizes and kind == "reduce_scatter":
            return self.comm.Ireduce_scatter(sent, given, [n // own.Get_size() for n in sizes], _OPS[op])
        if sizes and row.blocks_in and sent:
            sent = [x, sizes, None, own]
        if sizes and row.blocks_out and given:
            given = [out, got or sizes, None, own]
        return self._function("I{}v" if sizes else "I{}", kind, root, op)(sent, given, in_place)

    def settled(self, c: Any) -> Callable | Persistent | None:
        """What makes all calls like this one, with equal blocks, by the wire alone; None: `begin`."""
        own = _TYPES[c.dtype]
        nbytes = c.nbytes * self.size if c.kind in ("gather", "all_gather") else c.nbytes
        # An exscan leaves the first rank's array as it is.
        short_nbytes = SHORT_REDUCE_SCATTER_NBYTES if c.kind == "reduce_scatter" else SHORT_NBYTES
        if nbytes <= short_nbytes and len(self._persistent) < MOST_PERSISTENT and c.kind != "exscan":
            given = None if c.out is None else np.empty(c.out.nbytes, np.uint8)
            sent = given if c.x is None or c.kind == "broadcast" else np.empty(c.x.nbytes, np.uint8)
            begin = self._function("{}_init", c.kind, c.root, c.op)
            request = begin(of_mpi(sent, own), of_mpi(given, own), False)
            self._persistent.append(Persistent(request, sent, given))
            return self._persistent[-1]
        if c.kind in ("all_to_all", "reduce_scatter"):  # in place MPI's are others
            return None
        function = self._function("I{}", c.kind, c.root, c.op)
        return lambda c: c.wait(function(of_mpi(c.x, own), of_mpi(c.out, own), c.in_place), None)

    def _function(self, form: str, kind: str, root: int, op: str | None) -> Callable:
        """MPI's function of a kind, in this form of its name: of what is sent and given, and whether in place."""
        method = getattr(self.comm, form.format(_NAMES.get(kind, kind.replace("_", ""))).capitalize())
        more = [*([] if op is None else [_OPS[op]]), *([root] if root >= 0 else [])]
        if kind == "barrier":
            return lambda sent, given, in_place: method()
        if kind == "broadcast":
            return lambda sent, given, in_place: method(given, *more)
        if kind == "scatter":
            return lambda sent, given, in_place: method(sent, MPI.IN_PLACE if in_place else given, *more)
        return lambda sent, given, in_place: method(MPI.IN_PLACE if in_place else sent, given, *more)

    def free(self) -> None:
        """Give the communicator back. Not collective in the MPIs that there are."""
        with contextlib.suppress(MPI.Exception):  # MPICH frees it, and complains of messages nobody received
            for one in self._persistent:
                one.free()
            self.comm.Free()


def of_mpi(x: Any, own: MPI.Datatype) -> list | None:
    """An array of bytes as mpi4py takes it."""
    return None if x is None else [x, own]


class MpiWire:
    """The ranks of an mpi4py communicator, which this wire frees.

    Attributes
    ----------
    errors : tuple of type
        What its calls raise.
    whole, lane : MpiTeam
        All ranks; and the rank at this one's place of each node, None if a node has no rank there.
    """

    errors = (MPI.Exception,)

    def __init__(self, comm: MPI.Intracomm, places: Places) -> None:
        self.whole, self._objects, self._alarms = MpiTeam(comm.Dup()), MpiTeam(comm.Dup()), MpiTeam(comm)
        lane = comm.Split(places.place if places.has_lane else MPI.UNDEFINED, places.node)
        self.lane = None if lane == MPI.COMM_NULL else MpiTeam(lane)

    def messages_of(self, group: Any) -> MpiMessages:
        """The messages of the group with this wire."""
        self._messages = MpiMessages(group, self.whole.comm, self._objects.comm)
        return self._messages

    def wait(self, test: Callable[[], Any], seconds: float, since: float) -> Any:
        """What ``test()`` returns, once that is true or after so many seconds; raises one of ``errors``.

        ``since`` is when the wait for it began, by `time.monotonic`.
        """
        until = time.monotonic() + seconds
        while True:
            for _ in range(TESTS):
                if found := test():
                    return found
            now = time.monotonic()
            if now >= until:
                return None
            if now - since < YIELD_S:
                os.sched_yield()
            else:
                time.sleep(SLEEP_S)

    def alarm(self, text: str) -> None:
        """Let the other ranks know that this one has failed."""
        record = text.encode()
        for peer in range(self.whole.size):
            if peer != self.whole.rank:
                ABANDONED.append((self._alarms.comm.Isend([record, MPI.BYTE], peer), record))

    def read_alarm(self) -> tuple[int, str] | None:
        """A rank that has failed, and why."""
        status = MPI.Status()
        arrived = self._alarms.comm.Improbe(status=status)
        if arrived is None:
            return None
        record = bytearray(status.Get_count(MPI.BYTE))
        arrived.Recv([record, MPI.BYTE])
        return status.Get_source(), record.decode()

    def leave(self, is_cut_short: bool) -> None:
        """Give the communicators back, unless a call has failed or is under way. Not while another thread looks for
        messages."""
        ABANDONED.extend(self._messages.works)  # which may still be read or written
        if not is_cut_short:
            self._messages.turn.run(self._free)

    def _free(self) -> None:
        for team in (self.whole, self._objects, self.lane, self._alarms):
            if team is not None:
                team.free()


def _close_before_finalize(*_args) -> None:
    """Called by MPI_Finalize before it does anything else, as a program may call it while communicators are open."""
    for group in lifecycle.tracked(lifecycle.Stage.MULTINODE):
        if isinstance(group.wire, MpiWire):
            if group.progress is not None:
                group.progress.close(group.config.timeout)
            group.close()


# MPI frees what is attached to this communicator first. At the interpreter's end mpi4py finalizes after all handlers.
MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_close_before_finalize), None)

# A second time, as mpi4py was imported before: these leave before it ends MPI.
atexit.register(lifecycle.leave, lifecycle.Stage.MULTINODE)
