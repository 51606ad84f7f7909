"""What the processes agree on over JAX's key-value store, here a dictionary: one session, or one error for all."""

import json

import pytest

from shmring.errors import RendezvousError
from shmring.jax import world

FIT = {"machine": "a", "host": "h", "ndevices": 1}


class Store:
    """The two calls of jaxlib's client that are used; a key that is missing is a timeout."""

    def __init__(self, *processes):
        self.values = {f"shmring/process/{rank}": json.dumps(one) for rank, one in enumerate(processes, 1)}

    def key_value_set(self, key, value):
        assert key not in self.values
        self.values[key] = value

    def blocking_key_value_get(self, key, timeout_ms):
        assert timeout_ms > 0
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
        return self.values[key]


def agree(monkeypatch, store, size):
    monkeypatch.setattr(world, "_describe", lambda: FIT)
    return world.agree(store, 0, size)


def test_the_session_is_fresh_and_the_others_get_the_same(monkeypatch):
    first, second = (Store(FIT, FIT) for _ in range(2))
    sessions = [agree(monkeypatch, store, 3) for store in (first, second)]
    assert len(set(sessions)) == 2
    del first.values["shmring/process/1"]
    assert world.agree(first, 1, 3) == sessions[0]


@pytest.mark.parametrize(
    ("others", "part"),
    [
        ([FIT, {**FIT, "machine": "b", "host": "far"}], "rank 2 runs on far, rank 0 on h"),
        ([{**FIT, "ndevices": 4}, FIT], "rank 1 has 4 CPU devices"),
        ([FIT], "rank 2 has not made its CPU backend within"),
    ],
)
def test_a_process_that_is_unfit_is_an_error_for_all(monkeypatch, others, part):
    store = Store(*others)
    with pytest.raises(RendezvousError, match=part):
        agree(monkeypatch, store, 3)
    store.values.pop("shmring/process/1", None)
    with pytest.raises(RendezvousError, match=part):
        world.agree(store, 1, 3)
