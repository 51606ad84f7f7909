"""What ranks find out when they meet: they agree on it, say why, and refuse to differ."""

import os
import signal

import numpy as np
import pytest
from support.harness import PATIENCE, report, run_processes, run_ranks, start_processes
from support.on_ranks import on_ranks

import shmring
from shmring.collectives.bootstrap import connect
from shmring.config import MOST_NBYTES
from shmring.core.placement.topology import shmem_huge_pages
from shmring.errors import PeerLostError, RendezvousError, RendezvousTimeoutError

COMMON = (
    "slot_nbytes",
    "nslots",
    "eager_nbytes",
    "one_shot_nbytes",
    "flat_reduce_nbytes",
    "round_nbytes",
    "latency_us",
    "touch_gbs",
    "barrier_us",
    "processors",
)


def look(comm):
    stats = comm.stats()
    return {name: stats[name] for name in COMMON}, stats["why"]


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_all_ranks_go_by_the_same_thresholds(n):
    found = run_ranks(n, look)
    assert all(one == found[0] for one in found)
    numbers, why = found[0]
    assert numbers["one_shot_nbytes"] > 0
    assert (numbers["barrier_us"] > 0) == (n > 1)
    assert numbers["processors"] == len(os.sched_getaffinity(0)) or numbers["processors"] < len(os.sched_getaffinity(0))
    assert {"slot_nbytes", "one_shot_nbytes", "latency_us", "eager_nbytes", "spin_us"} <= set(why)


def test_settings_from_outside_are_taken_and_named():
    init = {"one_shot_nbytes": 12_345, "past_cache_nbytes": 0}
    env = {"SHMRING_LATENCY_US": "7.5", "SHMRING_ROUND_NBYTES": "4096"}
    for numbers, why in run_ranks(2, look, init=init, env=env):
        assert (numbers["one_shot_nbytes"], numbers["latency_us"], numbers["round_nbytes"]) == (12_345, 7.5, 4096)
        assert why["one_shot_nbytes"] == why["past_cache_nbytes"] == "argument"
        assert (why["latency_us"], why["round_nbytes"]) == ("SHMRING_LATENCY_US", "SHMRING_ROUND_NBYTES")


def reduce_every_way(comm):
    ways = (
        {},
        {"one_shot_nbytes": 0},
        {"one_shot_nbytes": MOST_NBYTES},
        {"round_nbytes": 128},
        {"round_nbytes": 5000},
        {"flat_reduce_nbytes": 0},
        {"flat_reduce_nbytes": MOST_NBYTES},
        {"past_cache_nbytes": 0},
        {"latency_us": 0.0},
        {"touch_gbs": 1e-3},
        {"slot_nbytes": 8192, "round_nbytes": 1 << 30},
    )
    x = np.random.default_rng(comm.rank).standard_normal(30_001).astype(np.float32)
    results, algorithms = [], []
    for settings in ways:
        with comm.dup(**settings) as other:
            y = other.all_reduce(x.copy())
            z = other.reduce(x.copy(), root=0)
            results.append((y.tobytes(), z.tobytes() if comm.rank == 0 else None))
            algorithms.append([program["algorithm"] for program in other.stats()["programs"]])
    assert len(set(results)) == 1
    return algorithms


@pytest.mark.sample(1)
@pytest.mark.parametrize("n", [2, 4])
def test_thresholds_change_the_way_and_no_bit(n):
    algorithms = run_ranks(n, reduce_every_way)
    assert all(one == algorithms[0] for one in algorithms)
    assert algorithms[0][1][0] in ("two_shot", "exchange")  # an exchange is a two-shot that saves a slot
    assert algorithms[0][2][0] == "one_shot"
    assert [way[1] for way in algorithms[0][5:7]] == ["flat" if n == 2 else "sliced", "flat"]


def differ(rank, session, name, values):
    with pytest.raises(RendezvousError, match=f"disagree: {name} is .* on rank 0, .* on rank 1"):
        shmring.init(rank=rank, size=2, session=session, **{name: values[rank]})
    with shmring.init(rank=rank, size=2, session=session) as comm:  # nothing of the first attempt is in the way
        comm.barrier()


@pytest.mark.parametrize(
    ("name", "values"),
    [("one_shot_nbytes", (0, 9)), ("round_nbytes", (-1, 128)), ("latency_us", (1.0, 2.0)), ("touch_gbs", (3.0, -1.0))],
)
def test_ranks_with_different_thresholds_do_not_meet(name, values):
    run_processes(2, differ, f"thresholds-{os.getpid()}-{name}", name, values)


def bound(rank, session, processors):
    os.sched_setaffinity(0, {processors[rank % len(processors)]})
    with shmring.init(rank=rank, size=2, session=session) as comm:
        stats = comm.stats()
        return stats["processors"], stats["spin_us"]


def test_ranks_bound_to_a_processor_each_are_not_crowded():
    processors = sorted(os.sched_getaffinity(0))[:2]
    found = run_processes(2, bound, f"bound-{os.getpid()}", processors)
    assert found[0] == found[1]
    if found[0][0] == 2:
        assert found[0][1] > 0
    assert run_processes(2, bound, f"bound-one-{os.getpid()}", processors[:1])[0] == (1, 0)


