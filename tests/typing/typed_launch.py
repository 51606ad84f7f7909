"""Types of `init` and `spawn`: checked by mypy and pyright, never run. A line with an ignore must be an error."""

from typing_extensions import assert_type

import shmring
from shmring.typing import Settings


def mean(comm: shmring.Communicator, count: int) -> float:
    return float(comm.all_reduce(count, op="avg"))


def lonely(count: int) -> float:
    return count


def launch(settings: Settings) -> None:
    assert_type(shmring.spawn(mean, 4, args=(3,)), list[float])
    assert_type(shmring.spawn(mean, 4, kwargs={"count": 3}, start_method="fork"), list[float])
    shmring.spawn(lonely, 4)  # type: ignore[arg-type]
    shmring.spawn(mean, 4, start_method="threads")  # type: ignore[arg-type]
    with shmring.init(timeout=None, slot_nbytes=1 << 16) as comm:
        assert_type(comm, shmring.Communicator)
    shmring.init(**settings)
    shmring.init(slots=4)  # type: ignore[call-arg]
    shmring.init(timeout="1")  # type: ignore[arg-type]
