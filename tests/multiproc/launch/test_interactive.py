"""`spawn` in an interactive session, of functions and classes that are defined there."""


import pytest
from support.programs import run_python

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


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_and_classes_of_a_session_are_passed_by_value(method):
    pytest.importorskip("cloudpickle")
    assert "caught of this session" in run_python("-c", f"{SESSION}METHOD = {method!r}\n{BY_VALUE}")


def test_without_cloudpickle_the_error_has_what_to_do():
    printed = run_python("-c", SESSION + WITHOUT)
    assert printed.count("refused 'fail' is defined in a notebook or in the interpreter") == 2
    assert printed.count("pip install 'shmring[notebook]'") == 2
