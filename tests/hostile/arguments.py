"""Arguments at random, as source text: good ones by the name of the parameter, and hostile ones for every parameter.

A step of an attack is a line of Python. So is each argument, and a case prints as a program. Everything that such a
line may name, besides the objects that the case has made, is in this module's namespace.
"""

from __future__ import annotations

import asyncio
import copy  # noqa: F401
import gc  # noqa: F401
import itertools
import mmap  # noqa: F401
import operator  # noqa: F401
import os  # noqa: F401
import pickle  # noqa: F401
import random
import sys  # noqa: F401
import weakref  # noqa: F401
from contextlib import suppress

import ml_dtypes  # noqa: F401
import numpy as np

import shmring
import shmring.ring  # noqa: F401


class Refusal(ValueError):
    """Raised by `Raising`."""


class Raising:
    """Raises in every protocol that a call may use on its argument."""

    def _refuse(self, *_args, **_kwargs):
        raise Refusal("this argument refuses")

    __index__ = __int__ = __float__ = __len__ = __iter__ = __getitem__ = __bool__ = __str__ = __repr__ = _refuse
    __array__ = __reduce_ex__ = __eq__ = __hash__ = __call__ = __buffer__ = __fspath__ = __dlpack__ = _refuse
    __dlpack_device__ = __copy__ = _refuse


class Meddling:
    """Runs code of the case in every protocol that a call may use on its argument, then answers."""

    def __init__(self, meddle, answer=1) -> None:
        self.meddle, self.answer = meddle, answer

    def __index__(self):
        self._act()
        return self.answer

    __int__ = __len__ = __index__

    def __float__(self):
        self._act()
        return 0.001

    def __array__(self, *_args, **_kwargs):
        self._act()
        return np.ones(self.answer)

    def __iter__(self):
        for _ in range(3):
            self._act()
            yield b"meddling"

    def __reduce__(self):
        self._act()
        return int, (self.answer,)

    def _act(self) -> None:
        with suppress(Exception):
            self.meddle()


class Endless:
    """Iterates without end, and has no length."""

    def __iter__(self):
        return itertools.repeat(b"endless")


class Unloadable:
    """Pickles; raises when it is loaded."""

    def __reduce__(self):
        return refuse, ()


class Node:
    """A place in a cycle."""


class Finalized(Node):
    """Uses what it holds as it is finalized, from within the collector."""

    def __init__(self, thing) -> None:
        self.thing, self.me = thing, self

    def __del__(self):
        repr(self.thing)


def caught_with(thing):
    """A caught exception whose frame holds it and an object."""
    try:
        raise Refusal(thing is None)
    except Refusal as error:
        caught = error
        return caught


def closure_over(thing):
    """A function that refers to itself and to an object."""

    def function():
        return function, thing

    return function


def generator_with(thing):
    """A suspended generator that closes an object as it ends."""
    try:
        yield
    finally:
        getattr(thing, "close", repr)


def refuse(*_args):
    """Raise."""
    raise Refusal("this object refuses to be loaded")


def answer(*_args):
    """What a rank that is spawned returns."""
    return 42


