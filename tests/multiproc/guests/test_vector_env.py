"""The vector environment of the examples gives what Gymnasium's own give."""

import os
import signal
import sys

import numpy as np
import pytest
from support.installed import ROOT

gymnasium = pytest.importorskip("gymnasium")
sys.path.append(str(ROOT / "examples"))
from vector_env import RingVectorEnv  # noqa: E402 after the skip

pytestmark = pytest.mark.leaks  # a forkserver, and the resource tracker, live on


class Grid(gymnasium.Env):
    """Observations in a dictionary; episodes of a length that the seed decides; infos now and then."""

    observation_space = gymnasium.spaces.Dict(
        {"at": gymnasium.spaces.Discrete(100), "map": gymnasium.spaces.Box(0, 1, (40, 50), np.float32)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 6))
        return self.look(), {"length": self.left}

    def look(self):
        return {"at": self.left, "map": self.np_random.random((40, 50), np.float32)}

    def step(self, action):
        if action[0] > 2:
            raise ZeroDivisionError("no such action")
        self.left -= 1
        return self.look(), float(action[1]), self.left == 0, False, {"odd": self.left} if self.left % 2 else {}


def make_grid():
    return Grid()


def make_cartpole():
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("maker", [make_grid, make_cartpole])
def test_it_steps_as_gymnasiums_own(maker, method):
    own, expected = RingVectorEnv([maker] * 5, 2, method), gymnasium.vector.SyncVectorEnv([maker] * 5)
    own.action_space.seed(3)
    assert own.observation_space == expected.observation_space
    np.testing.assert_equal(own.reset(seed=7), expected.reset(seed=7))
    for _ in range(40):
        actions = own.action_space.sample()
        got, wanted = own.step(actions), expected.step(actions)
        np.testing.assert_equal(got[:4], wanted[:4])
        np.testing.assert_equal(got[4], wanted[4])
    own.close()
    expected.close()


def test_an_error_of_an_environment_is_raised_and_a_dead_worker_is_one():
    envs = RingVectorEnv([make_grid] * 4, 2)
    envs.reset(seed=1)
    with pytest.raises(ZeroDivisionError, match="no such action"):
        envs.step(np.full((4, 2), 3.0))
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    envs.processes[1].join()
    with pytest.raises((EOFError, BrokenPipeError)):
        envs.step(np.zeros((4, 2)))
    envs.close()
