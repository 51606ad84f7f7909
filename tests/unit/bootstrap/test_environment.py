"""What each launcher exports (read off the launchers themselves), and what `discover` makes of it."""

import os
import socket

import pytest

from shmring.collectives.bootstrap.environment import Job, detected, discover

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "33885",
    "TORCHELASTIC_RUN_ID": "c3fd3b5d-a453-4f86-bf6c-7926d9c5e103",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
SHMRING = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SHMRING_SESSION": "a1b2"}
ENV = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-host-6395@1",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
INTELMPI = {**MPICH, "I_MPI_HYDRA_UUID": "16190000-9355-f338-b260-0600f52a5268"}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_LOCALID": "1",
    "SLURM_NNODES": "1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
LAUNCHERS = {
    "torchrun": TORCHRUN,
    "shmring": SHMRING,
    "env": ENV,
    "openmpi": OPENMPI,
    "mpich": MPICH,
    "intelmpi": INTELMPI,
    "slurm": SLURM,
}
RANK_NAMES = {
    "torchrun": ("RANK", "LOCAL_RANK"),
    "shmring": ("RANK", "LOCAL_RANK"),
    "env": ("RANK",),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"),
    "mpich": ("PMI_RANK", "MPI_LOCALRANKID"),
    "intelmpi": ("PMI_RANK", "MPI_LOCALRANKID"),
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID"),
}


def proxy(descriptor):
    """Stands in for the kernel's answer about the other end of PMI_FD."""
    return f"the proxy behind {descriptor}"


def without(environ, *names):
    """The variables but for some."""
    return {name: value for name, value in environ.items() if name not in names}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_is_recognised_with_its_rank_and_size(launcher):
    job = discover(LAUNCHERS[launcher], launching_process=proxy)
    assert (job.rank, job.size, job.launcher) == (1, 2, launcher)
    assert detected(LAUNCHERS[launcher]) == launcher


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_all_ranks_of_a_job_derive_the_same_session(launcher):
    second = LAUNCHERS[launcher]
    first = {**second, **dict.fromkeys(RANK_NAMES[launcher], "0")}
    a, b = (discover(environ, launching_process=proxy) for environ in (first, second))
    assert a == Job(0, 2, b.session, launcher)


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("torchrun", "TORCHELASTIC_RUN_ID"),
        ("torchrun", "TORCHELASTIC_RESTART_COUNT"),
        ("torchrun", "MASTER_PORT"),
        ("shmring", "SHMRING_SESSION"),
        ("env", "MASTER_PORT"),
        ("openmpi", "PMIX_NAMESPACE"),
        ("mpich", "PMI_FD"),
        ("intelmpi", "I_MPI_HYDRA_UUID"),
        ("slurm", "SLURM_JOB_ID"),
        ("slurm", "SLURM_STEP_ID"),
    ],
)
def test_another_job_or_another_start_of_it_has_another_session(launcher, name):
    one = LAUNCHERS[launcher]
    other = {**one, name: "12"}
    sessions = {discover(environ, launching_process=proxy).session for environ in (one, other)}
    assert len(sessions) == 2


def test_a_requeued_slurm_job_does_not_meet_its_predecessor():
    assert discover(SLURM).session != discover({**SLURM, "SLURM_RESTART_COUNT": "1"}).session


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_sessions_fit_into_segment_names(launcher):
    session = discover(LAUNCHERS[launcher], launching_process=proxy).session
    assert session.isalnum()
    assert session.isascii()
    assert len(session) <= 32


def test_a_session_from_the_environment_is_used_as_it_is_when_nothing_else_names_the_job():
    assert discover(SHMRING).session == "a1b2"
    assert discover({**MPICH, "SHMRING_SESSION": "a1b2"}, launching_process=proxy).session == "a1b2"


def test_a_session_in_the_environment_does_not_hide_a_torchrun_restart():
    again = {**TORCHRUN, "SHMRING_SESSION": "a1b2"}
    assert discover(again).session != discover({**again, "TORCHELASTIC_RESTART_COUNT": "1"}).session


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_arguments_win_over_every_launcher(launcher):
    assert discover(LAUNCHERS[launcher], rank=4, size=7, session="mine") == Job(4, 7, "mine", "arguments")
    assert discover(LAUNCHERS[launcher], session="mine") == Job(1, 2, "mine", launcher)


def test_arguments_take_the_session_from_the_environment_if_they_have_none():
    assert discover(SHMRING, rank=0, size=3) == Job(0, 3, "a1b2", "arguments")


def test_a_single_rank_needs_no_session_and_gets_a_fresh_one():
    assert discover({}, rank=0, size=1).session != discover({}, rank=0, size=1).session


def test_rank_and_size_without_session_are_refused():
    with pytest.raises(ValueError, match="session="):
        discover({}, rank=0, size=2)


@pytest.mark.parametrize(("given", "missing"), [("rank", "size"), ("size", "rank")])
def test_one_of_rank_and_size_alone_is_refused_even_under_a_launcher(given, missing):
    with pytest.raises(ValueError, match=f"{given}= was given without {missing}="):
        discover(TORCHRUN, **{given: 1})


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0), (0, -1)])
def test_a_rank_outside_its_size_is_refused(rank, size):
    with pytest.raises(ValueError, match=f"={rank if size > 0 else size}"):
        discover({}, rank=rank, size=size, session="s")
    with pytest.raises(ValueError, match=r"RANK=|WORLD_SIZE="):
        discover({**without(SHMRING, "LOCAL_RANK", "LOCAL_WORLD_SIZE"), "RANK": str(rank), "WORLD_SIZE": str(size)})


