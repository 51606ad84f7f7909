"""Failures of JAX programs: a process dies, is absent, disagrees, exits early, has too many devices."""

import pytest
from support.jax_programs import run_program

QUICK = {"start": "jax.distributed.initialize(**QUICK)"}
SUM = """
    total = mapped(lambda a: lax.psum(a, "x"), mesh(), P("x"), P())
    x = spread(np.ones(2 * n, np.float32), mesh(), "x")
    assert own(total(x)).tolist() == [n, n]
"""


def errors(reports, name):
    """What the ranks that have reported it have caught."""
    found = [one[name] for one in reports if name in one]
    assert all(found), reports
    return found


def test_the_death_of_a_process_is_an_error_with_its_rank_on_all_others(tmp_path):
    body = (
        SUM
        + """
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    other = mesh(devices=jax.devices()[::-1])      # a group that was not used before
    largest = mapped(lambda a: lax.pmax(a, "x"), other, P("x"), P())
    report(first=attempt(total, x), again=attempt(total, x), other=attempt(largest, spread(np.ones(n), other, "x")))
    open(os.path.join(FOLDER, "done", str(rank)), "w").close()
    while len(os.listdir(os.path.join(FOLDER, "done"))) < 2: time.sleep(0.01)
    os._exit(0)      # JAX would wait for the dead process
    """.replace("FOLDER", repr(str(tmp_path)))
    )
    (tmp_path / "done").mkdir()
    reports = run_program(tmp_path, 3, body, status=137).reports
    assert len(errors(reports, "first")) == 2
    for text in errors(reports, "first") + errors(reports, "again") + errors(reports, "other"):
        assert "MPI error: shmring.PeerLostError" in text
        assert "rank 1 (pid" in text


def test_an_absent_process_is_named_within_the_timeout_by_every_operation_of_the_group(tmp_path):
    body = """
    total = mapped(lambda a: lax.psum(a, "x"), mesh(), P("x"), P())
    gathered = mapped(lambda a: lax.all_gather(a, "x"), mesh(), P("x"), P("x"))
    exchanged = mapped(lambda a: lax.all_to_all(a, "x", 0, 0, tiled=True), mesh(), P("x"), P("x"))
    turned = mapped(lambda a: lax.ppermute(a, "x", [(i, (i + 1) % n) for i in range(n)]), mesh(), P("x"), P("x"))
    x = spread(np.ones(n * n, np.float32), mesh(), "x")
    calls = {"sum": total, "gather": gathered, "exchange": exchanged, "permute": turned}
    calls = {name: f.lower(x).compile() for name, f in calls.items()}
    if rank == 1:
        while len(os.listdir(os.path.join(FOLDER, "done"))) < n - 1: time.sleep(0.1)
    else:
        meet((0, 2))
    for name, f in calls.items():
        report(**{name: attempt(f, x)})
    open(os.path.join(FOLDER, "done", str(rank)), "w").close()
    """.replace("FOLDER", repr(str(tmp_path)))
    (tmp_path / "done").mkdir()
    reports = run_program(tmp_path, 3, body, SHMRING_TIMEOUT="6", **QUICK).reports
    for name in ("sum", "gather", "exchange", "permute"):
        texts = errors(reports, name)
        assert len(texts) == 3
        for text in texts:
            assert "MPI error: shmring.CollectiveTimeoutError" in text, text
            assert "waiting for rank 1" in text, text


def test_a_mesh_that_leaves_a_process_out_ends_in_an_error_not_in_a_hang(tmp_path):
    body = """
    part = mesh(devices=jax.devices()[:2])
    if rank < 2:
        x = spread(np.ones(4), part, "x")
        call = mapped(lambda a: lax.psum(a, "x"), part, P("x"), P()).lower(x).compile()
        meet((0, 1))
        report(part=attempt(call, x))
        open(os.path.join(FOLDER, "done", str(rank)), "w").close()
    while len(os.listdir(os.path.join(FOLDER, "done"))) < 2: time.sleep(0.1)
    """.replace("FOLDER", repr(str(tmp_path)))
    (tmp_path / "done").mkdir()
    texts = errors(run_program(tmp_path, 3, body, SHMRING_TIMEOUT="6", **QUICK).reports, "part")
    assert len(texts) == 2
    assert all("waiting for rank 2" in text for text in texts), texts


