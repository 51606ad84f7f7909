"""Ends that only reference cycles hold as the interpreter ends: no close() is needed, and no error is printed."""

import os
import secrets
import sys

import pytest
from support.programs import run_program

PROGRAM = """
import sys
import numpy as np
import shmring

class Node:
    def __init__(self, *held):
        self.held, self.me = held, self

kept = Node({make})
sys.kept_as_well = Node(kept)
if {collects}:
    del kept, sys.kept_as_well  # the interpreter's last collection finds them
"""
MAKERS = {
    "channel": "shmring.channel()",
    "channel of records": "shmring.channel(dtype='f8')",
    "fan-in": "shmring.fan_in(2)",
    "broadcast": "shmring.broadcast_channel(2)",
    "queue": "shmring.Queue()",
    "joinable queue": "shmring.JoinableQueue()",
    "sender by name": "shmring.open_channel({name!r}, 'sender')",
    "receiver by name": "shmring.open_channel({name!r}, 'receiver')",
    "both by name": "shmring.open_channel({name!r}, 'sender'), shmring.open_channel({name!r}, 'receiver')",
    "ring": "shmring.channel()[0].reserve(100)",
    "lease of records": "shmring.channel(dtype='f8')[0].reserve(3)",
    "queue with items": "(lambda q: (q, q.put(np.ones(9)), q.put('x')))(shmring.Queue())",
    "communicator": "shmring.init(rank=0, size=1, session={name!r})",
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("what", MAKERS)
def test_what_a_cycle_holds_ends_with_the_interpreter(what, collects):
    name = f"cycle{secrets.token_hex(4)}"
    program = PROGRAM.format(make=MAKERS[what].format(name=name), collects=collects)
    ran = run_program(sys.executable, "-c", program)
    assert (ran.stdout, ran.stderr) == ("", "")
    assert not [left for left in os.listdir("/dev/shm") if name in left]
