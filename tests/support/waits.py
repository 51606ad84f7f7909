"""Which ranks wait, sleep or have ended, as a rank beside them finds it: for tests in which one acts only then."""

import os
import time

from shmring.collectives.observe.account import standings
from shmring.collectives.observe.look import LOOK_NBYTES, look
from support.harness import fields_of


def waiting_ranks(comm):
    """The ranks that are in a call now and wait there for another rank."""
    pages = [bytes(memoryview(segment.mapping)[:LOOK_NBYTES]) for segment in comm._engine.segments]
    return {rank for rank, one in enumerate(standings([look(page) for page in pages])) if one.awaits}


def until_waiting(comm, *ranks):
    """Return once these ranks wait. No other rank may end their waits meanwhile; the watchdog bounds this wait."""
    while not waiting_ranks(comm).issuperset(ranks):
        time.sleep(0.001)


def until_idle(*pids):
    """Return once the threads of each process together take at most a fifth of a processor, for a second.

    A process that does not sleep takes more in every second. One that sleeps takes far less, but for a second in which
    the machine stood still and the kernel charged it for that.
    """
    while True:
        before = [processor_ticks(pid) for pid in pids]
        time.sleep(1)
        taken = [processor_ticks(pid) - ticks for pid, ticks in zip(pids, before, strict=True)]
        if max(taken) <= os.sysconf("SC_CLK_TCK") / 5:
            return


def processor_ticks(pid):
    """The processor time that a process has taken."""
    fields = fields_of(pid)
    return int(fields[11]) + int(fields[12])


def until_ended(pid):
    """Return once all threads of a killed process have ended, and so its locks; the nursery has not reaped it yet."""
    while True:
        fields = fields_of(pid)
        if fields[0] == "Z" and int(fields[17]) <= 1:
            return
        time.sleep(0.001)
