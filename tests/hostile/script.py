"""One case of an attack: steps of Python, drawn at random, logged before they are executed, judged by how they end.

The log is a program: each line is a step as it was executed, and a comment shows how it ended. Each line is one write
to a file, so the log is complete even if the next step ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import queue
import random
import re
import signal
import sys
import threading

import arguments
import numpy as np
import surface

import shmring

STEP = "<step>"
STEP_LIMIT_S = 0.03
FUNCTION_LIMIT_S = 1.0  # some start processes, or read much of /proc

# What a call may raise. A RuntimeError must have a text; everything else is a defect, AttributeError foremost.
DOCUMENTED = (
    shmring.ShmringError, TypeError, ValueError, BufferError, MemoryError, TimeoutError, IndexError,
    queue.Empty, queue.Full, StopIteration, EOFError, KeyboardInterrupt, pickle.PicklingError, asyncio.CancelledError,
    asyncio.TimeoutError,  # another class on CPython 3.10
)  # fmt: skip
# The one call that takes a path, which may be anything.
TAKES_PATH = re.compile(r"\.trace\(")
# An index of 2**63 is an OverflowError of NumPy's arrays, too.
INDEXES = re.compile(r"\[key\]|setitem\(")
# Texts that were not written for users: the code took something for what it was not.
INTERNAL = re.compile(r"'NoneType' object|has no attribute|referenced before assignment|not associated with a value")
UNSETTABLE = re.compile(r"not writable|read-?only|no setter|can't set|cannot set")

# Members that end their object, drawn less often than others.
FINAL = ("close", "abort", "__exit__", "__init__")
# Members that may wait and have no timeout: only for a thread that signals interrupt.
ENDLESS = ("__next__", "__iter__", "__await__", "__call__", "join")
# Members that an argument may call while it is used, whatever else waits.
ACTS = ("close", "abort", "commit", "release", "take", "task_done", "done", "hasten", "poll", "try_recv", "get_nowait")

# Steps that make an object of each class.
OPENINGS = (
    "sender, receiver = shmring.channel(65536)",
    "tight_sender, tight_receiver = shmring.channel(4096, when_full='drop_newest')",
    "record_sender, record_receiver = shmring.channel(4096, dtype='f8')",
    "fan_senders, fan = shmring.fan_in(2, 4096)",
    "record_fan_senders, record_fan = shmring.fan_in(2, 4096, dtype='f8')",
    "broadcaster, listeners = shmring.broadcast_channel(2, 4096)",
    "record_broadcaster, record_listeners = shmring.broadcast_channel(2, 4096, dtype='f8')",
    "queue = shmring.Queue(capacity_nbytes=65536)",
    "joinable = shmring.JoinableQueue(4, capacity_nbytes=65536)",
    "latest = shmring.Latest(4096); latest.write(b'first')",
    "latest_record = shmring.Latest(dtype='f8')",
    "named = shmring.open_channel(f'hostile{os.getpid()}', 'sender', 4096)",
    "buffer = aligned(4096); shmring.ring.format_ring(buffer, 8, 64)",
    "producer = shmring.ring.Producer(buffer); consumer = shmring.ring.Consumer(buffer)",
    "comm = shmring.init(rank=0, size=1, session=f'hostile{os.getpid()}', timeout=0.1)",
    "plan = comm.plan('all_reduce', np.ones(8))",
    "shared = comm.empty(8)",
    "held = comm.share(np.ones(1 << 15), np.ones(3))",
    "work = comm.all_reduce(np.ones(8), async_op=True)",
    "request = comm.irecv(np.ones(8), 0, 9)",
    "message = comm.sendrecv(np.ones(8), 0, np.ones(8), tag=3)",
    "lease = record_sender.reserve(3)",
    "block = shmring.Block(np.ones(512))",
)


class Interrupted(KeyboardInterrupt):
    """Raised by the handlers that interrupt steps."""


class Script:
    """The steps of one thread of a case."""

    def __init__(self, rng: random.Random, log: int, hostility: float = 0.4) -> None:
        self.log = log
        self.arguments = arguments.Arguments(rng, hostility)
        self.rng = rng
        self.names: dict[str, object] = {**vars(arguments), "key": 0, "value": 0}
        self.own: list[str] = []  # names of objects of shmring that the steps have made: these are attacked
        self.arrays: list[str] = []  # names of arrays over memory of shmring: arguments only
        self.label = ""
        self.steps = self.defects = 0
        self.interrupts = 0  # those that may have come between a system call and the line that notes it
        self.has_signals = True  # whether a timer interrupts steps that wait
        self.is_limited = False  # whether such a step is being executed
        self.is_child = False
        self.leaves_names = False  # a child has ended at once, and a channel that it had opened by name keeps the name
        self.is_internal = False  # the object is none that users get: it must not crash, but may raise anything

    # ---- executing a step ----

    def write(self, line: str) -> None:
        """Add a line to the log."""
        os.write(self.log, f"{self.label}{line}\n".encode(errors="backslashreplace"))

    def step(self, line: str, name: str = "", limit_s: float = STEP_LIMIT_S) -> bool:
        """Execute a step; whether it raised nothing. With ``name``, what the expression returns gets it."""
        line = f"{name} = {line}" if name else line
        self.write(line)
        self.steps += 1
        was_limited = self.is_limited  # in a handler, within the step that it interrupts
        try:
            with self.limit(limit_s):
                exec(compile(line, STEP, "exec"), self.names)
        except BaseException as error:
            self.is_limited = was_limited  # an interrupt may come while the block above is being left, too
            self.judge(error, line)
            return False
        if name:
            self.adopt(name)
        return True

    @contextlib.contextmanager
    def limit(self, seconds: float):
        """Interrupt a step that waits; again, if the first interrupt was swallowed."""
        if not self.has_signals:
            yield
            return
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        self.is_limited = True
        try:
            yield
        finally:
            self.is_limited = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def judge(self, error: BaseException, line: str) -> None:
        """Note how a step ended."""
        if isinstance(error, Interrupted):
            self.write(f"# interrupted {error}")
            return
        try:
            text = str(error)
        except Exception:
            text = ""
        self.write(f"# {type(error).__name__}: {text[:200]!r}")
        if self.is_internal or (isinstance(error, AttributeError) and UNSETTABLE.search(text)):
            return
        if self.interrupts and is_of_multiprocessing(error):  # its sharing thread, interrupted as it starts
            return
        is_documented = isinstance(error, DOCUMENTED) or (isinstance(error, RuntimeError) and text)
        is_documented = is_documented or (isinstance(error, OSError) and TAKES_PATH.search(line))
        is_documented = is_documented or (isinstance(error, OverflowError) and INDEXES.search(line))
        if not is_documented or (INTERNAL.search(text) and "None" not in line):
            self.defect(f"{type(error).__name__}: {text[:300]}", error)

    def defect(self, text: str, error: BaseException | None = None) -> None:
        """Note a defect; the case goes on."""
        self.defects += 1
        frames = []
        traceback = error.__traceback__ if error is not None else None
        while traceback is not None:
            frames.append(f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}")
            traceback = traceback.tb_next
        self.write(f"# DEFECT {text} at {' '.join(frames)}")

    def adopt(self, name: str) -> None:
        """Attack what a step has made, too."""
        value = self.names[name]
        if isinstance(value, (tuple, list)) and 0 < len(value) < 9 and any(is_attacked(item) for item in value):
            for index in range(len(value)):
                self.step(f"{name}[{index}]", f"{name}_{index}")
            del self.names[name]
        elif is_attacked(value):
            self.own.append(name)
            if len(self.own) > 40 and not self.is_limited:  # in a handler: the step that it interrupts may use that one
                self.forget(self.rng.choice(self.own[:30]))
        elif isinstance(value, np.ndarray) and value.base is not None and len(self.arrays) < 10:
            self.arrays.append(name)
        elif asyncio.iscoroutine(value):
            del value
            self.step(f"asyncio.run(awaiting({name})); del {name}")
        else:
            del self.names[name]

    def forget(self, name: str) -> None:
        """Delete the name of an object."""
        self.own.remove(name)
        self.step(f"del {name}")

    def drop(self) -> None:
        """Forget every object; arrays that were shared stay so until their handle or communicator is closed."""
        self.write("# the objects are dropped")
        for thing in self.names.values():
            if isinstance(thing, shmring.Shared):
                thing.close()
        self.own.clear()
        self.arrays.clear()
        for name in self.names.keys() - vars(arguments).keys():
            del self.names[name]
        gc.collect()

    # ---- drawing steps ----

    def open(self) -> None:
        """Make objects of every class."""
        for opening in OPENINGS:
            before = set(self.names)
            self.step(opening, limit_s=10)
            for name in sorted(set(self.names) - before - {"buffer"}):
                self.adopt(name)

    def random_step(self) -> None:
        """Some step: mostly a method of some object."""
        rng = self.rng
        if not self.own or rng.random() < 0.05:
            self.call_function(*rng.choice(list(surface.exported().items())))
            return
        name = rng.choice(self.own)
        cls = type(self.names[name])
        kinds = surface.methods, surface.attributes, surface.protocols
        (kind,) = rng.choices(kinds, (75, 10, 15))
        member = rng.choice(kind(cls) or surface.protocols(cls))
        if member in FINAL and rng.random() < 0.85:
            return
        if rng.random() < 0.02:
            self.forget(name)
        else:
            self.use(name, member)

    def call_function(self, name: str, function) -> None:
        """Call a public function, or a class."""
        given = {}
        if name == "shmring.init" and self.rng.random() < 0.7:
            given = {"rank": "0", "size": "1"}
        elif name == "shmring.spawn":  # costs more than the rest of a case
            if self.rng.random() < 0.8:
                return
            given = {"start_method": "'fork'", "timeout": "0.5"}
        self.step(self.call(name, function, given), f"r{self.steps}", FUNCTION_LIMIT_S)

    def use(self, name: str, member: str) -> None:
        """One use of a member of an object: a method, an attribute or a protocol."""
        function = getattr(type(self.names[name]), member, None)
        result = f"r{self.steps}"
        if member in ENDLESS and not self.has_signals:
            return
        if member in surface.PROTOCOLS:
            if "item__" in member:
                self.step(f"key, value = {self.argument('key')}, {self.argument('value')}")
            has_result = member not in ("__setitem__", "__delitem__")
            self.step(surface.PROTOCOLS[member].format(name), result if has_result else "")
        elif callable(function):
            self.step(self.call(f"{name}.{member}", function), result)
        elif self.rng.random() < 0.1:
            self.step(f"{name}.{member} = {self.argument('x')}")
        else:
            self.step(f"{name}.{member}", result)

    def call(self, callee: str, function, given: dict[str, str] | None = None) -> str:
        """A call with random arguments, except for those that are ``given``."""
        given = given or {}
        if isinstance(function, type):  # has no signature
            names = self.rng.sample(list(arguments.BY_NAME), self.rng.randrange(4))
            return f"{callee}({', '.join(self.argument(name) for name in names)})"
        parts, by_name = [], False
        for parameter in surface.parameters(function):
            name, is_optional = parameter.name, parameter.default is not parameter.empty
            if parameter.kind is parameter.VAR_KEYWORD:
                parts += self.arguments.settings()
            elif parameter.kind is parameter.VAR_POSITIONAL:
                parts += [self.argument("x") for _ in range(self.rng.choice((0, 1, 1, 2)))]
            elif name in given or not is_optional or self.rng.random() < self.likelihood(name):
                by_name = by_name or is_optional or parameter.kind is parameter.KEYWORD_ONLY
                value = given.get(name) or self.argument(name)
                parts.append(f"{name}={value}" if by_name else value)
        return f"{callee}({', '.join(parts)})"

    def likelihood(self, parameter: str) -> float:
        """How often a parameter with a default is given; the timeout always, if nothing would interrupt the call."""
        if parameter == "timeout":
            return 0.95 if self.has_signals else 1
        return 0.5

    def argument(self, parameter: str) -> str:
        """One argument for a parameter of this name."""
        if parameter == "array" and self.arrays and self.rng.random() < 0.2:  # `shared_view` takes no others
            return self.rng.choice(self.arrays)
        acts = [f"{name}.{act}" for name in self.own for act in ACTS if hasattr(type(self.names[name]), act)]
        own = [name for name in self.own if self.has_signals or not hasattr(self.names[name], "__next__")]
        return self.arguments.text(parameter, [*own, *self.arrays], acts, self.has_signals)


def is_of_multiprocessing(error: BaseException) -> bool:
    """Whether a module of multiprocessing raised it."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return "multiprocessing" in traceback.tb_frame.f_code.co_filename


