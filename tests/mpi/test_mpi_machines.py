"""`shmring.from_mpi` over two machines: separate networks, a cable between, a /dev/shm each."""

import time
from pathlib import Path

import pytest
from support import mpi
from support.namespaces import CABLE, needs_machines, two_machines

MPICH = [python for python in mpi.PYTHONS if mpi.flavour(python) == "mpich"]

pytestmark = [
    pytest.mark.mpi,
    needs_machines,
    pytest.mark.skipif(not MPICH, reason="no mpi4py with MPICH here; SHMRING_MPI_PYTHONS names interpreters"),
]
CHECKS, DEATHS, CUT = (Path(__file__).with_name(f"mpi_{name}.py") for name in ("checks", "deaths", "cut"))
EACH = 2
N = 2 * EACH


@pytest.fixture(params=MPICH, ids=lambda python: Path(python).parent.parent.name)
def python(request):
    return request.param


def ours(machine):
    """What shmring has left in its /dev/shm; an MPI leaves its own where a rank was killed."""
    return [name for name in machine.names() if "shmring" in name]


@pytest.mark.parametrize("name", ["cases", "messages", "groups", "late"])
def test_calls_over_a_cable(python, name, tmp_path, seed):
    more = [str(seed)] if name == "cases" else []
    with two_machines("256m") as machines:
        job = mpi.start_on(machines, tmp_path, python, EACH, str(CHECKS), name, "aabb", *more)
        output, _ = job.communicate(timeout=300)
        assert job.returncode == 0, output
        assert output.count("is done") == N, output
        assert [ours(machine) for machine in machines] == [[], []]


@pytest.mark.parametrize("victims", ["3"])  # if all ranks of a machine die, MPICH over UCX may end the others
def test_a_killed_rank_is_an_error_on_the_others(python, victims, tmp_path):
    with two_machines("256m") as machines:
        job = mpi.start_on(machines, tmp_path, python, EACH, str(DEATHS), str(tmp_path), "aabb", victims, "call")
        output, _ = job.communicate(timeout=300)
        named = {path.name: path.read_text() for path in tmp_path.glob("survivor.*")}
        assert set(named) == {f"survivor.{r}" for r in range(N) if str(r) not in victims}, output
        assert named["survivor.2"] == "PeerLostError 3", named
        assert {named[f"survivor.{r}"].split()[0] for r in (0, 1)} <= {"AbortedError", "CollectiveTimeoutError"}, named
        assert [ours(machine) for machine in machines] == [[], []]


def test_a_cable_that_is_pulled_is_an_error_on_both_sides(python, tmp_path):
    with two_machines("256m") as machines:
        job = mpi.start_on(machines, tmp_path, python, EACH, str(CUT), str(tmp_path))
        try:
            wait_for(tmp_path, "ready.*", job)
            machines[0].run("ip", "link", "set", CABLE, "down")
            wait_for(tmp_path, "named.*", job)
        finally:
            job.kill()
            job.communicate()
        for r in range(N):
            error = (tmp_path / f"named.{r}").read_text().split()[0]
            assert error in ("CollectiveTimeoutError", "AbortedError", "BrokenError")
        assert [ours(machine) for machine in machines] == [[], []]


def wait_for(folder, pattern, job):
    while len(list(folder.glob(pattern))) < N:
        assert job.poll() is None, job.communicate()[0]
        time.sleep(0.05)
