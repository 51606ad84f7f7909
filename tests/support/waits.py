"""Which ranks wait, as a rank beside them finds it: for tests in which one acts only when others wait."""

import time

from shmring.engine.account import standings
from shmring.engine.inspect import LOOK_NBYTES, look


def waiting_ranks(comm):
    """The ranks that are in a call now and wait there for another rank."""
    pages = [bytes(memoryview(segment.mapping)[:LOOK_NBYTES]) for segment in comm.engine.segments]
    return {rank for rank, one in enumerate(standings([look(page) for page in pages])) if one.awaits}


def until_waiting(comm, *ranks):
    """Return once these ranks wait, of which no other rank is to end the wait; the watchdog of the ranks bounds it."""
    while not waiting_ranks(comm).issuperset(ranks):
        time.sleep(0.001)
