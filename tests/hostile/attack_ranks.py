"""Two ranks that make the same random calls, until one makes another."""

import os
import random

import surface

import shmring

SETTINGS = "timeout=0.1, rendezvous_timeout=60, slot_nbytes=4096, nslots=4, pair_queue_nbytes=4096"
OPENING = "comm = shmring.init(rank={rank}, size=2, session='hostile{session}', " + SETTINGS + ")"


def attack(script, case):
    """Each rank draws the same steps, and now and then one of its own."""
    session = f"{os.getpid()}_{case}"
    peer = os.fork()
    rank = 0 if peer else 1
    script.label, script.is_child = f"[rank {rank}] ", rank == 1
    own_dice = random.Random(f"{script.rng.random()} {rank}")
    script.step(OPENING.format(rank=rank, session=session), "comm", limit_s=100)
    script.step(f"comm.irecv(np.ones(8), {1 - rank}, 9)", "request")
    script.step("comm.all_reduce(np.ones(8), async_op=True)", "work")
    script.step("comm.plan('all_reduce', np.ones(8))", "plan")
    script.step("comm.share(np.ones(1 << 15))", "held", limit_s=5)
    common = script.rng
    for _ in range(40):
        seed = common.random()
        strays = common.random() < 0.1
        script.rng = script.arguments.rng = own_dice if strays else random.Random(seed)
        script.arguments.hostility = 0.3 if strays else 0.1
        if script.own:
            name = script.rng.choice(script.own)
            member = script.rng.choice(surface.methods(type(script.names[name])) or ["__repr__"])
            if member not in ("close", "abort") or strays:
                script.use(name, member)
    script.rng = script.arguments.rng = own_dice
    for name in list(script.own):
        if isinstance(script.names[name], shmring.Communicator) and own_dice.random() < 0.7:
            script.step(f"{name}.close()", limit_s=5)
    if peer:
        status = os.waitstatus_to_exitcode(os.waitpid(peer, 0)[1])
        if status:
            script.defect(f"rank 1 ended with status {status}")
