"""Draw the pictures of docs/watching.md: three stories are played in real processes, and watched.

    python tools/watching_pictures.py docs/pictures

Each is drawn by ``shmring top --svg`` and ``shmring trace --svg``, of what they find.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOW = """
import time, numpy as np, shmring
def step(comm, x):
    if comm.rank == 2:
        time.sleep(0.05)      # the slow part of one rank
    comm.all_reduce(x)
with shmring.init() as comm:
    x = np.ones(1000, np.float32)
    while True:
        step(comm, x)
"""
DISAGREE = """
import time, numpy as np, shmring
comm = shmring.init()
comm.barrier()
try:
    comm.all_reduce(np.ones(8 if comm.rank else 9))
except shmring.MismatchError:
    time.sleep(1000)
"""
QUEUE = """
import os, shmring
queue = shmring.Queue(capacity_nbytes=1 << 16)
if os.fork() == 0:
    queue.get()
    os.kill(os.getpid(), 9)
queue.put(b"x" * 100)
os.wait()
while True:
    queue.put(b"x" * 100)      # waits for ever once it is full
"""


def shmring(*args):
    """A command, to its end."""
    subprocess.run([sys.executable, "-m", "shmring", *args], check=True, stdout=subprocess.DEVNULL)


def play(folder, name, program, *, ranks, trace=None):
    """Run a story, and draw what is seen of it after a second."""
    script = Path(folder) / f"train_{name}.py"
    script.write_text(program)
    command = [sys.executable, "-m", "shmring", "run", "-n", str(ranks), script.name]
    environment = os.environ | ({"SHMRING_TRACE": trace} if trace else {})
    process = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    try:
        time.sleep(2)
        shmring("top", "--svg", f"{sys.argv[1]}/watching-{name}.svg")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def main():
    """All three."""
    os.makedirs(sys.argv[1], exist_ok=True)
    os.environ["SHMRING_FILE_PREFIX"] = f"story{os.getpid()}"  # no other job is in the pictures
    with tempfile.TemporaryDirectory() as folder:
        play(folder, "slow", SLOW, ranks=4, trace=f"{folder}/timelines")
        shmring("trace", f"{folder}/timelines", "--svg", f"{sys.argv[1]}/watching-timeline.svg")
        play(folder, "disagree", DISAGREE, ranks=3)
        play(folder, "queue", QUEUE, ranks=1)


if __name__ == "__main__":
    main()
