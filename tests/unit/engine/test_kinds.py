"""What C makes of the rows of kinds."""

import pytest
from support import compiled

from shmring.collectives.plan.kinds import COLLECTIVES, KINDS

# By `Kind.reads`, of kinds that have eager exchanges.
READ = {
    "all": lambda rank, root, size: range(size),
    "root": lambda rank, root, size: range(root, root + 1),
    "through": lambda rank, root, size: range(rank + 1),
    "before": lambda rank, root, size: range(rank),
}


@pytest.fixture(scope="module")
def hooks():
    return compiled.load("engine_hooks")


@pytest.mark.parametrize("kind", COLLECTIVES.values(), ids=lambda kind: kind.name)
def test_eager_exchanges_read_the_ranks_of_the_row_and_arrays_have_its_blocks(hooks, kind):
    for size in (1, 2, 3, 5):
        assert hooks.blocks_of(kind.code, size) == (kind.blocks_in.among(size), kind.blocks_out.among(size))
        for rank in range(size):
            for root in range(size):
                wanted = READ[kind.reads](rank, root, size) if kind.is_eager else None
                assert hooks.read_of(kind.code, rank, root, size) == wanted


def test_a_kind_that_reads_no_ranks_in_a_row_has_no_eager_exchange(hooks):
    (message,) = (kind.code for kind in KINDS[1:] if kind.name == "send")
    assert hooks.read_of(message, 1, 0, 3) is None
