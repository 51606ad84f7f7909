"""A vector environment for Gymnasium: each worker steps a share of the environments, over a pipe of rings.

python examples/vector_env.py [ENVIRONMENT [COUNT [WORKERS]]]
"""

import os
import sys
import time

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

import shmring.multiprocessing


def work(pipe, functions):
    """Step the environments that these functions make, until the other end is closed, or its process has died."""
    envs = SyncVectorEnv(functions.fn, copy=False)
    try:
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send((getattr(envs, name)(**arguments), None))
            except Exception as error:  # goes to the process that steps
                pipe.send((None, error))
    except EOFError:
        envs.close()


def joined(parts):
    """The batches of the workers as one."""
    if isinstance(parts[0], dict):
        return {key: joined([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(joined(each) for each in zip(*parts, strict=True))
    return np.concatenate(parts)


def share(batch, of):
    """The part of a batch for one worker."""
    if isinstance(batch, dict):
        return {key: share(each, of) for key, each in batch.items()}
    return tuple(share(each, of) for each in batch) if isinstance(batch, tuple) else batch[of]


class RingVectorEnv(VectorEnv):
    """As `gymnasium.vector.AsyncVectorEnv`, but with a process for several environments, and a message for all of them.

    A worker that has died is an ``EOFError`` of the next call.
    """

    def __init__(self, functions, workers=None, method="fork"):
        probe = functions[0]()
        self.num_envs, self.metadata = len(functions), dict(probe.metadata)
        self.metadata["autoreset_mode"] = gymnasium.vector.AutoresetMode.NEXT_STEP  # of SyncVectorEnv
        self.single_observation_space, self.single_action_space = probe.observation_space, probe.action_space
        self.observation_space = batch_space(probe.observation_space, self.num_envs)
        self.action_space = batch_space(probe.action_space, self.num_envs)
        probe.close()
        ends = np.linspace(0, self.num_envs, 1 + min(self.num_envs, workers or os.cpu_count() or 1)).astype(int)
        self.shares = [slice(*pair) for pair in zip(ends[:-1], ends[1:], strict=True)]
        self.pipes, self.processes = [], []
        context = shmring.multiprocessing.get_context(method)
        for of in self.shares:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, CloudpickleWrapper(functions[of])), daemon=True)
            process.start()
            theirs.close()
            self.pipes, self.processes = [*self.pipes, ours], [*self.processes, process]

    def _call(self, name, arguments):
        for pipe, each in zip(self.pipes, arguments, strict=True):
            pipe.send((name, each))
        answers = [pipe.recv() for pipe in self.pipes]
        for _, error in answers:
            if error is not None:
                raise error
        *batches, infos = zip(*[answer for answer, _ in answers], strict=True)
        found = {}  # of each info an array with a place for every environment, beside one of which places are filled
        for of, info in zip(self.shares, infos, strict=True):
            for key, value in info.items():
                if isinstance(value, np.ndarray):
                    found.setdefault(key, np.zeros((self.num_envs, *value.shape[1:]), value.dtype))[of] = value
                else:
                    found[key] = value
        return *(joined(batch) for batch in batches), found

    def reset(self, *, seed=None, options=None):
        """Reset all; an int seeds environment i with ``seed + i``."""
        if seed is None or isinstance(seed, int):
            seed = [seed if seed is None else seed + i for i in range(self.num_envs)]
        return self._call("reset", [{"seed": seed[of], "options": options} for of in self.shares])

    def step(self, actions):
        """One step of all."""
        return self._call("step", [{"actions": share(actions, of)} for of in self.shares])

    def close_extras(self, **kwargs):
        """End the workers."""
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join()


def steps_per_second(envs, count=300):
    """Of all environments together."""
    envs.reset(seed=1)
    actions, began = envs.action_space.sample(), time.perf_counter()
    for _ in range(count):
        envs.step(actions)
    return count * envs.num_envs / (time.perf_counter() - began)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    environment, count = given.get(0, "CartPole-v1"), int(given.get(1, 16))
    makers = [lambda: gymnasium.make(environment)] * count
    for envs in (RingVectorEnv(makers, int(given.get(2, os.cpu_count()))), AsyncVectorEnv(makers)):
        print(f"{type(envs).__name__}: {steps_per_second(envs):.0f} steps a second of {count} environments")
        envs.close()
