"""Two ranks share arrays, close them and fork, while another thread of each stores into them by other communicators.

Nothing that is stored may be lost, neither by a collective nor by a message, and no child may store into its parent.
"""

import os
import random
import threading

import numpy as np

STEPS = 30
OPENING = "comm = shmring.init(rank={rank}, size=2, session='hostile{session}', timeout=60)"


def attack(script, case):
    """The ranks draw the same steps, one sequence for each thread; what a rank does for itself it draws alone."""
    session = f"{os.getpid()}_{case}"
    peer = os.fork()
    rank = 0 if peer else 1
    script.label, script.is_child = f"[rank {rank}] ", rank == 1
    script.has_signals = False
    script.step(OPENING.format(rank=rank, session=session), "comm")
    comm = script.names["comm"]
    with comm, comm.dup() as calls, comm.dup() as messages:
        arrays = [np.zeros(script.rng.randrange(1 << 13, 1 << 16)) for _ in range(3)]
        handles = [None] * len(arrays)
        storing, sharing = random.Random(script.rng.random()), random.Random(script.rng.random())
        alone = random.Random(f"{script.rng.random()} {rank}")
        thread = threading.Thread(target=guarded, args=(script, store, storing, calls, messages, arrays, handles))
        thread.start()
        guarded(script, share, sharing, alone, comm, arrays, handles)
        thread.join()
        for i, x in enumerate(arrays):
            x[:] = i + rank
            comm.all_reduce(x)
            check(script, x, 2 * i + 1, "after the last step")
        arrays.clear()
        handles.clear()
    if peer:
        status = os.waitstatus_to_exitcode(os.waitpid(peer, 0)[1])
        if status:
            script.defect(f"rank 1 ended with status {status}")


def guarded(script, steps, *args):
    """All steps of a thread. It ends with its first error, and then the other rank times out or learns of the abort."""
    try:
        steps(script, *args)
    except BaseException as error:
        script.defect(f"{type(error).__name__}: {error}", error)


def check(script, x, wanted, what):
    """Note a defect if any element differs."""
    if not (x == wanted).all():
        script.defect(f"{what}: {np.unique(x)[:5]} instead of {wanted}")


def share(script, dice, alone, comm, arrays, handles):
    """Share some arrays, use them, fork, close."""
    for _ in range(STEPS):
        which = dice.sample(range(len(arrays)), dice.choice((1, 1, 2)))
        step = dice.choice(("share", "share", "close", "fork", "use"))
        script.write(f"# [sharing] {step} {which}")
        if step == "fork":
            fork(script, arrays)
        elif step == "use":  # of a size that other communicators use as well
            own = np.full(1 << dice.choice((4, 14)), 1.0)
            comm.all_reduce(own)
            check(script, own, 2, "a call beside")
        else:
            for i in which:
                if handles[i] is not None:
                    handles[i].close()
        if step == "share":
            handle = comm.share(*[arrays[i] for i in which])
            for i in which:
                handles[i] = handle
            if alone.random() < 0.3:
                handle.close()  # the other rank may keep it


def fork(script, arrays):
    """A child stores into all arrays, and ends."""
    pid = os.fork()
    if pid == 0:
        for x in arrays:
            x[:] = -1
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        script.defect(f"a child ended with status {status}")


def fill(x, values):
    """Store into an array with the GIL held: NumPy would release it, and a store while `share` copies may be lost."""
    memoryview(x)[:] = values.astype(float)


def store(script, dice, calls, messages, arrays, handles):
    """Have collectives and messages store into the arrays; nothing else stores there."""
    rank = calls.rank
    for step in range(1, STEPS + 1):
        i, root = dice.randrange(len(arrays)), dice.randrange(2)
        x = arrays[i] if dice.random() < 0.7 else arrays[i][dice.randrange(5000) :: dice.choice((1, 1, 2))]
        way = dice.choice(("all_reduce", "in place", "async", "broadcast", "gather", "send", "irecv", "close"))
        script.write(f"# [storing] {way} {i} {x.shape} {root}")
        own, wanted = np.full(x.shape, step + rank), 2 * step + 1
        if way == "all_reduce":
            calls.all_reduce(own.astype(float), x)
        elif way == "in place":
            fill(x, own)
            calls.all_reduce(x)
        elif way == "async":
            calls.all_reduce(own.astype(float), x, async_op=True).wait()
        elif way == "broadcast":
            fill(x, own)
            calls.broadcast(x, root=root)
            wanted = step + root
        elif way == "gather":
            half = len(x) // 2
            x = x[: 2 * half]
            calls.all_gather(own[:half].astype(float), x)
            check(script, x[:half], step, way)
            x, wanted = x[half:], step + 1
        elif way in ("send", "irecv"):
            wanted = step
            if rank == root:
                fill(x, np.full(x.shape, step))
                messages.send(x, 1 - rank)
            elif way == "send":
                messages.recv(x, root)
            else:
                messages.irecv(x, root).wait()
        elif handles[i] is not None:
            handles[i].close()
            continue
        else:
            continue
        check(script, x, wanted, way)
