"""What the other processes see when one is killed with SIGKILL, and after how long: shmring beside other libraries.

    python bench/bench_kill.py
    python bench/bench_kill.py --python ~/openmpi/bin/python --python ~/torch/bin/python --repeats 20

Processes make one call again and again, a collective of three ranks or a receive of one of two; then one kills itself.
The figures are milliseconds from just before that until a survivor's call raises, or until the survivor has been ended;
a survivor that still waits after ``--seconds`` is counted as such. Each library is taken from the first interpreter
that has it; this one is the first.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

CALLS_BEFORE = 20
MPI_OPTIONS = {
    "Open MPI": ["--oversubscribe", "--bind-to", "none"],
    "MPICH": ["-bind-to", "none"],
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


# ---- one function for each library: rank, size, folder -> the rank of this process, and its call ----


def shmring_ranks(rank, size, folder):
    import numpy as np

    import shmring

    comm = shmring.init(rank=rank, size=size, session=Path(folder).name)
    x = np.ones(1000)
    return rank, lambda: comm.all_reduce(x, op="max")


def torch_group(rank, size, folder, backend="gloo"):
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    x = torch.ones(1000)
    return rank, lambda: dist.all_reduce(x, op=dist.ReduceOp.MAX)


def torch_shmring(rank, size, folder):
    import shmring.torch  # noqa: F401  where the entry point is not installed

    return torch_group(rank, size, folder, "shmring")


def mpi_ranks(rank, size, folder):
    import numpy as np
    from mpi4py import MPI

    comm, x = MPI.COMM_WORLD, np.ones(1000)
    comm.Set_errhandler(MPI.ERRORS_RETURN)  # mpi4py raises then
    return comm.rank, lambda: comm.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)


def sent_by_child(send, recv, close_there=lambda: None, close_here=lambda: None):
    """The calls of two processes: the child, rank 1, sends."""
    if os.fork():
        close_here()
        return 0, recv
    close_there()
    return 1, lambda: send(bytes(1000))


def shmring_channel(rank, size, folder):
    import shmring

    sender, receiver = shmring.channel()
    return sent_by_child(sender.send, receiver.recv)


def shmring_queue(rank, size, folder):
    import shmring

    queue = shmring.Queue()
    return sent_by_child(queue.put, queue.get)


def standard_queue(rank, size, folder):
    import multiprocessing

    queue = multiprocessing.Queue()
    return sent_by_child(queue.put, queue.get)


def standard_pipe(rank, size, folder):
    import multiprocessing

    receiver, sender = multiprocessing.Pipe(duplex=False)
    return sent_by_child(sender.send_bytes, receiver.recv_bytes, close_here=sender.close)


def iceoryx(rank, size, folder):
    import ctypes

    import iceoryx2 as iox

    node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
    service = node.service_builder(iox.ServiceName.new(folder)).publish_subscribe(iox.Slice[ctypes.c_uint8])
    service = service.open_or_create()
    if rank == 1:
        publisher = service.publisher_builder().initial_max_slice_len(1000).create()
        return 1, lambda: (time.sleep(0.001), publisher.loan_slice_uninit(1000).assume_init().send(), node)
    subscriber = service.subscriber_builder().create()

    def recv():
        while subscriber.receive() is None:
            node.wait(iox.Duration.from_millis(1))

    return 0, recv


# Name -> the module that it needs, the number of processes, how they are started, its function.
CASES = {
    "shmring, all_reduce": ("shmring", 3, "each", shmring_ranks),
    "shmring, torch.distributed": ("shmring.torch", 3, "each", torch_shmring),
    "gloo, torch.distributed": ("torch", 3, "each", torch_group),
    "MPI": ("mpi4py", 3, "mpiexec", mpi_ranks),
    "shmring.channel, recv": ("shmring", 2, "fork", shmring_channel),
    "shmring.Queue, get": ("shmring", 2, "fork", shmring_queue),
    "multiprocessing.Pipe, recv_bytes": ("", 2, "fork", standard_pipe),
    "multiprocessing.Queue, get": ("", 2, "fork", standard_queue),
    "iceoryx2, subscriber": ("iceoryx2", 2, "each", iceoryx),
}


def play(name, rank, folder):
    """One process of a case; the last rank kills itself."""
    _, size, _, make = CASES[name]

    def write(what, text=""):
        fact = {"rank": rank, "pid": os.getpid(), "what": what, "ns": time.monotonic_ns(), "text": text}
        with open(f"{folder}/events", "a") as file:  # one write: lines of different processes do not mix
            file.write(json.dumps(fact) + "\n")

    rank, call = make(rank, size, folder)
    if rank == size - 1:
        for _ in range(CALLS_BEFORE):
            call()
        write("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    write("begun")
    try:
        while True:
            call()
    except BaseException as error:
        write("raised", f"{type(error).__name__}: {error}")
        os._exit(1)  # without the library's own end, which may wait for the dead


# ---- the parent ----


def commands(name, python, folder):
    """The command lines that start a case."""
    _, size, how, _ = CASES[name]
    program = [python, os.path.abspath(__file__), "--play", name, folder]
    if how != "mpiexec":
        return [[*program, str(rank)] for rank in range(size if how == "each" else 1)]
    beside = Path(python).with_name("mpiexec")
    mpiexec = [str(beside) if beside.exists() else "mpiexec", *MPI_OPTIONS.get(mpi_title(python), [])]
    return [[*mpiexec, "-n", str(size), *program, "-1"]]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_once(name, python, seconds):
    """Of each survivor: what it saw, and after how many milliseconds; None if it still waits."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        events, found = Path(folder, "events"), {}
        events.touch()
        for command in commands(name, python, folder):
            started = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **ENVIRONMENT},
            )  # fmt: skip
            running.callback(started.wait)
            running.callback(os.killpg, started.pid, signal.SIGKILL)
        survivors, pids = CASES[name][1] - 1, {}
        give_up = time.monotonic() + 60
        while len(found) < survivors:
            ended = {rank for rank, pid in pids.items() if not is_running(pid)}  # before it looks at what they wrote
            facts = [json.loads(line) for line in events.read_text().splitlines()]
            pids = {one["rank"]: one["pid"] for one in facts if one["what"] == "begun"}
            killed_ns = next((one["ns"] for one in facts if one["what"] == "killed"), None)
            if killed_ns is None:
                assert time.monotonic() < give_up, f"{name}: it did not start"
                time.sleep(0.01)
                continue
            waited_ms = (time.monotonic_ns() - killed_ns) / 1e6
            raised = {
                one["rank"]: (one["text"], (one["ns"] - killed_ns) / 1e6) for one in facts if one["what"] == "raised"
            }
            found = dict.fromkeys(ended, ("it is ended by the launcher", waited_ms)) | found | raised
            if waited_ms > 1e3 * seconds:
                found = dict.fromkeys(range(survivors), ("it waits", None)) | found
            time.sleep(0.0005)
        return list(found.values())


