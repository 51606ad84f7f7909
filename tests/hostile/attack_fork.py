"""Objects that a forked child has inherited, while its parent goes on with them."""

import os
import random
import sys

ENDS = ("falls off the end", "os._exit", "sys.exit", "an exception", "deletes all", "closes all")
AT_ONCE = ("os._exit", "an exception")  # without what the interpreter does at its end
LEAVES_NAMES = "# ends at once: a channel that it has opened by name keeps the name"
FINE = 7  # the status of a child without defects


class ChildError(Exception):
    """Ends a child."""


def attack(script, case):
    """A random program; in the middle of it children that make steps, and end in one of the ways a child can."""
    rng = script.rng
    script.arguments.hostility = 0.2
    script.open()
    for _ in range(rng.choice((0, 5, 30))):
        script.random_step()
    for number in range(rng.choice((1, 1, 2))):
        end, dice = rng.choice(ENDS), random.Random(rng.random())
        script.write(f"# child {number} is forked; its end: {end}")
        pid = os.fork()
        if pid == 0:
            script.label, script.is_child = f"[child {number}] ", True
            script.rng = script.arguments.rng = dice
            return inherit(script, end)
        for _ in range(rng.choice((0, 10))):
            script.random_step()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        script.leaves_names |= end in AT_ONCE
        if status != FINE and not (status == 0 and end == "falls off the end"):
            script.defect(f"child {number} ended with status {status}")
    for _ in range(10):
        script.random_step()


def inherit(script, end):
    """What a child does with the objects of its parent."""
    for _ in range(script.rng.choice((0, 3, 30))):
        script.random_step()
    for name in list(script.own) if end in ("deletes all", "closes all") else []:
        if end == "closes all" and hasattr(script.names[name], "close"):
            script.step(f"{name}.close()")
        script.forget(name)
    status = 3 if script.defects else FINE
    if end in AT_ONCE:
        script.write(LEAVES_NAMES)
    if end == "os._exit":
        os._exit(status)
    if end == "an exception":
        sys.excepthook = lambda *_: os._exit(status)
        raise ChildError
    if end != "falls off the end":
        sys.exit(status)
