"""``shmring demo``: local processes train a small neural network together, and check the result."""

from __future__ import annotations

import argparse
import functools
import hashlib
import random
import statistics
import sys
import tempfile
import timeit
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from time import perf_counter_ns
from typing import Any

import numpy as np

import shmring
from shmring.core.placement.cpus import usable_processors
from shmring.launch.numerical_threads import ONE_THREAD

from . import _training
from .arguments import count, ranks, whole_number
from .bench import seconds_of

ENOUGH = 0.95
MOST_BY_DEFAULT = 8  # a batch has 64 images, few for each of more ranks
NSHOWN = 6  # digits
BAR = 28  # characters
NTURNS, NCALLS = 25, 10  # of the exchange alone: turns of each way, and the calls in one
_SHADES = " .:-=+*#%@"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the demo to ``parser``."""
    processes = f"processes that train together (default: one for each usable processor, 2 to {MOST_BY_DEFAULT})"
    parser.add_argument("-n", "--ranks", type=ranks, metavar="N", help=processes)
    parser.add_argument("--epochs", type=count, default=20, metavar="N", help="passes over the data (default: 20)")
    parser.add_argument("--seed", type=whole_number, default=0, metavar="N", help="of weights and batches (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="print only failures")


def main(args: argparse.Namespace) -> int:
    """Run the demo; 0 if every check passed, 1 if one failed, 2 if the arguments are invalid."""
    nranks = args.ranks or min(MOST_BY_DEFAULT, max(2, int(usable_processors())))
    if not args.quiet:
        _print_opening(nranks)
    failed = shmring.spawn(run_rank, nranks, args=(args.epochs, args.seed, args.quiet), env=ONE_THREAD)[0]
    for text in failed:
        print(f"shmring demo: failed: {text}", file=sys.stderr)
    return 1 if failed else 0


# ---- A rank ----


def run_rank(comm: shmring.Communicator, nepochs: int, seed: int, is_quiet: bool) -> list[str]:
    """The work of one rank; rank 0 prints, and returns the checks that failed."""
    all_reduce_ns: list[int] = []  # in the training itself, waiting for slower ranks included

    def combine(messages: np.ndarray) -> None:
        start = perf_counter_ns()
        comm.all_reduce(messages[0])
        all_reduce_ns.append(perf_counter_ns() - start)

    is_shown = comm.rank == 0 and not is_quiet
    on_epoch = functools.partial(_show_epoch, nepochs) if is_shown else None
    comm.barrier()
    start = perf_counter_ns()
    parameters = _training.train(nepochs, seed, comm.size, range(comm.rank, comm.rank + 1), combine, on_epoch)
    training_ns = perf_counter_ns() - start
    digests = comm.all_gather_object(hashlib.sha256(parameters.data).hexdigest())
    sizes = (8, 4 * _training.NPARAMETERS + 4) if comm.size > 1 else ()
    exchanges = {nbytes: time_exchange(comm, nbytes) for nbytes in sizes}
    if comm.rank != 0:
        return []
    by_shares = _training.train(nepochs, seed, comm.size, range(comm.size), _training.add_in_order)
    whole = _training.train(nepochs, seed, 1, range(1), _training.add_in_order)
    checks = _checks(parameters, digests, by_shares, whole, _training.tolerance(whole, len(all_reduce_ns)))
    if is_shown:
        _print_digits(parameters)
        print("\nChecked:\n")
        for held, text in checks:
            print(f"  {'yes' if held else 'NO ':<4}  {text}")
        _print_times(training_ns, all_reduce_ns)
        _print_exchanges(exchanges, comm.size)
    return [text for held, text in checks if not held]


def time_exchange(comm: shmring.Communicator, nbytes: int) -> dict[str, list[float]]:
    """Microseconds of a sum of ``nbytes`` through shmring and through pipes, in each of their turns."""
    with tempfile.TemporaryDirectory(prefix="shmring-demo-") as folder:
        pipes = _Pipes(comm, comm.broadcast_object(folder))
        comm.barrier()  # all are connected before the folder goes
    ways: dict[str, Callable[..., object]] = {"shmring": comm.all_reduce, "pipes": pipes.all_reduce}
    arrays = {way: np.full(nbytes // 4, comm.rank + 1, np.float32) for way in ways}
    calls = {way: functools.partial(ways[way], arrays[way]) for way in ways}
    for call in calls.values():
        call()
    if not np.array_equal(arrays["shmring"], arrays["pipes"]):
        raise AssertionError("the sums of shmring and of pipes differ")
    for array in arrays.values():
        array.fill(0)  # sums of sums would overflow
    found: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for _ in range(NTURNS):
        for way in order.sample(list(ways), len(ways)):
            found[way].append(1e6 * seconds_of(comm, timeit.Timer(calls[way]), NCALLS, 1))
    return found


class _Pipes:
    """Pipes of multiprocessing between rank 0 and each other rank, which all call; they meet in a folder."""

    def __init__(self, comm: shmring.Communicator, folder: str) -> None:
        self.ends: dict[int, Any] = {}
        if comm.rank == 0:
            with Listener(f"{folder}/0", "AF_UNIX", backlog=comm.size) as listener:
                comm.barrier()
                while len(self.ends) < comm.size - 1:
                    end = listener.accept()
                    self.ends[end.recv()] = end
        else:
            comm.barrier()
            self.ends[0] = Client(f"{folder}/0", "AF_UNIX")
            self.ends[0].send(comm.rank)

    def all_reduce(self, x: np.ndarray) -> None:
        """As programs write it by hand: rank 0 receives from all others, adds in rank order, and sends."""
        if 0 in self.ends:
            self.ends[0].send_bytes(x)
            self.ends[0].recv_bytes_into(x)
            return
        part = np.empty_like(x)
        for _, end in sorted(self.ends.items()):
            end.recv_bytes_into(part)
            x += part
        for end in self.ends.values():
            end.send_bytes(x)


def _checks(
    parameters: np.ndarray, digests: list[str], by_shares: np.ndarray, whole: np.ndarray, allowed: float
) -> list[tuple[bool, str]]:
    """The claims of the demo, each with whether it holds."""
    nranks, found = len(digests), _training.accuracy(parameters, _training.load_digits())
    difference = float(np.abs(parameters - whole).max())
    hold = _plural(nranks, "rank holds", "ranks hold")
    return [
        (found >= ENOUGH, f"test accuracy {found:.1%}; at least {ENOUGH:.0%} is expected"),
        (len(set(digests)) == 1, f"{hold} the same bits (sha256 {digests[0][:12]}...)"),
        (
            parameters.tobytes() == by_shares.tobytes(),
            f"one process that computes the {nranks} shares itself and sums them in rank order gets the same bits",
        ),
        (
            difference <= allowed,
            f"one process that takes each batch whole ends within {difference:.1e} of it "
            f"({allowed:.1e} allowed:\n        float32 sums in another order round differently)",
        ),
    ]


# ---- What is printed ----


def _print_opening(nranks: int) -> None:
    digits, network = _training.load_digits(), f"{_training.NINPUTS}-{_training.NHIDDEN}-{_training.NCLASSES}"
    print(f"shmring demo: {_plural(nranks, 'process', 'processes')} learn to read handwritten digits together\n")
    print(f"  data       {len(digits.train_images)} images to learn from, {len(digits.test_images)} to be tested on")
    print(f"  network    {network}, {_training.NPARAMETERS} parameters, all on every rank")
    images = f"a batch of {_training.NBATCH} images"
    print(f"  each step  {images} is divided among the ranks, and their gradients are all-reduced")
    processors = int(max(1, usable_processors()))
    if nranks > processors:
        print(f"  note       {nranks} ranks take turns on {_plural(processors, 'processor', 'processors')}")
    print(flush=True)


def _show_epoch(nepochs: int, epoch: int, loss: float, found: float) -> None:
    """A bar on a terminal, a line now and then elsewhere."""
    text = f"  epoch {epoch:>{len(str(nepochs))}}/{nepochs} "
    results = f" loss {loss:.4f}   test accuracy {found:6.1%}"
    is_last = epoch == nepochs
    if sys.stdout.isatty():
        filled = BAR * epoch // nepochs
        print(f"\r\x1b[K{text}[{'#' * filled}{'.' * (BAR - filled)}]{results}", end="")
        print(end="\n" if is_last else "", flush=True)
    elif epoch % max(1, nepochs // 5) == 0 or epoch == 1 or is_last:
        print(f"{text} {results}", flush=True)


def _print_digits(parameters: np.ndarray) -> None:
    """Show the first test images and the predictions of the network."""
    digits = _training.load_digits()
    chosen = np.unique(digits.test_labels, return_index=True)[1][:NSHOWN]  # the first 0, the first 1, ...
    images, labels = digits.test_images[chosen], digits.test_labels[chosen]
    print("\nSome test digits, and the predictions of the network:\n")
    for row in range(8):
        shades = (images.reshape(NSHOWN, 8, 8)[:, row] * (len(_SHADES) - 1)).astype(int)
        print("   " + "  ".join("".join(_SHADES[shade] * 2 for shade in line) for line in shades).rstrip())
    pairs = zip(_training.recognise(parameters, images), labels, strict=True)
    predictions = (f"{guess}" if guess == label else f"{guess} (is {label})" for guess, label in pairs)
    print("   " + "  ".join(f"{text:^16}" for text in predictions).rstrip())


def _print_times(total_ns: int, all_reduce_ns: list[int]) -> None:
    exchanged = sum(all_reduce_ns)
    print(
        f"\nTraining took {total_ns / 1e9:.2f} s, of it {exchanged / 1e9:.3f} s ({exchanged / total_ns:.0%}) in "
        f"{len(all_reduce_ns)} all-reduces, median {statistics.median(all_reduce_ns) / 1e3:.1f} us"
        "\n(including waits for slower ranks)."
    )


def _print_exchanges(exchanges: dict[int, dict[str, list[float]]], nranks: int) -> None:
    if not exchanges:
        return
    print(f"\nThe exchange alone, {nranks} ranks, median of {NTURNS} turns of {NCALLS} calls:\n")
    print(f"  {'size':>10}  {'shmring':>10}  {'multiprocessing pipes':>22}")
    for nbytes, found in exchanges.items():
        ours, theirs = (statistics.median(found[way]) for way in ("shmring", "pipes"))
        size = f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.1f} KiB"
        print(f"  {size:>10}  {ours:>7.1f} us  {theirs:>19.1f} us   {theirs / ours:.1f} times as long")
    print("\n(The 8-byte row is mostly the latency between processors; it depends on their placement.)")


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
