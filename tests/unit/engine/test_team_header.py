"""The helper threads of ``collectives/engine/team.h`` by themselves, without an engine: built as a C library of its
own."""

import ctypes
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import support

import shmring

SOURCE = Path(support.__file__).parent / "team_calls.c"


@pytest.fixture(scope="module")
def count_calls(tmp_path_factory):
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("team") / "team_calls.so"
    options = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread", f"-I{shmring.get_include()}"]
    subprocess.run([*compiler, *options, SOURCE, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).count_calls
    function.restype = ctypes.c_int64
    return function


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 32])
def test_each_call_has_each_helper_at_work_once(count_calls, threads):
    started = ctypes.c_int()
    assert count_calls(threads, 200, ctypes.byref(started)) == 200 * (threads - 1)
    assert started.value == threads