@pytest.mark.parametrize(
    "call",
    [
        "attempt(total, spread(np.ones(n * (2 + (rank == 1)), np.float32), mesh(), 'x'))",
        "attempt(total, spread(np.ones(n * 2, np.float32 if rank else np.int32), mesh(), 'x'))",
        "attempt(mapped(lambda a: lax.psum(a, 'x') if rank else lax.pmax(a, 'x'), mesh(), P('x'), P()), x)",
    ],
)
def test_ranks_that_disagree_get_an_error_on_all(tmp_path, call):
    reports = run_program(tmp_path, 2, SUM + f"    report(text={call})\n", **QUICK).reports
    texts = errors(reports, "text")
    assert len(texts) == 2
    assert all("MPI error: shmring.MismatchError" in text and "ranks disagree" in text for text in texts), texts


def test_two_devices_in_a_process_are_refused_on_all(tmp_path):
    body = """
    total = mapped(lambda a: lax.psum(a, "x"), mesh(), P("x"), P())
    report(text=attempt(total, spread(np.ones(6), mesh(), "x")))
    """
    first = "if os.environ['RANK'] == '1': os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'"
    ended = run_program(tmp_path, 2, body, first=first, **QUICK)
    texts = errors(ended.reports, "text")
    assert len(texts) == 2
    assert all("rank 1 has 2 CPU devices" in text and "jax_num_cpu_devices" in text for text in texts), texts
    assert "RuntimeWarning: no collective of JAX will work" in ended.output


def test_types_that_xla_refuses_are_an_error_after_which_others_work(tmp_path):
    body = (
        SUM
        + """
    for name in ("float16", "float8_e4m3fn"):
        report(**{name: attempt(total, spread(np.ones(2 * n, jnp.dtype(name)), mesh(), "x"))})
    assert own(total(x)).tolist() == [n, n]
    report(done=True)
    """
    )
    reports = run_program(tmp_path, 2, body, **QUICK).reports
    assert all(one["done"] for one in reports)
    assert all("f16" in text for text in errors(reports, "float16"))


def test_a_process_that_ends_while_others_wait_for_it_is_an_error_there(tmp_path):
    body = (
        SUM
        + """
    if rank:
        report(text=attempt(total, x))
    """
    )
    texts = errors(run_program(tmp_path, 3, body, **QUICK).reports, "text")
    assert len(texts) == 2
    assert all("PeerLostError" in text and "rank 0" in text for text in texts), texts


def test_an_uncaught_exception_of_a_process_is_shown_by_the_others(tmp_path):
    body = (
        SUM
        + """
    if rank == 1:
        raise KeyError("the data of step 7")
    report(text=attempt(total, x))
    """
    )
    ended = run_program(tmp_path, 3, body, status=1, **QUICK)
    texts = errors(ended.reports, "text")
    assert len(texts) == 2
    assert all("AbortedError" in text and "KeyError: 'the data of step 7'" in text for text in texts), texts


def test_work_that_no_process_waits_for_is_done_at_exit(tmp_path):
    body = (
        SUM
        + """
    big = spread(np.ones((n, 400_000), np.float32), mesh(), "x")
    step = mapped(lambda a: (a + lax.psum(a, "x") / n) / 2, mesh(), P("x"), P("x"))
    for _ in range(20):
        big = step(big)
    if rank:
        report(value=float(own(big)[0, 0]))      # rank 0 exits while its part is under way
    """
    )
    assert run_program(tmp_path, 2, body, **QUICK).reports[1]["value"] == 1.0


def test_a_process_that_hangs_does_not_keep_the_job_once_another_has_failed(tmp_path):
    body = (
        SUM
        + """
    if rank == 1:
        time.sleep(100_000)
    total(x)
    """
    )
    ended = run_program(tmp_path, 2, body, status=1, SHMRING_TIMEOUT="6")  # JAX itself waits 300 s at exit
    assert "shmring.CollectiveTimeoutError" in ended.output
    assert "shmring run: rank 0 (pid " in ended.output
    assert "exited with status 1" in ended.output.splitlines()[-1]
