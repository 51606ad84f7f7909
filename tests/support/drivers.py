"""Drivers: every way to make a collective, each for the cases of `support.oracle` that it takes.

A driver has ``rank``, ``size``, ``put`` (a copy of an array, where the driver needs it), ``call`` (makes the call and
gives what it returned) and ``close``. ``is_functional`` drivers return new arrays and leave all others as they are.
"""

from __future__ import annotations

import ctypes

import numpy as np

from shmring.collectives.plan.choose import BUILDERS
from shmring.dtypes import DTYPE_CODES
from support.inputs import NUMPY_DTYPES, lay_out
from support.oracle import FUNCTIONS, KINDS, Case, check, draw


class Direct:
    """The method of the communicator."""

    is_functional = False

    def __init__(self, comm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.name = type(self).__name__

    @staticmethod
    def takes(case: Case) -> bool:
        """Whether this driver can make this call."""
        return True

    def put(self, x, layout):
        """A copy of ``x``."""
        return lay_out(x, layout)

    def call(self, case, x, out, keywords):
        """Make the call."""
        arguments = (x,) if case.kind == "broadcast" else (x, out)
        return getattr(self.comm, case.kind)(*arguments, **keywords)

    def close(self):
        """End what this driver has made; a collective."""
        self.comm.barrier()


class Asynchronous(Direct):
    """In the background."""

    def call(self, case, x, out, keywords):
        return super().call(case, x, out, {**keywords, "async_op": True}).wait()


class Plan(Direct):
    """A persistent plan, used twice with the same contents, at once and in the background."""

    @staticmethod
    def takes(case):
        return case.is_plain

    def call(self, case, x, out, keywords):
        arguments = (x,) if case.kind == "broadcast" else (x, out)
        arrays = [a for a in (x, out) if a is not None]
        before = [a.copy() for a in arrays]
        plan = self.comm.plan(case.kind, *arguments, **keywords)
        first = plan()
        first = None if first is None else np.array(first)
        for a, old in zip(arrays, before, strict=True):
            a[...] = old
        found = plan.start().wait()
        assert (found is None and first is None) or first.tobytes() == np.asarray(found).tobytes()
        return found


class Many(Direct):
    """The pieces of one array as a list of arrays: at once, in the background, or by a plan."""

    @staticmethod
    def takes(case):
        return case.kind == "all_reduce" and case.place == "in" and case.is_plain

    def call(self, case, x, out, keywords):
        flat, n = x.reshape(-1), x.size
        pieces = [flat[n * i // 3 : n * (i + 1) // 3] for i in range(3)]
        way = case.salt % 3
        if way == 0:
            self.comm.all_reduce_many(pieces, **keywords)
        elif way == 1:
            self.comm.all_reduce_many(pieces, async_op=True, **keywords).wait()
        else:
            self.comm.plan("all_reduce_many", pieces, **keywords)()
        return x


class Unstaged(Direct):
    """Large calls whose arrays are read where they lie; each is counted."""

    def __init__(self, comm) -> None:
        super().__init__(comm)
        if comm._engine.sharing is not None:
            comm._engine.sharing.rooted_nbytes = 0  # small calls with a root go without staging, too
            comm._engine.sharing.private_nbytes = 1  # and those of ranks that are threads
        self.eager_nbytes = comm.stats()["eager_nbytes"]

    @property
    def nzero_copy(self) -> int:
        """How many calls have been made without staging."""
        sharing = self.comm._engine.sharing
        return 0 if sharing is None else sharing.nzero_copy

    def call(self, case, x, out, keywords):
        before = self.nzero_copy
        found = super().call(case, x, out, keywords)
        if self.is_direct(case):
            assert self.nzero_copy == before + 1, f"{case} was staged"
        return found

    def is_direct(self, case) -> bool:
        """Whether such a call stages nothing (others may, too)."""
        nbytes = int(np.prod(case.shape_in(self.size, 0), dtype=np.int64)) * NUMPY_DTYPES[case.dtype].itemsize
        return (
            self.size > 1
            and nbytes > self.eager_nbytes
            and not case.counts
            and case.is_plain
            and case.op not in FUNCTIONS
            and (case.kind, "zero_copy") in BUILDERS
            and case.place != "new"
            and (case.kind, case.place) != ("all_to_all", "in")
        )


class Shared(Unstaged):
    """Arrays in shared memory, those of different ranks at different offsets."""

    NBYTES = 12 << 20
    STEP = 1040

    def __init__(self, comm) -> None:
        super().__init__(comm)
        self.memory, self.used = self.make(comm), 0
        super().__init__(comm)  # the memory may have made what it sets

    def make(self, comm):
        """The memory that `put` takes arrays from."""
        return comm.empty(self.NBYTES, np.uint8)

    @staticmethod
    def takes(case):
        return case.layout in ("plain", "fortran")

    def put(self, x, layout):
        at = (self.used + 63) // 64 * 64 + self.rank * self.STEP
        self.used = at + x.nbytes
        order = "F" if layout == "fortran" else "C"
        piece = self.memory[at : at + x.nbytes].view(x.dtype).reshape(x.shape, order=order)
        piece[...] = x
        return piece

    def call(self, case, x, out, keywords):
        found = super().call(case, x, out, keywords)
        self.used = 0
        self.comm.barrier()  # other ranks may read until here
        return found


class SharedBySome(Shared):
    """Arrays in shared memory on some ranks, private ones on the others: all take the same way."""

    def put(self, x, layout):
        return super().put(x, layout) if self.rank % 2 else lay_out(x, layout)

    def is_direct(self, case):
        return False

    def close(self):
        assert len(set(self.comm.all_gather_object(self.nzero_copy))) == 1
        super().close()


class Moved(Shared):
    """Private memory that `Communicator.share` has moved to shared memory; its neighbours stay as they are."""

    def make(self, comm):
        self.shift = 1040 * (comm.rank + 1)
        self.all = np.full(self.NBYTES + 2 * self.shift, 0xA5, np.uint8)
        memory = self.all[self.shift : -self.shift]
        address = memory.ctypes.data
        self.shared = comm.share(memory)
        assert memory.ctypes.data == address
        return memory

    def close(self):
        before = self.all.copy()
        self.shared.close()
        assert (self.all == before).all()
        assert (self.all[: self.shift] == 0xA5).all()
        assert (self.all[-self.shift :] == 0xA5).all()
        super().close()


class CTable(Direct):
    """The calls of the C table, from a thread without the GIL."""

    def __init__(self, comm, library) -> None:
        from support.capi import Table

        super().__init__(comm)
        self.table = Table(library)
        self.handle = self.table.open(comm)

    @staticmethod
    def takes(case):
        return case.is_plain and not case.counts and case.place != "new" and case.op not in FUNCTIONS

    def fields(self, case, x, out, keywords):
        """The arguments for the table."""
        target = x if out is None else out
        pointer = None if x is None else ctypes.c_void_p(x.ctypes.data).value
        elements = case.count * int(np.prod(case.row, dtype=np.int64))
        if case.kind == "gather" and self.rank != keywords["root"]:
            target = None
        found = {"x": pointer, "count": elements, "dtype": DTYPE_CODES[case.dtype]}
        if target is not None:
            found["out"] = target.ctypes.data
        return found | {name: keywords[name] for name in ("op", "root") if name in keywords}

    def call(self, case, x, out, keywords):
        self.table.call(case.kind, self.handle, **self.fields(case, x, out, keywords))
        if KINDS[case.kind].has_root and case.kind in ("reduce", "gather") and self.rank != keywords["root"]:
            return None
        return x if out is None else out

    def close(self):
        self.table.release(self.handle)
        super().close()


class CPlan(CTable):
    """Plans of the C table, run twice where that gives the same again."""

    def call(self, case, x, out, keywords):
        from support.capi import KINDS as NUMBERS
        from support.capi import PLAN

        fields = self.fields(case, x, out, keywords)
        if case.kind == "broadcast":
            fields["x"] = fields["out"]
        times = 1 if case.place == "in" and case.kind != "broadcast" else 2
        self.table.call(PLAN, self.handle, key=NUMBERS[case.kind], times=times, **fields)
        if case.kind in ("reduce", "gather") and self.rank != keywords["root"]:
            return None
        return x if out is None else out


DRIVERS = {
    driver.__name__: driver
    for driver in (Direct, Asynchronous, Plan, Many, Unstaged, Shared, SharedBySome, Moved, CTable, CPlan)
}


def run_cases(comm, name: str, cases: list, *more) -> int:
    """Make these calls by one driver; one rank's part."""
    driver = DRIVERS[name](comm, *more)
    for case in cases:
        check(driver, case)
    driver.close()
    return len(cases)


def draw_for(name: str, number: int, seed, **fixed) -> list:
    """Cases that a driver takes."""
    return draw(number, f"{seed} {name}", DRIVERS[name].takes, **fixed)
