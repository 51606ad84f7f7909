"""Actors play, a learner learns: steps fan in as records, new policies go out to all actors at once.

Each actor pulls the arms of a bandit. One that is late with its policy is not waited for: it misses the older ones.

    python examples/actors_and_learner.py [ACTORS]
"""

import multiprocessing
import sys

import numpy as np

import shmring

STEP = np.dtype([("arm", "i4"), ("reward", "f4")])
CHANCES = np.array([0.2, 0.5, 0.8, 0.4])
STEPS = 4000


def act(policies, steps, seed):
    """Play by the newest policy there is."""
    generator = np.random.default_rng(seed)
    policy, batch = np.full(len(CHANCES), 1 / len(CHANCES)), np.zeros(50, STEP)
    with policies, steps:
        for _ in range(STEPS // len(batch)):
            while (newer := policies.try_recv()) is not None:
                policy = newer
            batch["arm"] = generator.choice(len(CHANCES), len(batch), p=policy)
            batch["reward"] = generator.random(len(batch)) < CHANCES[batch["arm"]]
            steps.send_many(batch)


def main(actors):
    """Learn the value of each arm."""
    senders, steps = shmring.fan_in(actors, dtype=STEP)
    policy_out, policies = shmring.broadcast_channel(actors, 4096, when_slow="drop_oldest")
    context = multiprocessing.get_context("spawn")
    for seed, ends in enumerate(zip(policies, senders, strict=True)):
        context.Process(target=act, args=(*ends, seed)).start()
    pulls, rewards, has_hearers = np.ones(len(CHANCES)), np.zeros(len(CHANCES)), True
    with steps, policy_out:
        while True:
            try:
                batch = steps.next_ready().recv_many()  # whatever one actor has sent by now, as one array
            except shmring.EndOfStreamError:
                break
            np.add.at(pulls, batch["arm"], 1)
            np.add.at(rewards, batch["arm"], batch["reward"])
            value = np.exp(8 * rewards / pulls)
            if has_hearers:
                try:
                    policy_out.send(value / value.sum())
                except shmring.PeerLostError:  # all actors have closed; what they sent is still to be read
                    has_hearers = False
    steps_seen, best = int(pulls.sum()) - len(CHANCES), int(np.argmax(rewards / pulls))
    print(f"{steps_seen} steps of {actors} actors, the best arm is {best}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
