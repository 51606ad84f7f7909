"""Every extension type: half-made objects survive all their methods, and nothing is copied by accident."""

import contextlib
import copy
import inspect
import pickle

import pytest
from support.children import in_child, status_of
from support.extension_types import attempt, extension_types, use_everything

TYPES = extension_types()
OF_COMMUNICATORS = (
    "shmring.communicator",
    "shmring.collectives.calls.",
    "shmring.collectives.shared.",
    "shmring.collectives.p2p.",
)
# None of which makes an object of these rooms that works.
BAD_ARGUMENTS = [(), (None,), (None, None), (None, 1, [], 1, 1), (None, 1, None, 1, 1), (-1,), (1 << 30,)]


def half_made(kind):
    """An object without __init__; None if it cannot be made without arguments."""
    try:
        return kind.__new__(kind)
    except TypeError:
        return None


def use_all_that_can_be_made(kind):
    if half_made(kind) is not None:
        use_everything(lambda: half_made(kind))
    for arguments in BAD_ARGUMENTS if kind.__module__.startswith(OF_COMMUNICATORS) else ():
        for make in (kind, lambda *values: kind.__new__(kind, *values)):
            with contextlib.suppress(MemoryError):  # for so many ranks
                if attempt(make, *arguments) is not None:
                    use_everything(lambda make=make, arguments=arguments: attempt(make, *arguments))


def test_there_are_extension_types():
    some = {"shmring.core.arrays.lease.Lease", "shmring.core.ring.end.Producer", "shmring.channels.sender.Sender"}
    assert some <= set(TYPES)


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_an_object_without_init_or_of_bad_arguments_survives_every_call(kind):
    assert status_of(in_child(use_all_that_can_be_made, kind)) == 0


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
def test_an_object_is_copied_only_where_its_class_defines_how(kind):
    made = half_made(kind)
    if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
        return
    assert not hasattr(kind, "__setstate__")
    assert inspect.ismethoddescriptor(kind.__reduce__)
    if made is None:
        assert kind.__basicsize__ > object.__basicsize__  # of such objects Python copies none by itself
        return
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(made)
