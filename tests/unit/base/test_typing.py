"""`shmring.typing` names what the code accepts, and the generic classes can be subscribed."""

import subprocess
import sys
from typing import get_args

import pytest

import shmring
import shmring.typing
from shmring import dtypes
from shmring.channels.memory import POLICIES
from shmring.config import SETTINGS


def test_the_names_of_operations_are_those_of_the_table_and_their_aliases_also_in_capitals():
    names = {*dtypes.OPS, *dtypes.OP_ALIASES}
    assert set(get_args(shmring.typing.OpName)) == names | {name.upper() for name in names}


def test_the_keywords_for_settings_are_all_settings():
    assert set(shmring.typing.Settings.__annotations__) == set(SETTINGS)


def test_the_policies_are_those_of_channels():
    assert get_args(shmring.typing.WhenFull) == tuple(POLICIES)


@pytest.mark.parametrize("name", ["Queue", "JoinableQueue", "Receiver", "Latest", "Work", "Plan"])
def test_a_generic_class_takes_its_parameter_at_run_time(name):
    kind = getattr(shmring, name)
    assert kind[int].__origin__ is kind
    assert kind[int].__args__ == (int,)


def test_a_queue_is_made_of_its_class_with_a_parameter():
    queue = shmring.Queue[int](3)
    queue.put(1)
    assert type(queue) is shmring.Queue
    assert queue.get(timeout=60) == 1


def test_the_package_does_not_load_it():
    everything = "import sys, shmring; [getattr(shmring, name) for name in shmring.__all__]"
    subprocess.run([sys.executable, "-c", f"{everything}; assert 'shmring.typing' not in sys.modules"], check=True)
