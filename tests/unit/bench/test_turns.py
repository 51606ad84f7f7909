"""The clock of all benchmarks: the length of a slice, the order of turns, and contenders that fail."""

import os

import pytest
from turns import Comparison, calls_in, compare, pin, pinned, take_turns

import shmring


@pytest.mark.parametrize(("us", "expected"), [(1.0, 10_000), (100.0, 100), (20_000.0, 1)])
def test_a_slice_has_as_many_calls_as_fit(us, expected):
    assert calls_in(0.01, lambda times: us) == pytest.approx(expected, rel=0.5)


def test_the_fixed_cost_of_a_slice_does_not_shorten_it():
    assert calls_in(0.01, lambda times: 10.0 + 100 / times) > 400


def test_each_cycle_has_each_contender_once_in_an_order_of_its_own():
    turns = []
    slices = {name: lambda name=name: turns.append(name) or 1.0 for name in "abc"}
    found = take_turns(slices, lambda cycle: cycle >= 20, seed=3)
    cycles = [tuple(turns[i : i + 3]) for i in range(0, 60, 3)]
    assert all(sorted(cycle) == ["a", "b", "c"] for cycle in cycles)
    assert len(set(cycles)) > 3
    assert found == dict.fromkeys("abc", [1.0] * 20)
    again = turns.copy()
    turns.clear()
    take_turns(slices, lambda cycle: cycle >= 20, seed=3)
    assert turns == again


def test_a_contender_that_failed_takes_no_further_turns():
    results = iter([1.0, None, 3.0])
    found = take_turns({"fails": lambda: next(results), "works": lambda: 2.0}, lambda cycle: cycle >= 4)
    assert found == {"fails": [1.0], "works": [2.0] * 4}
    assert take_turns({"fails": lambda: None}, lambda cycle: False) == {"fails": []}


def test_a_ratio_is_of_cycles_and_quartiles_of_one_cycle_are_it():
    found = Comparison({"a": [2.0, 8.0, 2.0], "b": [1.0, 4.0, 4.0]}, [0.1] * 3)
    assert found.ratio("a", "b") == 2.0
    assert found.median("b") == 4.0
    assert Comparison({"a": [5.0]}, [0.1]).summary("a") == dict.fromkeys(("median", "q1", "q3", "min", "max"), 5.0)


def test_calls_of_a_communicator_are_compared_side_by_side():
    counts = {"calls": 0, "loops": 0}

    def call():
        counts["calls"] += 1

    def loop(times):
        counts["loops"] += times

    with shmring.init(rank=0, size=1, session=f"turns{os.getpid()}") as comm:
        found = compare(comm, {"calls": call}, loops={"loops": loop}, cycles=3, seconds=60, slice_s=1e-4)
    assert {name: len(us) for name, us in found.us.items()} == {"calls": 3, "loops": 3}
    assert len(found.trip_us) == 3
    assert min(counts.values()) > 3


def test_a_thread_is_pinned_for_a_while():
    before = os.sched_getaffinity(0)
    with pinned(1):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with pinned(0):
        pin(len(before), 1)  # more ranks than processors share them
        assert os.sched_getaffinity(0) <= before
    assert os.sched_getaffinity(0) == before