def test_the_error_without_a_launcher_explains_how_to_give_rank_and_size():
    with pytest.raises(ValueError, match=r"shmring run.*torchrun.*mpirun.*srun.*spawn.*rank=, size="):
        discover({"HOME": "/", "SLURM_JOB_ID": "1"})
    assert detected({}) is None


def test_a_slurm_batch_script_is_not_a_rank():
    # sbatch sets these too, for the one process that runs the script.
    with pytest.raises(ValueError, match="no launcher"):
        discover({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"})


@pytest.mark.parametrize(
    ("launcher", "rank", "size"),
    [
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("mpich", "PMI_RANK", "PMI_SIZE"),
    ],
)
def test_half_set_variables_are_refused_and_named(launcher, rank, size):
    for missing in (rank, size):
        with pytest.raises(ValueError, match=rf"{rank}|{size}") as caught:
            discover(without(LAUNCHERS[launcher], missing))
        assert f"{missing} is not" in str(caught.value)


def test_a_slurm_step_without_a_task_count_is_refused_and_named():
    with pytest.raises(ValueError, match="SLURM_STEP_NUM_TASKS is not"):
        discover(without(SLURM, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))


def test_slurm_falls_back_to_the_older_names():
    old = without(SLURM, "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES", "SLURM_STEP_ID", "SLURM_JOB_ID")
    job = discover({**old, "SLURM_STEPID": "0", "SLURM_JOBID": "4711"})
    assert (job.rank, job.size, job.launcher) == (1, 2, "slurm")


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK"])
def test_what_is_not_a_number_is_refused_and_named(name):
    with pytest.raises(ValueError, match=f"{name}='two' is not an integer"):
        discover({**TORCHRUN, name: "two"})


@pytest.mark.parametrize(
    ("launcher", "changes", "message"),
    [
        ("torchrun", {"WORLD_SIZE": "4"}, "WORLD_SIZE=4 but LOCAL_WORLD_SIZE=2: 2 ranks are on other machines"),
        ("openmpi", {"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_LOCAL_SIZE=2: 1 ranks are on other machines"),
        ("intelmpi", {"PMI_SIZE": "4"}, "MPI_LOCALNRANKS=2: 2 ranks are on other machines"),
        ("slurm", {"SLURM_STEP_NUM_NODES": "2"}, "SLURM_STEP_NUM_NODES=2: ranks on other machines"),
        ("slurm", {"PMI_RANK": "1", "PMI_SIZE": "4", "SLURM_STEP_NUM_NODES": "2"}, "SLURM_STEP_NUM_NODES=2: ranks"),
    ],
)
def test_ranks_on_other_machines_are_refused(launcher, changes, message):
    with pytest.raises(ValueError, match=message):
        discover({**LAUNCHERS[launcher], **changes})


def test_more_local_ranks_than_ranks_is_a_contradiction():
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE=3 contradicts WORLD_SIZE=2"):
        discover({**TORCHRUN, "LOCAL_WORLD_SIZE": "3"})


def test_a_local_rank_outside_the_local_size_is_a_contradiction():
    with pytest.raises(ValueError, match=r"LOCAL_RANK=2 must be .* less than LOCAL_WORLD_SIZE=2"):
        discover({**TORCHRUN, "LOCAL_RANK": "2"})


@pytest.mark.parametrize(
    ("outer", "inner", "winner"),
    [
        (SLURM, TORCHRUN, "torchrun"),
        (SLURM, SHMRING, "shmring"),
        (OPENMPI, TORCHRUN, "torchrun"),
        (SLURM, OPENMPI, "openmpi"),
        (SLURM, INTELMPI, "intelmpi"),
        (SLURM, MPICH, "mpich"),
    ],
)
def test_the_inner_launcher_wins_where_both_have_left_their_variables(outer, inner, winner):
    outer = {name: "0" if value == "1" else value for name, value in outer.items()}
    job = discover({**outer, **inner}, launching_process=proxy)
    assert (job.rank, job.size, job.launcher) == (1, 2, winner)


def test_a_job_that_nothing_names_is_refused_with_the_way_out():
    for environ in (without(ENV, "MASTER_ADDR", "MASTER_PORT"), without(MPICH, "PMI_FD")):
        with pytest.raises(ValueError, match="SHMRING_SESSION"):
            discover(environ)


def test_the_maker_of_the_mpich_socket_is_found_through_the_kernel():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        environ = {**MPICH, "PMI_FD": str(ours.fileno())}
        assert discover(environ) == discover({**environ, "PMI_FD": str(theirs.fileno())})
        assert ours.fileno() != theirs.fileno()
        assert os.fstat(ours.fileno())  # still open: only a duplicate was looked at


def test_a_pipe_where_the_mpich_socket_should_be_is_refused():
    read_end, write_end = os.pipe()
    try:
        with pytest.raises(ValueError, match="PMI_JOBID"):
            discover({**MPICH, "PMI_FD": str(read_end)})
    finally:
        os.close(read_end)
        os.close(write_end)