def row(name, title, python, repeats, seconds):
    """A line of the table."""
    found = [one for _ in range(repeats) for one in kill_once(name, python, seconds)]
    seen, _ = Counter(text.partition(":")[0] for text, _ in found).most_common(1)[0]
    example = next(text for text, _ in found if text.startswith(seen))
    ms = sorted(after for text, after in found if after is not None)
    waits = sum(after is None for _, after in found)
    times = f"{statistics.median(ms):.3g} | {ms[-1]:.3g}" if ms else " | "
    return f"| {title} | {example[:110]} | {len(found)} | {times} | {waits or ''} |"


def has(python, module):
    # Not in a checkout, whose shmring/ need not be compiled.
    here = Path(__file__).parent
    done = subprocess.run([python, "-c", f"import {module or 'os'}"], capture_output=True, check=False, cwd=here)
    return done.returncode == 0


def mpi_title(python):
    code = "from mpi4py import MPI; print(MPI.Get_library_version())"
    text = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout
    return next((title for title in MPI_OPTIONS if title in text[:40]), text[:20].strip())


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="PATH", help="look there, too")
    parser.add_argument("--repeats", type=int, default=10, help="of each case (default: 10)")
    parser.add_argument("--seconds", type=float, default=10, help="until a survivor counts as waiting (default: 10)")
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES, metavar="NAME")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.play:
        name, folder, rank = args.play
        play(name, int(rank), folder)
        return
    pythons = [sys.executable, *map(os.path.expanduser, args.python)]
    print("| processes and call | a survivor sees | survivors | ms, median | ms, most | still wait |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name in args.cases:
        module, _, how, _ = CASES[name]
        having = [python for python in pythons if has(python, module)]
        if not having:
            print(f"| {name} | not measured: no {module} | | | | |")
        for python in having if how == "mpiexec" else having[:1]:
            title = f"{mpi_title(python)}, Allreduce" if how == "mpiexec" else name
            print(row(name, title, python, args.repeats, args.seconds), flush=True)


if __name__ == "__main__":
    main()
