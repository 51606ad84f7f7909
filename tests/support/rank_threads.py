"""Ranks that are threads of a process of its own, since what they must not do is access memory that was freed."""

from __future__ import annotations

import secrets
import threading

import shmring
from shmring.errors import BrokenError, RendezvousError
from support.harness import run_processes


def threads_as_ranks(size, fn, *args, init=None):
    """``fn(comm, *args)`` in so many threads; what each returned, or raised."""
    session, results = f"threads{secrets.token_hex(8)}", [None] * size

    def be_rank(rank):
        try:
            with shmring.init(rank=rank, size=size, session=session, **(init or {})) as comm:
                results[rank] = fn(comm, *args)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=be_rank, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def run_rank_threads(size, fn, *args, init=None, env=None):
    """`run_ranks` with threads as ranks: raises what a rank raised that failed by itself."""
    return run_processes(1, _without_errors, size, fn, args, init, env=env)[0]


def _without_errors(_, size, fn, args, init):
    results = threads_as_ranks(size, fn, *args, init=init)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, (BrokenError, RendezvousError)))
    return results
