"""`spawn` in an interactive session, of functions and classes that are defined there."""

import sys
import zipfile

import pytest
from support.programs import run_program, run_python

# Run as an interpreter without a script runs it: no process could import its ``__main__``.
SESSION = """
import functools, sys
import numpy as np
import shmring

class Point:
    def __init__(self, x):
        self.x = x

class MyError(Exception):
    pass

factor = 3

def scaled(comm, point, sender):
    if comm.rank == 0:
        sender.send(b"from rank 0")
    total = comm.all_reduce(np.array([point.x * factor * (comm.rank + 1)]))
    return Point(float(total[0]))

def fail(comm):
    raise MyError("of this session")
"""

BY_VALUE = """
sender, receiver = shmring.channel(1 << 12)
points = shmring.spawn(functools.partial(scaled, point=Point(2)), 2, kwargs={"sender": sender}, start_method=METHOD)
assert receiver.recv(timeout=60) == b"from rank 0"
assert [type(one) for one in points] == [Point, Point]
assert [one.x for one in points] == [18.0, 18.0]
assert shmring.spawn(lambda comm: comm.rank * factor, 2, start_method=METHOD) == [0, 3]
try:
    shmring.spawn(fail, 2, start_method=METHOD)
except MyError as error:
    print("caught", error)
"""

WITHOUT = """
sys.modules["cloudpickle"] = None
for method in ("spawn", "forkserver"):
    try:
        shmring.spawn(fail, 2, start_method=method)
    except ImportError as error:
        print("refused", error)
assert shmring.spawn(lambda comm: comm.rank, 2, start_method="fork") == [0, 1]
assert shmring.spawn(shmring.Communicator.barrier, 2) == [None, None]
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_and_classes_of_a_session_are_passed_by_value(method):
    pytest.importorskip("cloudpickle")
    assert "caught of this session" in run_python("-c", f"{SESSION}METHOD = {method!r}\n{BY_VALUE}")


def test_without_cloudpickle_the_error_has_what_to_do():
    printed = run_python("-c", SESSION + WITHOUT)
    assert printed.count("refused 'fail' is defined in a notebook or in the interpreter") == 2
    assert printed.count("pip install 'shmring[notebook]'") == 2


# ---- programs without a file of their own ----------------------------------------------------------------------------

PROGRAM = """
import sys
import shmring

class Point:
    pass

def work(comm):
    return Point() if comm.rank else None

if __name__ == "__main__":
    print([type(one).__name__ for one in shmring.spawn(work, 2)])
"""


def started(tmp_path, how, program):
    """A command that runs a program, and its standard input."""
    if how == "standard input":
        return ["-"], program
    if how == "package":
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "__init__.py").touch()
        (tmp_path / "package" / "__main__.py").write_text(program)
        return ["-m", "package"], ""
    with zipfile.ZipFile(tmp_path / "program.pyz", "w") as archive:
        archive.writestr("__main__.py", program)
    return ["program.pyz"], ""


WAYS = {
    "standard input": "a program on standard input",
    "package": "the __main__.py of a package or archive",
    "archive": "the __main__.py of a package or archive",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", WAYS)
def test_functions_of_a_program_that_is_in_no_module_are_passed_by_value(tmp_path, how):
    pytest.importorskip("cloudpickle")
    command, text = started(tmp_path, how, PROGRAM)
    done = run_program(sys.executable, *command, input=text, cwd=tmp_path)
    assert done.stdout == "['NoneType', 'Point']\n"


@pytest.mark.parametrize("how", WAYS)
def test_without_cloudpickle_the_error_names_the_place_and_what_to_do(tmp_path, how):
    command, text = started(tmp_path, how, f"import sys\nsys.modules['cloudpickle'] = None\n{PROGRAM}")
    last = run_program(sys.executable, *command, input=text, cwd=tmp_path, status=1).stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: 'work' is defined in {WAYS[how]}, which other processes cannot import")
    assert "pip install 'shmring[notebook]'" in last


def test_functions_of_modules_need_no_cloudpickle_in_a_program_on_standard_input():
    program = """
import sys
sys.modules["cloudpickle"] = None
import shmring
print(shmring.spawn(shmring.Communicator.barrier, 2))
"""
    assert run_program(sys.executable, "-", input=program).stdout == "[None, None]\n"
