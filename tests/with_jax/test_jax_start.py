"""How a JAX program starts over shmring: launchers, arguments, order of imports, the names of the library."""

import ctypes
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jaxlib
import pytest
from support.command import status_of_command
from support.installed import ROOT
from support.jax_programs import LIMIT_S, run_program

import shmring.jax

ONE_SUM = """
    total = mapped(lambda a: lax.psum(a, "x"), mesh(), P("x"), P())(spread(np.ones(n), mesh(), "x"))
    from jax._src import xla_bridge
    report(total=float(own(total)[0]), argv=sys.argv[1:], how=jax.config.jax_cpu_collectives_implementation)
"""
EXPECTED = {"total": 2.0, "argv": [], "how": "mpi"}
LIBRARY = find_spec("shmring.jax._mpi").origin


def run(*command, **environ):
    """A program in one process; its status and all that it wrote."""
    environ = {**os.environ, **environ}
    done = subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_initialize_in_a_script_that_an_ordinary_run_starts(tmp_path):
    first = 'import shmring.jax; shmring.jax.initialize(settings={"timeout": 60}, initialization_timeout=100)'
    assert run_program(tmp_path, 2, ONE_SUM, first=first, start="", options=()).reports == [EXPECTED] * 2


def test_initialize_with_the_arguments_of_jax_needs_no_launchers_variables(tmp_path):
    first = """
rank, n, port = (os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
del os.environ["SHMRING_SESSION"], os.environ["MASTER_ADDR"]
import shmring.jax; shmring.jax.initialize("127.0.0.1:" + port, int(n), int(n) - 1 - int(rank))     # turned around
"""
    assert run_program(tmp_path, 2, ONE_SUM, first=first, start="", options=()).reports == [EXPECTED] * 2


def test_run_jax_with_a_module_and_arguments(tmp_path):
    program = """
import os, sys, jax
jax.distributed.initialize()
os.write(1, f"{sys.argv[1:]} {jax.device_count()}\\n".encode())     # a line at once
"""
    (tmp_path / "job.py").write_text(program)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, output = run("-m", "shmring", "run", "--jax", "-n", "2", "-m", "job", "a", "--b", PYTHONPATH=path)
    assert code == 0, output
    assert output.count("['a', '--b'] 2") == 2, output


def test_a_program_of_jax_without_the_option_ends_with_the_hint(tmp_path):
    ended = run_program(tmp_path, 2, ONE_SUM, options=(), status=1)
    assert "coordinator_address should be defined" in ended.output
    hint = "program.py calls jax.distributed.initialize() without arguments, which finds the other ranks if the program"
    assert f"{hint} is started by `shmring run --jax`" in ended.output
    other = run_program(tmp_path, 1, "sys.exit(3)", start="", options=(), status=3)
    assert "--jax" not in other.output


def test_a_program_that_does_not_connect_its_processes_ends_with_a_line_that_says_so(tmp_path):
    ended = run_program(tmp_path, 2, "assert n == 1", start="")
    line = "program.py has not called jax.distributed.initialize(): its 2 processes ran apart, each as a job of its own"
    assert ended.output.count(line) == 1
    assert "apart" not in run_program(tmp_path, 2, "assert n == 2").output


def test_one_process_needs_no_launcher(tmp_path):
    script = tmp_path / "alone.py"
    script.write_text("import jax\nprint(jax.device_count(), jax.config.jax_cpu_collectives_implementation)\n")
    code, output = run("-m", "shmring.jax", str(script))  # JAX may print warnings of its own
    assert code == 0, output
    assert "1 mpi" in output.splitlines()


def test_run_jax_refuses_what_is_no_program_of_python(capsys):
    assert status_of_command("run", "--jax", "-n", "2", "/bin/true") == 2
    assert "--jax takes a script (.py) or -m MODULE, not /bin/true" in capsys.readouterr().err
    code, output = run("-m", "shmring.jax")
    assert code == 2
    assert "python -m shmring.jax script.py" in output


def test_jax_imported_too_early_is_an_error_that_says_what_to_do():
    code, output = run("-c", "import jax, shmring.jax; shmring.jax.initialize('127.0.0.1:1', 1, 0)")
    assert code == 1
    assert "jax was imported before shmring.jax could set MPITRAMPOLINE_LIB" in output
    assert "shmring run --jax -n N script.py" in output


@pytest.mark.parametrize(
    ("settings", "error"), [({"timeout": -1}, "ValueError"), ({"no_such": 1}, "TypeError"), ({"nslots": "x"}, "Error")]
)
def test_bad_settings_are_refused_before_jax_is_imported(settings, error):
    code, output = run("-c", f"import shmring.jax; shmring.jax.initialize(settings={settings!r})")
    assert code == 1
    assert error in output.splitlines()[-1], output


def test_importing_the_package_loads_no_jax():
    loaded = "[name for name in sys.modules if name.startswith(('jax', 'numpy'))]"
    code, output = run("-c", f"import sys, shmring.jax; print({loaded})")
    assert (code, output) == (0, "[]\n")
    with pytest.raises(AttributeError, match="no attribute 'initialise'"):
        shmring.jax.initialise  # noqa: B018


def test_the_library_has_every_name_that_this_jaxlib_looks_up():
    wanted = set()
    for path in Path(jaxlib.__file__).parent.glob("*.so"):
        wanted |= set(re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", path.read_bytes()))
    assert len(wanted) > 600
    library = ctypes.CDLL(LIBRARY)
    assert [name for name in sorted(wanted) if not hasattr(library, name.decode())] == []


def test_constants_differ_and_a_function_that_jax_does_not_call_is_an_error_with_its_name():
    library = ctypes.CDLL(LIBRARY)
    names = re.findall(r"\bX\((\w+)\)", (ROOT / "shmring" / "jax" / "mpitrampoline.h").read_text())
    constants = [name for name in names if not name.startswith("MPI")]
    values = [ctypes.c_size_t.in_dll(library, f"MPIABI_{name}").value for name in constants]
    assert len(values) == 260
    assert sorted(values) == list(range(260))
    assert ctypes.c_size_t.in_dll(library, "MPIABI_SUCCESS").value == 0
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    assert library.MPIABI_Bcast() != 0
    library.MPIABI_Error_string(0, text, ctypes.byref(length))
    assert text.value.startswith(b"MPIABI_Bcast: shmring has only those functions")
    assert length.value == len(text.value)
