"""``shmring demo``: local processes train a small neural network together, and check the result."""

from __future__ import annotations

import argparse
import functools
import statistics
import sys

import numpy as np

import shmring
from shmring.launch.numerical_threads import ONE_THREAD
from shmring.placement.cpus import usable_processors

from . import _training
from ._training import Report, Settings, run_rank
from .arguments import count, ranks, whole_number
from .progress import show

ENOUGH = 0.95
MOST_BY_DEFAULT = 8  # a batch has 64 images, few for each of more ranks
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
    settings = Settings(args.epochs, args.seed)

    if not args.quiet:
        _print_opening(nranks)
    on_epoch = None if args.quiet else functools.partial(_show_epoch, args.epochs)
    report = shmring.spawn(run_rank, nranks, args=(settings, on_epoch), env=ONE_THREAD)[0]

    checks = _checks(report, nranks)
    if not args.quiet:
        _print_digits(report)
        _print_checks(checks)
        _print_times(report, nranks)
    failed = [text for held, text in checks if not held]
    for text in failed:
        print(f"shmring demo: failed: {text}", file=sys.stderr)
    return 1 if failed else 0


def _checks(report: Report, nranks: int) -> list[tuple[bool, str]]:
    """The claims of the demo, each with whether it holds."""
    accuracy, digests = report.trained.accuracies[-1], report.digests
    hold = _plural(nranks, "rank holds", "ranks hold")
    return [
        (accuracy >= ENOUGH, f"test accuracy {accuracy:.1%}; at least {ENOUGH:.0%} is expected"),
        (len(set(digests)) == 1, f"{hold} the same bits (sha256 {digests[0][:12]}...)"),
        (
            report.same_as_shares,
            f"one process that computes the {nranks} shares itself and sums them in rank order gets the same bits",
        ),
        (
            report.difference <= report.tolerance,
            f"one process that takes each batch whole ends within {report.difference:.1e} of it "
            f"({report.tolerance:.1e} allowed:\n        float32 sums in another order round differently)",
        ),
    ]


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


def _show_epoch(nepochs: int, epoch: int, loss: float, accuracy: float) -> None:
    """A bar on a terminal, a line now and then elsewhere; called in rank 0."""
    text = f"  epoch {epoch:>{len(str(nepochs))}}/{nepochs} "
    results = f" loss {loss:.4f}   test accuracy {accuracy:6.1%}"
    is_last = epoch == nepochs
    if show(sys.stdout, epoch / nepochs, text, results):
        print(end="\n" if is_last else "", flush=True)
    elif epoch % max(1, nepochs // 5) == 0 or epoch == 1 or is_last:
        print(f"{text} {results}", flush=True)


def _print_digits(report: Report, count: int = 6) -> None:
    """Show the first test images and the predictions of the network."""
    digits = _training.load_digits()
    chosen = np.unique(digits.test_labels, return_index=True)[1][:count]  # the first 0, the first 1, ...
    images, labels = digits.test_images[chosen], digits.test_labels[chosen]
    guesses = _training.recognise(report.trained.parameters, images)
    print("\nSome test digits, and the predictions of the network:\n")
    for row in range(8):
        shades = (images.reshape(count, 8, 8)[:, row] * (len(_SHADES) - 1)).astype(int)
        print("   " + "  ".join("".join(_SHADES[shade] * 2 for shade in line) for line in shades).rstrip())
    pairs = zip(guesses, labels, strict=True)
    predictions = (f"{guess}" if guess == label else f"{guess} (is {label})" for guess, label in pairs)
    print("   " + "  ".join(f"{text:^16}" for text in predictions).rstrip())


def _print_checks(checks: list[tuple[bool, str]]) -> None:
    print("\nChecked:\n")
    for held, text in checks:
        print(f"  {'yes' if held else 'NO ':<4}  {text}")


def _print_times(report: Report, nranks: int) -> None:
    total, exchanged = report.training_ns, sum(report.all_reduce_ns)
    print(
        f"\nTraining took {total / 1e9:.2f} s, of it {exchanged / 1e9:.3f} s ({exchanged / total:.0%}) in "
        f"{len(report.all_reduce_ns)} all-reduces, median {_us(statistics.median(report.all_reduce_ns))}"
        "\n(including waits for slower ranks)."
    )
    if not report.exchanges:
        return
    print(f"\nThe exchange alone, {nranks} ranks, median of {_training.NROUNDS * _training.NCALLS} calls:\n")
    print(f"  {'size':>10}  {'shmring':>10}  {'multiprocessing pipes':>22}")
    for nbytes, found in report.exchanges.items():
        ours, theirs = (statistics.median(found[way]) for way in ("shmring", "pipes"))
        size = f"{nbytes} B" if nbytes < 1024 else f"{nbytes / 1024:.1f} KiB"
        print(f"  {size:>10}  {_us(ours):>10}  {_us(theirs):>22}   {theirs / ours:.1f} times as long")
    print("\n(The 8-byte row is mostly the latency between processors; it depends on their placement.)")


def _us(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:.1f} us"


def _plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