def go_no_further(rank, session, number, timeout):
    if rank == 1:
        meet = connect.rendezvous

        def rendezvous_and_stop(**kwargs):
            segments = meet(**kwargs)
            report("met")
            os.kill(os.getpid(), number)
            return segments

        connect.rendezvous = rendezvous_and_stop
    try:
        shmring.init(rank=rank, size=3, session=session, rendezvous_timeout=timeout)
    finally:
        report("over")


@pytest.mark.parametrize(
    ("number", "error", "names"),
    [(signal.SIGSTOP, RendezvousTimeoutError, "missing"), (signal.SIGKILL, PeerLostError, "rank")],
)
def test_a_rank_that_has_met_and_goes_no_further_is_named(number, error, names):
    for timeout in (1, 5, 25):  # until it is long enough for all to meet
        session = f"between-{os.getpid()}-{number}-{timeout}"
        gang = start_processes(3, go_no_further, session, number, timeout * PATIENCE)
        gang.wait_for("over", ranks=[0, 2])
        gang.kill(1)
        errors = [outcome.error for outcome in gang.outcomes()]
        has_met = "met" in gang.reports(1)
        if has_met and all(getattr(errors[rank], names, None) in (1, (1,)) for rank in (0, 2)):
            break
    assert has_met
    for rank in (0, 2):
        assert type(errors[rank]) is error
        assert getattr(errors[rank], names) in (1, (1,))


@on_ranks(2, 3, init={"one_shot_nbytes": 1 << 16})  # what is found out on a loaded machine may be any size
def test_an_explanation_names_the_way_that_a_call_takes(comm):
    eager, one_shot = comm.stats()["eager_nbytes"], comm.stats()["one_shot_nbytes"]
    ways = ((eager, "eager"), (eager + 1, "one_shot"), (one_shot, "one_shot"), (one_shot + 1, "two_shot"))
    for nbytes, way in ways:
        text = comm.explain("all_reduce", nbytes)
        assert text.splitlines()[0] == f"all_reduce of {nbytes} bytes among {comm.size} ranks: {way}"
        assert [line.strip().split(":")[0] for line in text.splitlines() if ": taken" in line] == [way]
        x = np.zeros(nbytes, np.int8)
        comm.all_reduce(x)
    # What was explained is what was done; of up to four ranks, large all-reduces begin as exchanges.
    last = "exchange" if comm.size <= 4 else "two_shot"
    assert [p["algorithm"] for p in comm.stats()["programs"]] == ["one_shot", "one_shot", last]
    for kind in ("reduce", "broadcast", "all_gather", "reduce_scatter", "gather", "scatter", "all_to_all", "scan"):
        assert "taken" in comm.explain(kind, 1 << 20 if comm.size in (2, 4) else 3 << 18, root=comm.size - 1)
    for wrong in (("all_reduce", -1), ("barrier", 8), ("scatter", comm.size + 1)):
        with pytest.raises(ValueError, match=r"must be|no schedule"):
            comm.explain(*wrong)
    with pytest.raises(ValueError, match="root=9"):
        comm.explain("reduce", 8, root=9)
    comm.barrier()


def explain_alone(comm):
    return comm.explain("all_reduce", 1 << 20), comm.explain("reduce", 1 << 20)


def test_a_rank_alone_gets_explanations_too():
    for text in run_ranks(1, explain_alone)[0]:
        assert "0 synchronisations" in text


IS_HUGE_BY_ITSELF = shmem_huge_pages() in ("always", "within_size", "force")  # whatever is wanted, at any time


def look_at_huge_pages(comm, wanted):
    x = comm.empty(3 << 20, np.uint8)
    x[:] = comm.rank
    own = [segment.mapping.huge_nbytes for segment in comm._engine.sharing.registry.locate(x.ctypes.data)[0].segments]
    huge = comm.stats()["huge_nbytes"]
    assert len(huge) == len(own) == comm.size
    for one in (*huge, *own):
        assert one % (2 << 20) == 0
        if not wanted and not IS_HUGE_BY_ITSELF:
            assert one == 0
    y = np.full(1 << 20, comm.rank + 1.0, np.float32)
    comm.all_reduce(y)
    assert (y == sum(range(1, comm.size + 1))).all()
    comm.all_reduce(x, op="max")
    assert (x == comm.size - 1).all()
    comm.send(np.arange(1 << 18), (comm.rank + 1) % comm.size)  # the pair queues' memory came later, and is not huge
    z = np.empty(1 << 18, np.int64)
    comm.recv(z, (comm.rank - 1) % comm.size)
    assert (z == np.arange(1 << 18)).all()
    return huge


@pytest.mark.parametrize("wanted", [0, 1])
def test_outboxes_and_arrays_lie_on_huge_pages_if_that_is_wanted_and_on_no_others(wanted):
    found = run_ranks(2, look_at_huge_pages, wanted, init={"huge_pages": wanted, "pair_queue_nbytes": 4 << 20})
    assert found[0] == found[1] or IS_HUGE_BY_ITSELF  # a rank that attaches maps the array of the creator
