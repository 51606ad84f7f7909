"""Ranks, tags and sizes that no int of C holds: every call refuses them by the name of the argument."""

import inspect

import numpy as np
import pytest
from support.on_ranks import on_ranks

BEYOND = (1 << 31, -(1 << 31) - 1, 1 << 40, -(1 << 40), 1 << 70, -(1 << 70), np.int64(1 << 40), np.uint64(1 << 63))
NUMBERS = {"root", "dst", "src", "tag", "out_tag", "rank"}


def calls_with_numbers(comm):
    """Each public call that takes a rank or a tag, once for each: its name, the argument, and the call with a value."""
    x = np.ones((comm.size, 2))
    good = {
        "x": x, "out": np.ones((comm.size, 2)), "obj": 1, "objs": [1] * comm.size, "arrays": [x], "dst": 0,
        "collective": "broadcast", "nbytes": 16, "shape": 3, "array": comm.empty(3), "rank": 0, "src": 0, "tag": 0,
    }  # fmt: skip
    for name, method in inspect.getmembers(type(comm), callable):
        if name.startswith("_") or name == "plan":
            continue
        parameters = inspect.signature(method).parameters
        for number in NUMBERS & set(parameters):
            needed = [p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
            arguments = {p.name: good[p.name] for p in needed if p.name not in ("self", number)}
            yield name, number, lambda value, m=method, n=number, a=arguments: m(comm, **a, **{n: value})
    yield "plan", "root", lambda value: comm.plan("broadcast", x, root=value)
    yield "plan", "root", lambda value: comm.plan("gather", x, root=value, counts=[comm.size] * comm.size)


@on_ranks(2)
def test_ranks_and_tags_beyond_an_int_of_c_are_refused_by_name(comm):
    found = list(calls_with_numbers(comm))
    assert len(found) > 25, found
    for name, number, call in found:
        for value in BEYOND:
            with pytest.raises(ValueError, match=rf"{number}={int(value)}: must be"):
                call(value)
            assert name
        with pytest.raises(TypeError):
            call(1.5)
    for value in (1 << 60, 1 << 70):
        with pytest.raises(ValueError, match=rf"nbytes={value}: must be"):
            comm.explain("all_reduce", value)
        with pytest.raises(ValueError, match="ranks="):
            comm.subgroup([value])
        with pytest.raises(ValueError, match="counts="):
            comm.all_gather(np.ones(2), counts=[value, 4 * value])
    comm.barrier()
    assert comm.all_reduce(np.ones(1))[0] == comm.size
