"""Programs that were started with standard streams closed: no descriptor of ours gets their numbers, and what a library
prints goes nowhere."""

import subprocess
import sys

import pytest
from support.harness import PATIENCE

# Where there is a descriptor of a standard stream, and what is printed by it does no harm.
PROGRAM = """
import asyncio, os, sys
opened = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND)
out = os.dup2(opened, 200)
os.close(opened)

def low():
    found = {}
    for number in range(3):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return found

AT_START = set(low())

def look(where):
    '''At the descriptors of standard streams: only /dev/null may have come.'''
    new = {what for number, what in low().items() if number not in AT_START and what != "/dev/null"}
    if new:
        os.write(out, f"{where}: {new}\\n".encode())
    for number in (1, 2):
        try:
            os.write(number, b"a library says something\\n" * 99)
        except OSError:
            pass

def said(text):
    os.write(200, f"{text}\\n".encode())
"""

ENDS = (
    PROGRAM
    + """
import shmring, shmring.channels.api
import numpy as np

async def one_message():
    sender, receiver = shmring.channel()
    receiving = asyncio.ensure_future(receiver.recv_async())
    await asyncio.sleep(0)
    look("aio")
    sender.send(b"1")
    return bytes(await receiving)

def main():
    sender, receiver = shmring.channel()
    sender.fileno(); receiver.fileno(); look("channel")
    queue = shmring.Queue()
    queue.fileno(); look("queue")
    named = [shmring.open_channel(f"closed-{os.getpid()}", role) for role in ("sender", "receiver")]
    look("named")
    latest = shmring.Latest(); look("latest")
    passed, back, got = shmring.channel(), shmring.channel(), shmring.Queue()
    got.put(passed[1]); look("passing")
    if not os.fork():
        arrived = got.get(timeout=60); look("arrived")
        assert bytes(arrived.recv(60)) == b"passed"; look("taken")
        back[0].send(np.arange(5)); os._exit(0)
    passed[0].send(b"passed"); os.wait()
    assert back[1].recv(60).sum() == 10
    assert asyncio.run(one_message()) == b"1"
    with shmring.init(rank=0, size=1) as comm:
        look("comm"); x = comm.empty(5); y = np.zeros(1 << 16)
        with comm.share(y):
            if not os.fork():
                look("fork of shared arrays"); os._exit(0)
            os.wait(); look("share")
        comm.dup().close()
    for end in (sender, receiver, queue, *named, latest): end.close()
    look("end"); said("well")

try:
    main()
except BaseException as error:
    said(repr(error))
"""
)

PROCESSES = (
    PROGRAM
    + """
import shmring, shmring.multiprocessing as mp
import numpy as np

def rank(comm):
    look("rank")
    os.system("echo noise; echo noise >&2")
    x = np.full(100_000, comm.rank + 1.0); comm.all_reduce(x)
    y = comm.empty(10); y += 1; look("arrays"); comm.all_reduce(y)
    return float(x[0]), float(y[0])

def child(queue, connection, sender):
    look("child")
    if sys.stdout: print("noise", flush=True)
    os.system("echo noise; echo noise >&2")
    queue.put(1); connection.send([2]); sender.send(np.arange(3))

def main():
    method = sys.argv[2]
    context = mp.get_context(method)
    near, far = context.Pipe(); queue = context.Queue(); sender, receiver = shmring.channel()
    look("pipe")
    process = context.Process(target=child, args=(queue, far, sender)); process.start(); look("started")
    assert queue.get(timeout=60) == 1 and near.poll(60) and near.recv() == [2] and receiver.recv(60).sum() == 3
    process.join(); assert process.exitcode == 0
    with context.Pool(2) as pool:
        look("pool"); assert pool.map(abs, [-1, -2]) == [1, 2]
    assert shmring.spawn(rank, 2, start_method=method, timeout=60) == [(3.0, 2.0)] * 2
    look("end"); said("well")

if __name__ == "__main__":
    main()
"""
)

RANKS = (
    PROGRAM + "import shmring\nwith shmring.init() as comm:\n    look('rank'); assert comm.all_reduce_object(1) == 2\n"
)

CLOSED = pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-", ">&- 2>&-"])


def run_without_streams(tmp_path, closed, program, *args, module=()):
    path, said = tmp_path / "program.py", tmp_path / "said"
    path.write_text(program)
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *module, str(path), str(said), *args]
    status = subprocess.run(command, timeout=200 * PATIENCE, check=False, capture_output=True).returncode
    return status, said.read_text()


@pytest.mark.sample(1)
@CLOSED
def test_no_end_gets_the_number_of_a_stream(tmp_path, closed):
    assert run_without_streams(tmp_path, closed, ENDS) == (0, "well\n")


@pytest.mark.sample(3)
@CLOSED
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_such_a_program_work(tmp_path, closed, method):
    assert run_without_streams(tmp_path, closed, PROCESSES, method) == (0, "well\n")


@pytest.mark.sample(1)
@CLOSED
def test_a_launcher_without_streams_works(tmp_path, closed):
    assert run_without_streams(tmp_path, closed, RANKS, module=("-m", "shmring", "run", "-n", "2")) == (0, "")
