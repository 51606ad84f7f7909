"""A vector environment for Gymnasium over pipes of rings: python examples/vector_env.py [ENVIRONMENT COUNT WORKERS]."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

import shmring.multiprocessing
from shmring.multiprocessing.connection import Connection


def work(pipe: Connection, others: list[Connection], functions: CloudpickleWrapper) -> None:
    """Step the environments that these functions make, until None comes, or the process that steps has died."""
    for other in others:  # a fork has copies of the ends of the parent
        other.close()
    envs = SyncVectorEnv(functions.fn, copy=False)
    with suppress(EOFError):
        while (call := pipe.recv()) is not None:
            try:
                pipe.send((getattr(envs, call[0])(**call[1]), None))
            except Exception as error:  # goes to the process that steps
                pipe.send((None, error))
    envs.close()


def joined(parts: Sequence[Any]) -> Any:
    """The batches of the workers as one."""
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(joined(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def share(batch: Any, of: slice) -> Any:
    """The part of a batch for one worker."""
    if isinstance(batch, dict):
        return {key: share(each, of) for key, each in batch.items()}
    return tuple(share(each, of) for each in batch) if isinstance(batch, tuple) else batch[of]


def place(found: dict[str, Any], of: slice, info: dict[str, Any], count: int) -> None:
    """Put the infos of a worker into arrays with a place for each environment."""
    for key, value in info.items():
        if isinstance(value, dict):
            place(found.setdefault(key, {}), of, value, count)
        else:
            empty = np.full((count, *value.shape[1:]), None if value.dtype == object else 0, value.dtype)
            found.setdefault(key, empty)[of] = value


class RingVectorEnv(VectorEnv):
    """As `gymnasium.vector.AsyncVectorEnv`, but with a process for several environments, and a message for all of them.

    A worker that has died is an ``EOFError`` or ``BrokenPipeError`` of the next call.
    """

    def __init__(
        self, functions: Sequence[Callable[[], gymnasium.Env]], workers: int | None = None, method: str = "fork"
    ) -> None:
        probe = functions[0]()
        self.num_envs, mode = len(functions), gymnasium.vector.AutoresetMode.NEXT_STEP
        self.metadata = {**probe.metadata, "autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = probe.observation_space, probe.action_space
        self.observation_space, self.action_space = (
            batch_space(each, self.num_envs) for each in (probe.observation_space, probe.action_space)
        )
        probe.close()
        ends = np.linspace(0, self.num_envs, 1 + min(self.num_envs, workers or os.cpu_count() or 1)).astype(int)
        self.shares = [slice(*pair) for pair in pairwise(ends)]
        self.pipes, self.processes, context = [], [], shmring.multiprocessing.get_context(method)
        for of in self.shares:
            ours, theirs = context.Pipe()
            self.pipes.append(ours)
            made = CloudpickleWrapper(functions[of])
            self.processes.append(context.Process(target=work, args=(theirs, self.pipes, made), daemon=True))
            self.processes[-1].start()
            theirs.close()

    def _call(self, name: str, arguments: list[dict[str, Any]]) -> tuple[Any, ...]:
        for pipe, each in zip(self.pipes, arguments, strict=True):
            pipe.send((name, each))
        answers = [pipe.recv() for pipe in self.pipes]
        for error in filter(None, (error for _, error in answers)):
            raise error
        *batches, infos = zip(*[answer for answer, _ in answers], strict=True)
        found: dict[str, Any] = {}
        for of, info in zip(self.shares, infos, strict=True):
            place(found, of, info, self.num_envs)
        return *(joined(batch) for batch in batches), found

    def reset(self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None) -> tuple[Any, ...]:
        """Reset all; an int seeds environment i with ``seed + i``."""
        seeds = seed if isinstance(seed, list) else [None if seed is None else seed + i for i in range(self.num_envs)]
        return self._call("reset", [{"seed": seeds[of], "options": options} for of in self.shares])

    def step(self, actions: Any) -> tuple[Any, ...]:
        return self._call("step", [{"actions": share(actions, of)} for of in self.shares])

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            with suppress(BrokenPipeError):  # of a worker that has died
                pipe.send(None)
            pipe.close()
            process.join()


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    makers = [lambda: gymnasium.make(given.get(0, "CartPole-v1"))] * int(given.get(1, 16))
    for make in (lambda makers: RingVectorEnv(makers, int(given.get(2, 2))), AsyncVectorEnv):
        envs = make(makers)
        envs.reset(seed=1)
        actions, began = envs.action_space.sample(), time.perf_counter()
        for _ in range(300):
            envs.step(actions)
        print(f"{type(envs).__name__}: {300 * envs.num_envs / (time.perf_counter() - began):.0f} steps a second")
        envs.close()
