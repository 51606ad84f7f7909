"""The C table in tests: a shared object, loaded by ctypes, makes each call in a thread without the GIL."""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import shmring.capi
from shmring.collectives.plan.kinds import ON_ARRAYS
from shmring.dtypes import DTYPE_CODES, OP_CODES
from support.on_ranks import on_ranks

SOURCE = Path(__file__).with_name("capi_calls.c")
COMPILERS = {"C11": ("CC", "cc", ["-x", "c", "-std=c11"]), "C++17": ("CXX", "c++", ["-x", "c++", "-std=c++17"])}
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic"]

KINDS = {name: kind.code for name, kind in ON_ARRAYS.items()}
PLAN, SEND, RECV, SENDRECV, ISEND, IRECV, TEST, WAIT, OPEN, DUP, SPLIT, CLOSE, ABORT, RELEASE = range(100, 114)

(OK, BAD_ARGUMENT, CLOSED, PEER_LOST, TIMEOUT, MISMATCH, ABORTED, OUT_OF_MEMORY, INTERNAL, MESSAGE_TIMEOUT,
 MESSAGE_TOO_LONG) = range(11)  # fmt: skip
NO_TIMEOUT, DEFAULT_TIMEOUT, ANY = -1, -2, -1
NO_COLOR = -(2**63)


def compiler(language: str) -> list[str]:
    """The command of the compiler for ``C11`` or ``C++17``; skips where there is none."""
    variable, usual, options = COMPILERS[language]
    command = os.environ.get(variable, usual).split()
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs a compiler of {language}: {command[0]} is not there")
    return [*command, *options]


def build(folder: Path, language: str = "C11", source: Path = SOURCE) -> str:
    """Compile the calls as a shared object in ``folder``; its path."""
    path = folder / f"{source.stem}-{language.replace('+', 'p')}.so"
    command = [*compiler(language), *WARNINGS, "-shared", "-fPIC", "-pthread", f"-I{shmring.capi.get_include()}"]
    done = subprocess.run([*command, str(source), "-o", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(path)


class ReceivedMessage(ctypes.Structure):
    """``shmring_message``."""

    _fields_ = (
        ("source", ctypes.c_int),
        ("tag", ctypes.c_int),
        ("nbytes", ctypes.c_uint64),
        ("dtype", ctypes.c_int),
    )


class Job(ctypes.Structure):
    """The ``job`` of ``capi_calls.c``: a call, and what it has led to."""

    _fields_ = (
        ("api", ctypes.c_void_p), ("comm", ctypes.c_void_p), ("what", ctypes.c_int), ("dtype", ctypes.c_int),
        ("op", ctypes.c_int), ("root", ctypes.c_int), ("x", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64), ("out_count", ctypes.c_int64), ("timeout_ns", ctypes.c_int64),
        ("out_dtype", ctypes.c_int), ("peer", ctypes.c_int), ("tag", ctypes.c_int), ("source", ctypes.c_int),
        ("out_tag", ctypes.c_int), ("request", ctypes.c_void_p), ("object", ctypes.c_void_p),
        ("color", ctypes.c_int64), ("key", ctypes.c_int64), ("made", ctypes.c_void_p), ("times", ctypes.c_int64),
        ("code", ctypes.c_int), ("rank", ctypes.c_int), ("is_over", ctypes.c_int), ("message", ReceivedMessage),
        ("text", ctypes.c_char * 1024),
    )  # fmt: skip


class CallError(Exception):
    """A call that returned a code: ``code``, ``rank`` and ``text`` as `last_error` has them."""

    def __init__(self, code: int, rank: int, text: str) -> None:
        super().__init__(code, rank, text)
        self.code, self.rank, self.text = code, rank, text


class Table:
    """The calls of one rank, by a shared object that `build` has made."""

    def __init__(self, path: str) -> None:
        self.without_gil = ctypes.CDLL(path)
        self.with_gil = ctypes.PyDLL(path)  # the calling thread keeps the GIL
        self.without_gil.checked_table.restype = ctypes.c_void_p
        self.address = shmring.capi.table_address()
        assert self.without_gil.checked_table(ctypes.c_void_p(self.address)) == self.address

    def job(self, what, comm=None, **fields) -> Job:
        """A call; arrays as ``x`` and ``out`` give addresses, and dtype where it is not given."""
        job = Job(api=self.address, comm=comm, what=KINDS.get(what, what), root=-1, times=1, timeout_ns=DEFAULT_TIMEOUT)
        for name in ("x", "out"):
            if isinstance(fields.get(name), np.ndarray):
                fields.setdefault("dtype", DTYPE_CODES[fields[name].dtype.name])
                fields[name] = fields[name].ctypes.data
        for name, value in fields.items():
            setattr(job, name, OP_CODES[value] if name == "op" and isinstance(value, str) else value)
        return job

    def run(self, *jobs: Job, keep_gil: bool = False) -> None:
        """Run jobs at the same time, each in a thread; raises the first error."""
        array = (Job * len(jobs))(*jobs)
        library = self.with_gil if keep_gil else self.without_gil
        assert library.run_jobs(array, len(jobs)) == 0
        for job, done in zip(jobs, array, strict=True):
            ctypes.memmove(ctypes.byref(job), ctypes.byref(done), ctypes.sizeof(Job))
        for job in jobs:
            if job.code:
                raise CallError(job.code, job.rank, job.text.decode())

    def call(self, what, comm=None, keep_gil=False, **fields) -> Job:
        """Run one job in a thread."""
        job = self.job(what, comm, **fields)
        self.run(job, keep_gil=keep_gil)
        return job

    def run_here(self, job: Job, keep_gil: bool = False) -> None:
        """Run a job on the calling thread; it raises nothing."""
        (self.with_gil if keep_gil else self.without_gil).run_here(ctypes.byref(job))

    def rank_of(self, handle: int) -> int:
        """The rank, by the table."""
        return self.without_gil.rank_of(ctypes.c_void_p(self.address), ctypes.c_void_p(handle))

    def size_of(self, handle: int) -> int:
        """The number of ranks, by the table."""
        return self.without_gil.size_of(ctypes.c_void_p(self.address), ctypes.c_void_p(handle))

    def open(self, communicator) -> int:
        """The handle of a communicator."""
        return self.call(OPEN, object=id(communicator)).made

    def release(self, handle: int) -> None:
        """Give a handle back."""
        self.call(RELEASE, handle)

    def error_of(self, what, comm=None, **fields) -> tuple[int, int, str]:
        """Code, rank and text of a call that fails."""
        with pytest.raises(CallError) as found:
            self.call(what, comm, **fields)
        return found.value.args


def on_table(*sizes, **options):
    """`on_ranks` for a function of a communicator, the C table and a handle of it, which is released afterwards."""

    def make(function):
        @functools.wraps(function)
        def with_table(comm, c_library, *given):
            table = Table(c_library)
            handle = table.open(comm)
            function(comm, table, handle, *given)
            table.release(handle)

        names = ["comm", "c_library", *list(inspect.signature(function).parameters)[3:]]
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        with_table.__signature__ = inspect.Signature(parameters)
        return on_ranks(*sizes, **options)(with_table)

    return make
