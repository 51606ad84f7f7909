"""The set that does not keep its objects alive: loops while it changes, and objects that die."""

import gc

from support.interrupts import lines_executed

from shmring.core.base.weak_set import WeakSet


class Thing:
    pass


def test_a_loop_goes_over_the_objects_that_were_in_the_set_when_it_began():
    things, weak = [Thing() for _ in range(3)], WeakSet()
    for thing in (*things, things[0]):
        weak.add(thing)
    seen = []
    for thing in weak:  # as another thread, a signal handler or a finalizer might
        seen.append(thing)
        things.append(Thing())
        weak.add(things[-1])
        weak.discard(things[0])
    assert len(seen) == 3
    assert set(seen) == set(things[:3])
    assert set(weak) == set(things[1:])


def test_an_object_that_dies_leaves_without_a_line_of_python():
    things, weak, kept = [Thing()], WeakSet(), Thing()
    weak.add(kept)
    weak.add(things[0])
    assert lines_executed(things.clear) == 0
    assert list(weak) == [kept]


def test_an_object_in_a_cycle_leaves_when_it_is_collected():
    thing, weak = Thing(), WeakSet()
    thing.itself = thing
    weak.add(thing)
    assert list(weak) == [thing]
    del thing
    gc.collect()
    assert list(weak) == []
