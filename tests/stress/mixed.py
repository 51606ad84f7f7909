"""Operations of every kind, drawn by lot: what `test_mixed` runs.

A *run* is one communicator with settings of its own and some hundreds of *operations*. All that is random in an
operation follows from (seed, run, index), so every rank draws the same one without communication, and any one can be
drawn alone.

Collectives are cases of `support.oracle`, which compares their results. Any other kind of operation is a class of three
functions, marked ``@kind``:

    draw(dice)            its arguments, the same on all ranks: a `Case`
    run(comm, case)       carries it out; returns what this rank got, arrays or None, as a list
    model(case, rank)     what that rank must have got, bit for bit
"""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace

import numpy as np
from support import oracle
from support.drivers import Direct
from support.inputs import LAYOUTS, NUMPY_DTYPES, cut, lay_out, same_bits
from support.oracle import differences, reduce_model

from shmring.dtypes import OPS, is_defined

KINDS: dict[str, object] = {}


def kind(operation):
    """Put ``operation`` among those that are drawn."""
    KINDS[operation.__name__] = operation
    return operation


def settings(seed, run, size):
    """The settings of one run: outboxes from tiny to ordinary, eager messages from none to all."""
    dice = random.Random(f"{seed}/{run}/settings")
    return {
        "slot_nbytes": dice.choice((4096, 4096, 8192, 20_480, 65_536, 262_144)),
        "nslots": dice.choice((4, 4, 8)),
        "eager_nbytes": dice.choice((-1, 0, 48, 64, 1000, 4096)),
        "pair_queue_nbytes": dice.choice((4096, 32_768, 262_144)),
        "one_shot_nbytes": dice.choice((-1, -1, 0, 3000, 100_000)),
        "spin_us": dice.choice((-1, -1, 0, 5, 200)),
        "tick_ms": dice.choice((20, 20, 1)),
        "stores": dice.choice((-1, 0, 1, 2, 3)),
        "direct": dice.choice((-1, 0, 1)),
        "timeout": 60,
    }


class Case(SimpleNamespace):
    """One operation: its kind, its number, the size of the group, and what else was drawn."""

    def __str__(self):
        drawn = {name: value for name, value in vars(self).items() if name not in ("kind", "seed", "run", "index")}
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in drawn.items())})"

    def content(self, rank, *shape, salt=0):
        """Input of a rank: the same numbers for the same (case, rank, salt) in every process."""
        return cut(self.dtype, shape, self.seed, self.run, self.index, rank, salt)

    def inputs(self, *shape, salt=0):
        """The inputs of all ranks."""
        return [self.content(rank, *shape, salt=salt) for rank in range(self.size)]

    def lay_out(self, x):
        """A copy of ``x`` in the memory layout that was drawn."""
        return lay_out(x, self.layout)


