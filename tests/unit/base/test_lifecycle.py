"""The registry of what forks and exits do: everything is disowned in a child, and leaves at exit in a fixed order."""

import os

from shmring.core.base import lifecycle
from shmring.core.base.lifecycle import Stage


class Thing:
    def __init__(self, name, log, error=None):
        self.name, self.log, self.error = name, log, error

    def disown(self):
        self.log.append(("disown", self.name))

    def leave_at_exit(self):
        self.log.append(("leave", self.name))
        if self.error is not None:
            raise self.error


def test_objects_leave_by_stage_and_not_by_the_order_of_their_creation():
    log = []
    things = [Thing(stage.name, log) for stage in reversed(Stage)]
    for thing, stage in zip(things, reversed(Stage), strict=True):
        lifecycle.track(thing, stage)
    lifecycle.leave(Stage.PROGRESS)
    assert [name for _, name in log] == ["MULTINODE", "PROGRESS"]
    lifecycle.leave(Stage.ENGINE)
    assert [name for _, name in log[2:]] == ["MULTINODE", "PROGRESS", "ENGINE"]


def test_an_object_that_raises_does_not_keep_the_others_from_leaving(monkeypatch):
    log, reported = [], []
    monkeypatch.setattr("sys.unraisablehook", lambda args: reported.append(args.exc_value))
    error = RuntimeError("cannot leave")
    first, second = Thing("first", log, error), Thing("second", log)
    lifecycle.track(first, Stage.MULTINODE)
    lifecycle.track(second, Stage.ENGINE)
    lifecycle.leave(Stage.ENGINE)
    assert ("leave", "second") in log
    assert reported == [error]
    first.error = None  # the traceback keeps it alive, and it leaves again


def test_dropped_objects_are_forgotten():
    log = []
    thing = Thing("dropped", log)
    lifecycle.track(thing, Stage.ENGINE)
    del thing
    lifecycle.leave(Stage.ENGINE)
    assert log == []


def test_in_a_forked_child_everything_is_disowned_and_locks_are_renewed():
    log = []
    thing = Thing("engine", log)
    lifecycle.track(thing, Stage.ENGINE)

    @lifecycle.in_child
    def renew():
        log.append(("renew", "lock"))

    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if sorted(log) == [("disown", "engine"), ("renew", "lock")] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert log == []
    finally:
        lifecycle._in_child.remove(renew)
