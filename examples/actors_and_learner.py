"""Actors play, a learner learns: steps fan in as records, and each actor reads the newest policy.

Each actor pulls the arms of a bandit. One that is late with its policy is not waited for: it misses the older ones.

    python examples/actors_and_learner.py [ACTORS]
"""

import multiprocessing
import sys

import numpy as np
from numpy.typing import NDArray

import shmring

STEP = np.dtype([("arm", "i4"), ("reward", "f4")])
CHANCES = np.array([0.2, 0.5, 0.8, 0.4])
STEPS = 4000


def act(policies: shmring.Latest[NDArray[np.float64]], steps: shmring.RecordSender, seed: int) -> None:
    """Play by the newest policy there is."""
    generator = np.random.default_rng(seed)
    batch = np.zeros(50, STEP)
    with steps:
        for _ in range(STEPS // len(batch)):
            policy = policies.read()
            batch["arm"] = generator.choice(len(CHANCES), len(batch), p=policy)
            batch["reward"] = generator.random(len(batch)) < CHANCES[batch["arm"]]
            steps.send_many(batch)


def main(actors: int) -> None:
    """Learn the value of each arm."""
    senders, steps = shmring.fan_in(actors, dtype=STEP)
    policies = shmring.Latest[NDArray[np.float64]](4096)
    policies.write(np.full(len(CHANCES), 1 / len(CHANCES)))
    context = multiprocessing.get_context("spawn")
    for seed, sender in enumerate(senders):
        context.Process(target=act, args=(policies, sender, seed)).start()
    pulls, rewards = np.ones(len(CHANCES)), np.zeros(len(CHANCES))
    with steps:
        while True:
            try:
                batch = steps.next_ready().recv_many()  # whatever one actor has sent by now, as one array
            except shmring.EndOfStreamError:
                break
            np.add.at(pulls, batch["arm"], 1)
            np.add.at(rewards, batch["arm"], batch["reward"])
            value = np.exp(8 * rewards / pulls)
            policies.write(value / value.sum())
    steps_seen, best = int(pulls.sum()) - len(CHANCES), int(np.argmax(rewards / pulls))
    print(f"{steps_seen} steps of {actors} actors, the best arm is {best}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
