"""`shmring.from_mpi` under mpiexec, on nodes that are forced apart, with every MPI at hand."""

import subprocess
from pathlib import Path

import pytest
from support import mpi
from support.documents import blocks
from support.installed import ROOT

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not mpi.PYTHONS, reason="no mpi4py here; SHMRING_MPI_PYTHONS names interpreters with it"),
]
CHECKS = Path(__file__).with_name("mpi_checks.py")
DEATHS = Path(__file__).with_name("mpi_deaths.py")
LAYOUTS = ["aabb", "aaab", "abc", "abab"]
ONCE = (
    "choices", "bits", "many", "empty", "opaque", "objects", "background", "groups", "refusals", "disagreement",
    "abort", "late", "leaves", "failures", "threads", "closed",
)  # fmt: skip


@pytest.fixture(params=mpi.PYTHONS, ids=lambda python: Path(python).parent.parent.name)
def python(request):
    return request.param


def check(python, name, layout, *more):
    run = mpi.run(python, len(layout), str(CHECKS), name, layout, *more)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("is done") == len(layout), run.stdout + run.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_case_is_right_by_every_driver_on_any_layout(python, layout, seed):
    check(python, "cases", layout, str(seed))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_on_any_layout(python, layout):
    check(python, "messages", layout)


@pytest.mark.parametrize("name", ONCE)
def test_calls(python, name):
    check(python, name, "aabb")


def test_a_loop_of_communicators_does_not_exhaust_mpi(python):
    check(python, "closed_often", "ab")


@pytest.mark.parametrize("order", ["close first", "finalize first"])
def test_a_program_may_finalize_mpi_itself(python, order):
    check(python, "finalized", "aabb", order)


@pytest.mark.parametrize("moment", ["call", "elsewhere"])
@pytest.mark.parametrize(("layout", "victims"), [("ab", "0"), ("aabb", "3"), ("aabb", "01"), ("abab", "13")])
def test_killed_ranks_and_nodes_are_errors_on_all_others(python, layout, victims, moment, tmp_path):
    """Shared memory shows the death to the ranks of the node, which tell the others; else the timeout ends the call."""
    run = mpi.run(python, len(layout), str(DEATHS), str(tmp_path), layout, victims, moment)
    survivors = [r for r in range(len(layout)) if str(r) not in victims]
    named = {path.name: path.read_text() for path in tmp_path.glob("survivor.*")}
    assert set(named) == {f"survivor.{r}" for r in survivors}, run.stdout + run.stderr
    for r in survivors:
        if any(layout[int(victim)] == layout[r] for victim in victims):
            assert named[f"survivor.{r}"] in [f"PeerLostError {victim}" for victim in victims], named
        else:
            assert named[f"survivor.{r}"].split()[0] in ("AbortedError", "CollectiveTimeoutError"), named


def test_the_example_prints_the_same_under_every_launcher(python):
    example = str(ROOT / "examples" / "several_machines.py")
    code = (
        f"import os, runpy; from mpi4py import MPI; os.environ['SHMRING_NODE'] = 'aabb'[MPI.COMM_WORLD.rank]; "
        f"runpy.run_path({example!r}, run_name='__main__')"
    )
    wanted = mpi.run(python, 1, example).stdout
    assert wanted.startswith("mean ")
    for run in (mpi.run(python, 4, example), mpi.run(python, 4, "-c", code)):
        assert run.returncode == 0, run.stderr
        assert run.stdout == wanted


@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_the_code_in_the_documents_runs(python, layout, tmp_path):
    found = [block for block in blocks("python") if block.how.endswith(" with mpi")]
    assert found
    for block in found:
        program = tmp_path / "program.py"
        program.write_text(
            f"import os\nfrom mpi4py import MPI\nos.environ['SHMRING_NODE'] = {layout!r}[MPI.COMM_WORLD.rank]\n"
            f"{block.code}\n{block.check}"
        )
        done = mpi.run(python, 2, str(program))
        assert done.returncode == 0, done.stderr


def test_init_says_what_to_do_where_ranks_are_on_other_machines(python):
    # A launcher on two machines exports these.
    names = ["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]
    if mpi.flavour(python) != "openmpi":
        names = ["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]
    code = f"import os, shmring; os.environ.update({dict(zip(names, '01', strict=True))}); shmring.init()"
    run = mpi.run(python, 2, "-c", code)
    assert "shmring.from_mpi()" in run.stderr


PROGRAM = """
import shmring
comm = shmring.from_mpi()
assert comm.nodes == [[0, 1], [2, 3]], comm
pair = comm.split(comm.rank // 2)
assert pair.nodes is None
assert pair.parent_ranks == (comm.rank // 2 * 2, comm.rank // 2 * 2 + 1)
assert pair.all_gather_object(comm.rank) == list(pair.parent_ranks)
print(int(comm.all_gather_object(comm.rank)[-1]))
"""


def test_shmring_run_makes_the_ranks_behave_as_if_on_two_machines(python, tmp_path):
    """And a short program, which closes nothing, prints nothing else."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [python, "-m", "shmring", "run", "-n", "4", "--nodes", "2", "--mpi", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=mpi.environment())
    assert done.returncode == 0, done.stderr
    assert "".join(done.stdout.split()) == "3333"
    if mpi.flavour(python) == "mpich":  # others have warnings of their own
        assert done.stderr == ""


def test_a_lower_thread_level_is_refused(python):
    code = "import mpi4py; mpi4py.rc.thread_level = 'single'; import shmring; shmring.from_mpi()"
    run = mpi.run(python, 2, "-c", code)
    if "RuntimeError" not in run.stderr:
        pytest.skip("this MPI gives more than was asked for")
    assert "THREAD_MULTIPLE" in run.stderr


LATE = """
import os, sys, time
from pathlib import Path
import numpy as np
import shmring

comm = shmring.from_mpi()
log = Path(sys.argv[1], str(comm.rank ^ 1))
os.dup2(os.open(Path(sys.argv[1], str(comm.rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
comm.barrier()

def until_noted(count):
    while log.read_text().count("has waited") < count:
        time.sleep(0.01)

for count, step in enumerate((lambda: comm.all_reduce(np.ones(1000)),                            # A
                              lambda: comm.sendrecv(np.ones(3), comm.rank ^ 1, np.ones(3), comm.rank ^ 1),   # B
                              ), 1):
    if comm.rank == 1:
        until_noted(count)
    step()
comm.close()
"""


def test_long_waits_for_another_node_write_what_they_wait_for_and_from_which_line(python, tmp_path):
    program = tmp_path / "late.py"
    program.write_text(LATE)
    command = [python, "-m", "shmring", "run", "-n", "2", "--nodes", "2", "--mpi", str(program), str(tmp_path)]
    env = {**mpi.environment(), "SHMRING_WAIT_NOTES": "0.2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    notes = [line for line in (tmp_path / "0").read_text().splitlines() if "has waited" in line]
    for mark in "AB":
        line = next(n for n, text in enumerate(LATE.splitlines(), 1) if text.endswith(f"# {mark}"))
        assert [one for one in notes if "rank 0 of " in one and f"late.py:{line} in <lambda>" in one], (mark, notes)
