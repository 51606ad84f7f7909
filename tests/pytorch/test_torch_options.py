"""Options are read where they lie in memory: they must say what their attributes say, however they are set and made."""

import random
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from shmring.torch import options
from shmring.torch.reduce_ops import NAMES, name_of

KINDS = [
    c10d.AllgatherOptions, c10d.AllreduceOptions, c10d.AllToAllOptions, c10d.BarrierOptions, c10d.BroadcastOptions,
    c10d.GatherOptions, c10d.ReduceOptions, c10d.ReduceScatterOptions, c10d.ScatterOptions,
]  # fmt: skip


class Attributes:
    """An options object of a type that nobody has learned."""

    def __init__(self, made):
        self.timeout, self.asyncOp = made.timeout, made.asyncOp
        if hasattr(made, "reduceOp"):
            self.reduceOp = made.reduceOp


def test_all_types_are_known_in_the_versions_that_are():
    known = torch.__version__.startswith("2.13.")
    assert options.learned() == (KINDS if known else [])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_what_was_set(kind, seed):
    draw = random.Random(seed)
    assert options.manner(kind()) == (True, None)  # torch's defaults
    for _ in range(200):
        made, ms, in_background = kind(), draw.choice([-1, 0, 1, 999, draw.randrange(1 << 40)]), draw.random() < 0.5
        made.timeout, made.asyncOp = timedelta(milliseconds=ms), in_background
        if hasattr(kind, "rootRank"):
            made.rootRank = draw.randrange(1000)
        for each in (made, Attributes(made)):
            assert options.manner(each) == (in_background, ms / 1e3 if ms > 0 else None)
        if hasattr(kind, "reduceOp"):
            made.reduceOp = draw.choice([op for op in NAMES if NAMES[op] != "premul_sum"])
            for each in (made, Attributes(made)):
                assert options.reduction(each) == name_of(made.reduceOp)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if hasattr(kind, "reduceOp")])
def test_premultiplied_sums_come_as_torchs_object(kind):
    made = kind()
    made.reduceOp = dist._make_nccl_premul_sum(0.5)
    for each in (made, Attributes(made)):
        assert options.reduction(each).__getstate__()[1] == 0.5
        assert name_of(options.reduction(each)) == "premul_sum"
