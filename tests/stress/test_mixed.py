"""Thousands of operations of every kind in random order, on ranks that dawdle, compared bit for bit with the model.

    pytest tests/stress/test_mixed.py                       a few seconds for each size
    pytest tests/stress/test_mixed.py --long                a minute each, or SHMRING_MIXED_MINUTES in all
    SHMRING_MIXED_ONLY=4:17 pytest ... --seed S -k '[3]'    operation 17 of run 4 on 3 ranks, alone

A failure prints the command that repeats it. ``SHMRING_MIXED_ONLY=4:0-17`` repeats all operations up to number 17, for
a failure that depends on earlier ones.
"""

import os
import time

import pytest
from mixed import KINDS, Dice, carry_out, draw, settings
from support.harness import run_ranks

from shmring.config import Config

SIZES = (2, 3, 4, 7)
OPERATIONS = 120  # in a run
SECONDS = 1.5


def take_part(comm, seed, run, indices):
    """One rank's part in a run."""
    for index in indices:
        case = draw(seed, run, index, comm.size, comm.config)
        try:
            carry_out(comm, case)
        except Exception as error:
            repeat = f"SHMRING_MIXED_ONLY={run}:{{}} pytest tests/stress/test_mixed.py --seed {seed} -k '[{comm.size}]'"
            where = f"operation {index} of run {run}, seed {seed}"
            raise AssertionError(
                f"rank {comm.rank} of {comm.size}: {type(error).__name__} in {where}\n"
                f"  {error}\n  {case}\n  {settings(seed, run, comm.size)}\n"
                f"repeat it alone:         {repeat.format(index)}\n"
                f"repeat what led to it:   {repeat.format(f'0-{index}')}"
            ) from error


def only():
    """The selection in ``SHMRING_MIXED_ONLY``: a run and the indices in it; None for everything."""
    asked = os.environ.get("SHMRING_MIXED_ONLY")
    if not asked:
        return None
    run, _, indices = asked.partition(":")
    first, _, last = indices.partition("-")
    return int(run), list(range(int(first), int(last or first) + 1))


def play(size, seed, run, indices):
    """One run in its own processes."""
    run_ranks(size, take_part, seed, run, indices, init=settings(seed, run, size))


@pytest.mark.sample(2)
@pytest.mark.stress
@pytest.mark.parametrize("size", SIZES)
def test_operations_of_all_kinds_in_any_order_give_exact_answers(size, seed, long_run):
    if (asked := only()) is not None:
        play(size, seed, *asked)
        return
    minutes = float(os.environ.get("SHMRING_MIXED_MINUTES", len(SIZES)))
    end = time.monotonic() + (60 * minutes / len(SIZES) if long_run else SECONDS)
    run = 0
    while time.monotonic() < end:
        play(size, seed, run, list(range(OPERATIONS)))
        run += 1
    print(f"{run} runs of {OPERATIONS} operations")


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_of_operation_goes_through_all_settings(name):
    for size in (1, 3):
        run_ranks(size, take_part_in_one_kind, name, init={"slot_nbytes": 4096, "nslots": 4, "eager_nbytes": 64})


def take_part_in_one_kind(comm, name):
    for index in range(25):
        carry_out(comm, draw(1, 0, index, comm.size, comm.config, kinds=[name]))


def test_an_operation_can_be_drawn_again():
    config = Config(slot_nbytes=65_536)
    for index in range(50):
        assert str(draw(7, 3, index, 4, config)) == str(draw(7, 3, index, 4, config))
    assert len({Dice(7, 0, index, 4, config).nbytes() for index in range(200)}) > 20