def is_attacked(value: object) -> bool:
    """Whether a value is an object of a public class."""
    return isinstance(value, tuple(surface.classes().values()))


def watch_hooks(script: Script) -> None:
    """Errors that no caller can catch are defects, too, unless a user's function has raised them."""

    def unraisable(what) -> None:
        origin = None  # the module of what raised it
        if callable(what.object):
            origin = str(getattr(what.object, "__module__", ""))
        elif what.object is None and what.exc_traceback is not None:  # a finalizer, from CPython 3.14 on
            origin = what.exc_traceback.tb_frame.f_globals["__name__"]
        is_users = origin is not None and not origin.startswith("shmring")
        if not is_users and not isinstance(what.exc_value, (Interrupted, arguments.Refusal)):
            script.defect(f"unraisable {what.exc_type.__name__}: {what.exc_value} in {what.object!r}", what.exc_value)

    def in_thread(what) -> None:
        script.defect(f"in thread {what.thread}: {what.exc_type.__name__}: {what.exc_value}", what.exc_value)

    def interrupt(_number, frame) -> None:
        if script.is_limited:
            # In the frame of a step: in compiled code that waits. Else anywhere in Python code.
            script.interrupts += frame.f_code.co_filename != STEP
            raise Interrupted(f"at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")

    sys.unraisablehook = unraisable
    threading.excepthook = in_thread
    signal.signal(signal.SIGALRM, interrupt)