def aligned(nbytes: int) -> np.ndarray:
    """Memory for a ring."""
    memory = np.zeros(nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    return memory[start : start + nbytes]


async def awaiting(thing):
    """Await what a call returned, for a moment; cancel it then."""
    return await asyncio.wait_for(thing, 0.01)


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


# Arguments for every parameter, good ones for few.
HOSTILE = words("""
None True False 0 1 -1 2 7 255 -2**31 2**31 2**32 2**62 2**63-1 2**63 -2**63 2**64 2**200 0.5 -0.5 1e300
float('nan') float('inf') -float('inf') 1j '' 'x' 'sum' '\\0' '\\ud800' 'x'*300 b'' b'x' b'x'*4097 bytearray(64)
() [] {} set() (1,) [1,2,3] [None] (1,)*70 (0,)*40 (2**40,)*3 (2**62,0) (-1,) ('a',) range(3) slice(1,2) object()
object Ellipsis NotImplemented int print len refuse lambda*_:None iter([b'a',b'b']) Raising() Raising Unloadable()
np.dtype('f4') np.dtype('O') 'O' 'V0' 'i4,O' np.int64(3) np.float32(0.001) np.True_ np.array(1.5)
np.zeros(0) np.zeros((2,0,3)) np.zeros((1,)*32) np.array([None,1]) np.array('x') np.ma.masked_array([1,2],[0,1])
np.zeros(3,'i4,f8') np.zeros(6)[::2] np.zeros(3,'>f4') np.zeros(4,'M8[s]') np.zeros(3,ml_dtypes.bfloat16)
np.zeros(3,np.longdouble)
np.zeros(3,'V0') np.zeros(2,'S0') np.broadcast_to(1.0,(2**40,)) np.frombuffer(b'abcdefgh')
np.recarray((2,),'i4') np.matrix([[1,2]])
memoryview(b'abc')[::2] memoryview(bytearray(8)).cast('d')""")
STRANGE_TIMEOUTS = words("-1 float('nan') -float('inf') 'x' b'' () Raising() -1e-300 True")
ENDLESS_TIMEOUTS = words("None float('inf') 1e300 1e18 2**70")

PAYLOADS = words("""
b'' b'x' b'x'*100 b'x'*5000 b'x'*300000 bytearray(17) memoryview(b'abcdef') np.ones(3) np.ones(1000,'f4')
np.ones((3,4)) np.arange(40000) np.ones((2,3,4),'i2') np.zeros(3,'i4,f8') np.ones((4,4))[:,::2] np.array(2.5)
np.zeros(3,ml_dtypes.bfloat16) np.zeros(4,'M8[s]') np.zeros(0) np.ones(8)
np.ones(8) np.ones(8) np.ones(8,'i4')""")
RECORDS = words(
    "np.ones(1) np.ones(5) np.ones(200) np.ones(()) 1.5 np.ones((2,2)) np.float64(2) [1.0,2.0] np.zeros(999)"
)
OBJECTS = words("1 'x' {'a':np.ones(5)} [1,(2,)] b'x'*200000 None np.ones(30000) Unloadable() Raising() print lambda:1")
OUTPUTS = words(
    "np.empty(8) np.empty(1000) np.empty((3,4)) np.empty(40000) bytearray(64) np.empty(8,'f4') np.zeros(8)[::2]"
)
COUNTS = words("None 0 1 2 3 5 100 np.int64(2)")
SIZES = words("1 2 3 8")
BUFFERS = words("aligned(4096) aligned(100) bytearray(4096) mmap.mmap(-1,8192) memoryview(mmap.mmap(-1,8192))")

# Good arguments, mostly, by the name of the parameter.
BY_NAME = {
    "after": words("0 1 2 100 -1 2**64"),
    "allow_pickle": words("None True False"),
    "args": ["()", "(1,)"],
    "array": PAYLOADS,
    "arrays": ["[np.ones(3),np.ones(4)]", "[]", "[np.ones(3,'f4')]*3", "[np.ones(30000),np.ones(1)]"],
    "async_op": ["False", "True"],
    "block": ["True", "False"],
    "buffer": BUFFERS,
    "calls": words("1 100 65536"),
    "callback": ["print", "lambda*_:None", "refuse"],
    "capacity_nbytes": words("4096 65536 1<<20 100 64"),
    "collective": words("'all_reduce' 'broadcast' 'barrier' 'all_gather' 'x'"),
    "color": words("0 1 None"),
    "coordinates": words("(0,) (0,0) 0 (9,)"),
    "count": COUNTS,
    "counts": words("None [8] [3] (4,4) [0]"),
    "data": ["b'x'*64", "b'x'*128", "np.ones(8)", "bytearray(640)"],
    "default": ["None", "7"],
    "drops": ["False", "True"],
    "dims": words("1 (1,1) (2,3) 0 (-1,)"),
    "directory": ["'timelines'", "'.'", "'/dev/null/none'"],
    "dst": words("0 0 1 -1"),
    "dtype": words("None 'f4' 'f8' np.int32 'i4,f8' 'M8[s]' ml_dtypes.bfloat16 np.longdouble 'S5'"),
    "ends": words("[shmring.channel()[1],shmring.Queue()] [shmring.Queue()] [] [0] [shmring.channel()[0]] None"),
    "env": ["None", "{}", "{'A':'b'}"],
    "fn": ["answer", "print", "refuse"],
    "grace": ["0.1"],
    "init": ["None", "{}", "{'timeout':1}"],
    "interval": ["0", "0.001"],
    "key": words("None 0 1 -1 slice(None) ... 'f0'"),
    "kwargs": ["None", "{}"],
    "maxsize": words("0 1 100 -1"),
    "messages": ["[b'a',np.ones(3)]", "[]", "np.ones((20,3))", "iter([b'a'])", "[b'x'*50000]*3", "Endless()"],
    "number": words("0 1 7 -1 2**64"),
    "periodic": words("False True (True,False)"),
    "name": ["f'hostile{os.getpid()}'"],
    "nbytes": words("0 1 1000 1<<20"),
    "nreceivers": SIZES,
    "nsenders": SIZES,
    "nheads": ["1", "2", "0", "1025"],
    "nslots": words("1 2 8 64"),
    "obj": OBJECTS,
    "objs": words("[1] [print] [b'x'*5000] [1,2] None"),
    "op": ["'sum'", "'max'", "'prod'", "'min'", "'avg'", "lambda a,b:a+b", "np.add", "refuse"],
    "out": ["None", *OUTPUTS],
    "out_counts": words("None [8] [3]"),
    "out_tag": words("-1 0 5"),
    "rank": words("0 0 1 None"),
    "ranks": words("[0] [0] [0,1] [] [1]"),
    "reason": words("'' 'hostile' 'x'*5000"),
    "record": RECORDS,
    "records": RECORDS,
    "rendezvous_timeout": ["0.2", "1"],
    "role": words("'sender' 'receiver' 'x'"),
    "root": words("0 0 0 1 -1"),
    "session": ["f'hostile{os.getpid()}'", "'nothing'"],
    "shape": words("1 4 (3,) (2,3) () 0 (2,0) 100 1000 np.int64(3)"),
    "size": words("1 1 1 0"),
    "slot_nbytes": words("1 8 64 24"),
    "src": words("0 0 -1 1"),
    "start": words("0 7 2**63"),
    "start_method": ["'fork'"],
    "threads": ["False", "True"],
    "tag": words("0 0 -1 5 2**31-1"),
    "timeout": words("0 0.001 0.01 0.005 0.02 np.float64(0.01)"),
    "value": words("1 np.ones(3) 0.5 b'x' b'x'*5000 'x' None"),
    "when_full": words("'wait' 'drop_newest' 'x'"),
    "slow_timeout": words("None 0 0.001 60 -1 'x'"),
    "x": [*PAYLOADS, *RECORDS[:3]],
}
# For ``**settings``.
SETTINGS = words("""timeout=0.1 threads=1 threads=2 slot_nbytes=4096 nslots=4 pair_queue_nbytes=4096 spin_us=0 tick_ms=1
huge_pages=7 round_nbytes=-9 timeout=float('nan') nslots=2**40 slot_nbytes=-7 placement='x' unknown=1 timeout=None
allow_pickle=False""")


class Arguments:
    """Draws arguments: good ones, hostile ones, and objects of the case whatever the parameter is for."""

    def __init__(self, rng: random.Random, hostility: float) -> None:
        self.rng, self.hostility = rng, hostility

    def text(self, parameter: str, objects: list[str], acts: list[str], waits: bool = True) -> str:
        """One argument for a parameter of this name.

        ``objects`` are names of objects; ``acts`` are calls that the argument may make while it is used. Without
        ``waits`` nothing would interrupt a call: it gets a timeout that ends.
        """
        rng = self.rng
        kind = rng.random()
        if parameter in ("timeout", "rendezvous_timeout", "interval"):
            if kind > self.hostility / 2:
                return rng.choice(BY_NAME[parameter])
            return rng.choice([*STRANGE_TIMEOUTS, *(ENDLESS_TIMEOUTS if waits else [])])
        if kind < self.hostility / 6 and objects:
            return rng.choice(objects)
        if kind < self.hostility / 4 and acts:
            return f"Meddling({rng.choice(acts)})"
        if kind < self.hostility or parameter not in BY_NAME:
            return rng.choice(HOSTILE)
        return rng.choice([text for text in BY_NAME[parameter] if waits or text != "Endless()"])

    def settings(self) -> list[str]:
        """Some keyword arguments for ``**settings``."""
        drawn = self.rng.sample(SETTINGS, self.rng.choice((0, 0, 1, 2)))
        return list({setting.partition("=")[0]: setting for setting in drawn}.values())