class Dice:
    """Draws arguments for one operation."""

    def __init__(self, seed, run, index, size, config):
        self.random = random.Random(f"{seed}/{run}/{index}")
        self.size, self.config = size, config
        self.seen = {"seed": seed, "run": run, "index": index, "size": size}

    def case(self, **drawn):
        """A case of what was drawn."""
        return Case(**self.seen, **drawn)

    def choose(self, *choices):
        """One of them."""
        return self.random.choice(choices)

    def root(self):
        """A rank."""
        return self.random.randrange(self.size)

    def layout(self):
        """How arrays lie in memory; most of them plainly."""
        return self.choose("plain", "plain", "plain", "plain", *LAYOUTS)

    def dtype(self, op=None):
        """A dtype (that has ``op``)."""
        return self.choose(*(name for name in NUMPY_DTYPES if op is None or is_defined(op, name)))

    def nbytes(self):
        """A size at, or beside, one at which something changes."""
        c = self.config
        ring = c.nslots * c.slot_nbytes
        edge = self.choose(
            0,
            1,
            8,
            40,
            48,
            104,
            160,
            48 + 56 * self.random.randrange(70),
            64 * self.random.randrange(60),
            c.eager_limit(self.size),
            c.eager_limit(self.size),
            c.eager_limit(self.size) // self.size,
            max(c.internals.one_shot_nbytes, 0),
            3000,
            20_000,
            60_000 // self.size,
            c.slot_nbytes // max(1, self.size - 1),
            c.slot_nbytes,
            c.slot_nbytes,
            2 * c.slot_nbytes,
            3 * c.slot_nbytes,
            min(ring, 1 << 18),
            self.random.randrange(1, 1 << 14),
            self.random.randrange(1, min(3 * ring, 1 << 18)),
        )
        if self.random.random() < 0.01:
            edge = min(ring + self.random.randrange(c.slot_nbytes), 1 << 21)  # past every slot there is
        return edge

    def count(self, dtype, blocks=1):
        """Elements of about such a size, in all or in each of ``blocks``."""
        nbytes = self.nbytes() // self.choose(1, blocks) if blocks > 1 else self.nbytes()
        if blocks > 1:
            nbytes = min(nbytes, (1 << 20) // blocks)
        itemsize = NUMPY_DTYPES[dtype].itemsize
        return max(0, nbytes // itemsize + self.choose(-1, 0, 0, 0, 1, 2))

    def counts(self, most):
        """Rows for every rank: equal, ragged, some or all of them none."""
        way = self.choose("ragged", "ragged", "equal", "one", "holes", "steep", "none")
        if way == "none" or not most:
            return (0,) * self.size
        if way == "equal":
            return (most,) * self.size
        if way == "one":
            lucky = self.root()
            return tuple(most * (r == lucky) for r in range(self.size))
        if way == "steep":
            return tuple(max(1, most >> 3 * r) for r in range(self.size))
        ragged = [self.random.randint(0, most) for _ in range(self.size)]
        return tuple(n if way == "ragged" or self.random.random() < 0.5 else 0 for n in ragged)


def draw(seed, run, index, size, config, kinds=None):
    """The operation of this number."""
    dice = Dice(seed, run, index, size, config)
    name = dice.random.choice(sorted(kinds or KINDS))
    case = KINDS[name].draw(dice)
    case.kind = name
    return case


def dawdle(case, rank):
    """Come to an operation sooner or later than the others."""
    dice = random.Random(f"{case.seed}/{case.run}/{case.index}/dawdle/{rank}")
    chance = dice.random()
    if chance < 0.05:
        time.sleep(dice.random() * 3e-3)
    elif chance < 0.15:
        time.sleep(0)
    elif chance < 0.3:
        end = time.perf_counter() + dice.random() * 1e-4
        while time.perf_counter() < end:
            pass


def carry_out(comm, case):
    """Run an operation and compare the result of this rank with that of the model."""
    dawdle(case, comm.rank)
    got = KINDS[case.kind].run(comm, case)
    wanted = KINDS[case.kind].model(case, comm.rank)
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a is None or b is None:
            assert a is b, f"result {i} is {a!r} instead of {b!r}"
        else:
            assert same_bits(np.asarray(a), np.asarray(b)), f"result {i}: {differences(np.asarray(a), np.asarray(b))}"


# ---- collectives -----------------------------------------------------------------------------------------------------


class Collective:
    """A case of the oracle, of one kind, with or without counts."""

    def __init__(self, name, has_counts):
        self.name, self.has_counts = name, has_counts

    def draw(self, dice):
        """A call at, or beside, a size at which something changes."""
        has = oracle.KINDS[self.name]
        op = dice.choose(*OPS) if has.takes_op else "sum"
        dtype = dice.dtype(op if has.takes_op else None)
        places = ["in", "out"] if self.name != "broadcast" else ["in"]
        drawn = {"dtype": dtype, "op": op, "place": dice.choose(*places, *["new"] * has.has_blocks)}
        drawn |= {"layout": dice.layout(), "salt": dice.random.randrange(1 << 30)}
        drawn["root"] = dice.root() if has.has_root else 0
        if self.has_counts:
            drawn |= self.rows(dice, drawn)
        else:
            drawn["count"] = dice.count(dtype, dice.size if has.has_blocks else 1)
        case = oracle.Case(self.name, **drawn)
        if case.place == "in" and not case.is_plain and not case.may_share_rows():
            case = replace(case, place="out")
        return dice.case(call=case)

    def rows(self, dice, drawn):
        """Rows of 0 to 3 dimensions for every rank; of all_to_all, for every pair."""
        row = dice.choose((), (), (3,), (2, 5), (1,))
        most = min(dice.nbytes(), 1 << 17) // NUMPY_DTYPES[drawn["dtype"]].itemsize // int(np.prod(row))
        most //= dice.choose(1, dice.size)
        counts = dice.counts(most)
        if self.name == "all_to_all":
            lines = [dice.counts(max(counts) // dice.size + 1) for _ in range(dice.size)]
            if drawn["place"] == "in":  # as many from one rank as to it
                lines = [[lines[min(i, j)][max(i, j)] for j in range(dice.size)] for i in range(dice.size)]
            counts = tuple(map(tuple, lines))
        return {"row": row, "counts": counts}

    def run(self, comm, case):
        """Make the call and compare all that it wrote, or must not."""
        oracle.check(Direct(comm), case.call)
        return []

    def model(self, case, rank):
        """Nothing: `oracle.check` has compared."""
        return []


for _name, _has in oracle.KINDS.items():
    KINDS[_name] = Collective(_name, False)
    if _has.takes_counts:
        KINDS[f"{_name} counts"] = Collective(_name, True)


@kind
class Barrier:
    """Nothing but the round."""

    @staticmethod
    def draw(dice):
        return dice.case()

    @staticmethod
    def run(comm, case):
        return [comm.barrier()]

    @staticmethod
    def model(case, rank):
        return [None]


@kind
class Burst:
    """Many small ones of one kind without a word between: a root or a sender runs ahead until the ring is full."""

    @staticmethod
    def draw(dice):
        way = dice.choose("broadcast", "reduce", "all_reduce", "gather", "scan")
        return dice.case(
            way=way,
            dtype="int64",
            count=dice.choose(0, 1, 6, 7, 40, 600),
            times=dice.choose(9, 17, 30),
            root=dice.root(),
            layout="plain",
        )

    @staticmethod
    def run(comm, case):
        got = []
        for i in range(case.times):
            x = case.content(comm.rank, case.count, salt=i)
            if case.way in ("all_reduce", "scan"):
                got.append(getattr(comm, case.way)(x, op="bxor"))
            elif case.way == "reduce":
                got.append(comm.reduce(x, root=case.root, op="bxor"))
            else:
                got.append(getattr(comm, case.way)(x, root=case.root))
        return got

    @staticmethod
    def model(case, rank):
        return [
            oracle.result(case.way, case.inputs(case.count, salt=i), rank, root=case.root, op="bxor")
            for i in range(case.times)
        ]


# ---- point to point --------------------------------------------------------------------------------------------------


@kind
class Shift:
    """All ranks at once send so many places on and receive from as many before, longer than the pair queue or not."""

    @staticmethod
    def draw(dice):
        dtype = dice.dtype()
        return dice.case(
            dtype=dtype,
            count=dice.count(dtype),
            layout=dice.layout(),
            by=dice.random.randrange(dice.size),
            tag=dice.choose(0, 1, 2**31 - 1),
        )

    @staticmethod
    def run(comm, case):
        x = case.lay_out(case.content(comm.rank, case.count))
        out = case.lay_out(np.zeros_like(x))
        to, source = (comm.rank + case.by) % case.size, (comm.rank - case.by) % case.size
        message = comm.sendrecv(x, to, out, source, tag=case.tag, out_tag=case.tag)
        assert (message.source, message.tag, message.count) == (source, case.tag, case.count)
        return [out]

    @staticmethod
    def model(case, rank):
        return [case.content((rank - case.by) % case.size, case.count)]


@kind
class Letters:
    """From everyone to everyone, some with each tag, received in another order than sent."""

    @staticmethod
    def draw(dice):
        counts = tuple(dice.count("uint16") // dice.choose(1, 9) for _ in range(dice.choose(1, 2, 5)))
        order = tuple(dice.random.sample(range(len(counts)), len(counts)))
        return dice.case(dtype="uint16", counts=counts, order=order, layout=dice.layout())

    @staticmethod
    def run(comm, case):
        sent = [
            comm.isend(case.lay_out(case.content(comm.rank, count, salt=tag)), to, tag)
            for tag, count in enumerate(case.counts)
            for to in range(case.size)
        ]
        got = []
        for tag in case.order:
            for source in range(case.size):
                out = case.lay_out(np.zeros(case.counts[tag], np.uint16))
                message = comm.recv(out, source, tag)
                assert (message.source, message.tag, message.count) == (source, tag, case.counts[tag])
                got.append(out)
        for request in sent:
            request.wait()
        return got

    @staticmethod
    def model(case, rank):
        return [case.content(r, case.counts[tag], salt=tag) for tag in case.order for r in range(case.size)]


# ---- what is made of collectives -------------------------------------------------------------------------------------


@kind
class Asynchronous:
    """Several under way at once, waited for in some order, one that blocks among them."""

    @staticmethod
    def draw(dice):
        return dice.case(
            dtype="int32",
            counts=tuple(dice.count("int32") // 4 for _ in range(dice.choose(1, 3, 6))),
            root=dice.root(),
            order=dice.choose(1, -1),
            layout=dice.layout(),
        )

    @staticmethod
    def run(comm, case):
        works = []
        for i, count in enumerate(case.counts):
            x = case.lay_out(case.content(comm.rank, count, salt=i))
            if i % 3 == 0:
                works.append(comm.all_reduce(x, op="bxor", async_op=True))
            elif i % 3 == 1:
                works.append(comm.all_gather(x, counts=[count] * comm.size, async_op=True))
            else:
                works.append(comm.broadcast(x, root=case.root, async_op=True))
        between = comm.all_reduce(case.content(comm.rank, 3, salt=99), op="min")
        return [*(work.result() for work in works[:: case.order]), between]

    @staticmethod
    def model(case, rank):
        wanted = []
        for i, count in enumerate(case.counts):
            kind = ("all_reduce", "all_gather", "broadcast")[i % 3]
            counts = [count] * case.size
            xs = case.inputs(count, salt=i)
            wanted.append(oracle.result(kind, xs, rank, root=case.root, op="bxor", counts=counts))
        return [*wanted[:: case.order], reduce_model(case.inputs(3, salt=99), "min")]


@kind
class Background:
    """Asynchronous work, calls made at once in between, in callbacks too; waited for in any order, or not at all."""

    @staticmethod
    def draw(dice):
        times = dice.choose(1, 3, 20)
        return dice.case(
            dtype="int64",
            count=dice.count("int64") // times,
            times=times,
            root=dice.root(),
            between=[dice.choose("nothing", "call", "callback", "wait") for _ in range(times)],
            layout=dice.layout(),
        )

    @staticmethod
    def run(comm, case):
        got = []
        works = []
        for i, between in enumerate(case.between):
            x = case.lay_out(case.content(comm.rank, case.count, salt=i))
            work = comm.all_reduce(x, op="bxor", async_op=True)
            works.append(work)
            if between == "call":
                comm.broadcast(np.zeros(3), root=case.root)
            elif between == "callback":
                work.add_done_callback(lambda w: got.append(comm.broadcast(w.result().copy(), root=case.root)))
            elif between == "wait" and comm.rank == case.root:
                work.wait()
        comm.barrier()
        assert all(work.done() for work in works)
        return [work.result() for work in reversed(works)] + got

    @staticmethod
    def model(case, rank):
        sums = [reduce_model(case.inputs(case.count, salt=i), "bxor") for i in range(case.times)]
        return sums[::-1] + [x for x, between in zip(sums, case.between, strict=True) if between == "callback"]


@kind
class Many:
    """Lists of arrays of several dtypes and sizes, as one operation; sometimes by a plan."""

    @staticmethod
    def draw(dice):
        op = dice.choose("sum", "max", "prod")
        dtypes = [dice.dtype(op) for _ in range(dice.choose(1, 2, 3))]
        times = dice.choose(1, 5, 40)
        drawn = [dice.choose(*dtypes) for _ in range(times)]
        layout = [(i, dtype, dice.count(dtype) // times) for i, dtype in enumerate(drawn)]
        return dice.case(op=op, list=layout, way=dice.choose("reduce", "plan", "async"))

    @staticmethod
    def arrays(case, rank):
        """One rank's list."""
        return [Case(**{**vars(case), "dtype": dtype}).content(rank, count, salt=i) for i, dtype, count in case.list]

    @staticmethod
    def run(comm, case):
        xs = Many.arrays(case, comm.rank)
        if case.way == "plan":
            return comm.plan("all_reduce_many", xs, op=case.op)()
        if case.way == "async":
            return comm.all_reduce_many(xs, op=case.op, async_op=True).wait()
        return comm.all_reduce_many(xs, op=case.op)

    @staticmethod
    def model(case, rank):
        ranks = [Many.arrays(case, r) for r in range(case.size)]
        return [reduce_model(list(xs), case.op) for xs in zip(*ranks, strict=True)]


def draw_reduction(dice, blocks=1, **more):
    """What reductions have in common."""
    op = dice.choose(*OPS)
    dtype = dice.dtype(op)
    count = dice.count(dtype, blocks)
    return dice.case(op=op, dtype=dtype, count=count, place=dice.choose("in", "out"), layout=dice.layout(), **more)


@kind
class Planned:
    """One plan, several times, with other contents each time; only some of the ranks use it."""

    @staticmethod
    def draw(dice):
        return draw_reduction(dice, times=dice.choose(1, 3, 10), odd=dice.choose(True, False))

    @staticmethod
    def run(comm, case):
        x = np.zeros(case.count, NUMPY_DTYPES[case.dtype])
        out = np.zeros_like(x)
        plan = comm.plan("all_reduce", x, out, op=case.op)
        got = []
        for i in range(case.times):
            x[...] = case.content(comm.rank, case.count, salt=i)
            if case.odd and comm.rank % 2:
                comm.all_reduce(x, out, op=case.op)
            else:
                plan()
            got.append(out.copy())
        return got

    @staticmethod
    def model(case, rank):
        return [reduce_model(case.inputs(case.count, salt=i), case.op) for i in range(case.times)]


@kind
class Shared:
    """Arrays in shared memory, made there or moved there, whole or a slice that begins elsewhere on each rank; on some
    ranks private ones."""

    @staticmethod
    def draw(dice):
        case = draw_reduction(dice, root=dice.root(), way=dice.choose("reduce", "gather", "broadcast", "result"))
        case.private = dice.choose(0, 0, dice.random.randrange(1 << dice.size))
        case.begins = [dice.choose(0, 0, 1, 7) for _ in range(dice.size)]
        case.moved = dice.choose(True, False)
        return case

    @staticmethod
    def run(comm, case):
        shape = (comm.size, case.count) if case.way == "gather" else (case.count,)
        dtype = NUMPY_DTYPES[case.dtype]
        n, begin = int(np.prod(shape)), case.begins[comm.rank]
        whole = [np.empty(n + 7, dtype) if case.moved else comm.empty((n + 7,), dtype) for _ in range(2)]
        with comm.share(*whole) if case.moved else nullcontext():
            if case.private >> comm.rank & 1:
                arrays = [np.empty(shape, dtype) for _ in whole]
            else:
                arrays = [each[begin : begin + n].reshape(shape) for each in whole]
            return Shared.call(comm, case, *arrays)

    @staticmethod
    def call(comm, case, x, out):
        mine = case.content(comm.rank, case.count)
        if case.way == "gather":
            out[comm.rank] = mine
            return comm.all_gather(out[comm.rank], out).copy()
        x[...] = mine
        if case.way == "broadcast":
            return comm.broadcast(x, root=case.root).copy()
        if case.way == "result":
            result = comm.shared_result(x.shape, x.dtype, root=case.root)
            return comm.all_reduce(x, result, op=case.op).copy()
        return comm.all_reduce(x, None if case.place == "in" else out, op=case.op).copy()

    @staticmethod
    def model(case, rank):
        kind = {"gather": "all_gather", "broadcast": "broadcast"}.get(case.way, "all_reduce")
        return oracle.result(kind, case.inputs(case.count), rank, root=case.root, op=case.op)


@kind
class Objects:
    """Pickles with arrays in them, small and large."""

    @staticmethod
    def draw(dice):
        return dice.case(dtype="float64", count=dice.count("float64"), root=dice.root(), way=dice.choose("all", "root"))

    @staticmethod
    def run(comm, case):
        mine = {"rank": comm.rank, "x": case.content(comm.rank, case.count), "text": "é" * (case.count % 100)}
        got = comm.all_gather_object(mine) if case.way == "all" else comm.broadcast_object(mine, root=case.root)
        every = got if case.way == "all" else [got]
        assert all(one["text"] == mine["text"] for one in every)
        return [value for one in every for value in (np.array(one["rank"]), one["x"])]

    @staticmethod
    def model(case, rank):
        ranks = range(case.size) if case.way == "all" else [case.root]
        return [value for r in ranks for value in (np.array(r), case.content(r, case.count))]


@kind
class Groups:
    """A group of some of the ranks, made, used and left."""

    @staticmethod
    def draw(dice):
        colors = tuple(dice.choose(0, 1) for _ in range(dice.size))
        return dice.case(dtype="int64", count=dice.count("int64") // 4, colors=colors, worth=dice.random.random() < 0.2)

    @staticmethod
    def run(comm, case):
        if not case.worth:  # a rendezvous costs as much as hundreds of the other operations
            return [comm.all_reduce(case.content(comm.rank, case.count), op="bxor")]
        with comm.split(case.colors[comm.rank]) as group:
            return [group.all_reduce(case.content(comm.rank, case.count), op="bxor")]

    @staticmethod
    def model(case, rank):
        members = [r for r in range(case.size) if not case.worth or case.colors[r] == case.colors[rank]]
        return [reduce_model([case.content(r, case.count) for r in members], "bxor")]


@kind
class Folded:
    """Reductions by a callable that is neither commutative nor associative."""

    @staticmethod
    def draw(dice):
        return dice.case(
            dtype=dice.choose("int32", "uint8", "float64"),
            count=dice.count("int64") // dice.size,
            way=dice.choose("all_reduce", "reduce", "scan", "reduce_scatter"),
            root=dice.root(),
            layout=dice.layout(),
        )

    @staticmethod
    def run(comm, case):
        blocks = (case.size,) if case.way == "reduce_scatter" else ()
        x = case.lay_out(case.content(comm.rank, *blocks, case.count))
        more = {"root": case.root} if case.way == "reduce" else {}
        return [getattr(comm, case.way)(x, op=lambda a, b: a - b, **more)]

    @staticmethod
    def model(case, rank):
        blocks = (case.size,) if case.way == "reduce_scatter" else ()
        xs = case.inputs(*blocks, case.count)
        return [oracle.result(case.way, xs, rank, root=case.root, op=lambda xs: reduce(np.subtract, xs))]
