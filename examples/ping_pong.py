"""How long a message takes there and back. Run me with:  shmring run -n 2 examples/ping_pong.py"""

import time

import numpy as np

import shmring

ROUNDS = 200

with shmring.init() as comm:
    assert comm.size == 2, "a ball needs two players"
    other = 1 - comm.rank
    for nbytes in (8, 4 << 10, 1 << 20):
        ball = np.zeros(nbytes, np.uint8)
        comm.barrier()
        started = time.perf_counter()
        for turn in range(ROUNDS):
            if comm.rank == 0:
                ball[0] = turn
                comm.send(ball, other)
            comm.recv(ball, other)
            assert ball[0] == turn % 256  # what comes back is what was sent
            if comm.rank == 1:
                comm.send(ball, other)
        microseconds = (time.perf_counter() - started) / ROUNDS * 1e6
        if comm.rank == 0:
            print(f"{nbytes:>8} bytes there and back: {microseconds:9.1f} us")
