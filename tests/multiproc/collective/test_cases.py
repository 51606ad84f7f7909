"""The right answer, bit for bit: cases of `support.oracle` by every driver of `support.drivers`, in every setting."""

import pytest
from support.drivers import DRIVERS, draw_for, run_cases
from support.harness import RANKS, run_ranks
from support.inputs import NUMPY_DTYPES
from support.oracle import OPS, Case, is_defined
from support.rank_threads import run_rank_threads

# How the communicator is made: the way that calls take through shared memory depends on it.
SETTINGS = {
    "default": {},
    "tiny slots": {"slot_nbytes": 4096, "nslots": 4, "eager_nbytes": 64},
    "slots of a page": {"slot_nbytes": 4096, "nslots": 8, "eager_nbytes": 0},
    "never one round": {"one_shot_nbytes": 0},
    "always one round": {"one_shot_nbytes": 1 << 30},
    "helper threads": {"threads": 2, "split_nbytes": 0},
    "helper threads for large calls": {"threads": 3, "split_nbytes": 100_000},
    "many helper threads": {"threads": 4, "split_nbytes": 0, "slot_nbytes": 4096, "eager_nbytes": 0},
    "string stores": {"stores": 2},
    "exchanged results": {"stores": 4, "one_shot_nbytes": 0},
}
PROCESSES = [name for name in DRIVERS if name != "Unstaged"]  # private arrays of processes are staged
NUMBER = 60  # cases for each group of ranks


@pytest.mark.sample(6)
@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("driver", PROCESSES)
def test_every_case_is_right_by_every_driver_in_every_setting(n, setting, driver, seed, request):
    more = [request.getfixturevalue("c_library")] if driver.startswith("C") else []
    run_ranks(n, run_cases, driver, draw_for(driver, NUMBER, seed), *more, init=SETTINGS[setting])


@pytest.mark.sample(4)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_case_is_right_if_ranks_are_threads(n, driver, seed, request):
    more = [request.getfixturevalue("c_library")] if driver.startswith("C") else []
    run_rank_threads(n, run_cases, driver, draw_for(driver, NUMBER, seed), *more)


@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_dtype_and_operation_is_right(n):
    """All of them, since `draw` shows only some in each run."""
    pairs = [(name, op) for name in NUMPY_DTYPES for op in OPS if is_defined(op, name)]
    run_ranks(
        n,
        run_cases,
        "Direct",
        [
            Case(kind, count, name, op, place="in")
            for name, op in pairs
            for kind in ("all_reduce", "reduce_scatter")
            for count in (9, 3001)
        ],
    )
