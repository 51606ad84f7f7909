"""An exception of a signal handler, at any instruction of the calls that open files: nothing stays open or named."""

import contextlib
import gc
import os
import sys

import pytest
from support.programs import run_program

from shmring.collectives.bootstrap import rendezvous as bootstrap
from shmring.core.memory import names, segment
from shmring.core.memory.segment import CHANNEL, HEADER_NBYTES
from shmring.core.memory.unnamed import create_unnamed

NBYTES = 2 * HEADER_NBYTES
FOLDERS = tuple(os.path.dirname(module.__file__) for module in (names, bootstrap))


class Interrupted(BaseException):
    pass


@contextlib.contextmanager
def interrupted_at(number):
    """Raise before one instruction of the Python code of these rooms; the list gets its place."""
    places = []
    left = number

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                raise Interrupted
        return trace

    tracer = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # CPython 3.12 traces instructions if any frame wants it at settrace
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(tracer)


def open_files():
    return {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_open(fd)}


def is_open(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")  # listdir's own is not any more


def make(name):
    segment.create(name, NBYTES, kind=CHANNEL).close()


def make_sparse(name):
    segment.create(name, NBYTES, kind=CHANNEL, sparse_nbytes=HEADER_NBYTES).close()


def make_unnamed(name):
    create_unnamed(name, NBYTES, kind=CHANNEL).close()


def attach(name):
    segment.attach(name).close()


def join(name):
    segment.join(name, kind=CHANNEL).close()


def remove(name):
    names.remove_stale(name)


def lose(name):
    names.claim(name)


def meet(name):
    for own in bootstrap.rendezvous(session=name, rank=0, size=1, nbytes=NBYTES):
        own.close()


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of open(), where no name refers to its result yet
@pytest.mark.parametrize("call", [make, make_sparse, make_unnamed, attach, join, remove, lose, meet])
def test_an_interrupt_at_any_instruction_reaches_the_caller_and_leaves_nothing(call, session, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: ignored.append(args.exc_type))
    name = session if call is meet else segment.segment_name(session, "part")
    path = f"/dev/shm{segment.segment_name(session, 'r0') if call is meet else name}"
    kept = None
    if call in (attach, join, remove):
        kept = segment.create(name, NBYTES, kind=CHANNEL)
        kept.announce()
        kept.share()
    call(name)
    gc.collect()
    before, held, number = open_files(), set(names._claims), 0
    while True:
        number += 1
        has_reached = False
        try:
            with interrupted_at(number) as places:
                call(name)
        except Interrupted:
            has_reached = True
        if not places:
            break
        assert has_reached, f"interrupted at {places[0]}, instruction {number}"
        assert Interrupted not in ignored, f"interrupted at {places[0]}, instruction {number}"
        assert open_files() == before, f"interrupted at {places[0]}, instruction {number}"
        assert set(names._claims) == held
        assert os.path.exists(path) == (kept is not None), places[0]
    assert number > 100
    if kept is not None:
        kept.close()


def test_a_descriptor_that_lives_until_the_interpreter_ends_is_closed_without_a_word():
    code = "import os, sys; from shmring.core.memory.descriptor import Descriptor; sys.kept = Descriptor(os.dup, 1)"
    done = run_program(sys.executable, "-c", code)
    assert (done.stdout, done.stderr) == ("", "")
