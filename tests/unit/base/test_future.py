"""What requests and asynchronous work share."""

import asyncio
import copy
import pickle
import traceback

import pytest

import shmring
from shmring.core.base.future import Future
from shmring.errors import MessageTooLongError


class Ended(Future):
    """Over after so many looks."""

    def __init__(self, error=None, looks=0):
        self.error, self.looks = error, looks

    def _settle(self, timeout):
        if self.looks:
            raise TimeoutError
        return self.error

    def _value(self):
        return 5

    def done(self):
        self.looks = max(0, self.looks - 1)
        return not self.looks


def test_requests_and_work_are_futures():
    assert issubclass(shmring.Request, Future)
    assert issubclass(shmring.Work, Future)


def test_a_result_is_waited_for_and_awaited():
    assert Ended().wait() == Ended().result(0) == 5
    assert Ended().exception() is None

    async def both():
        return await asyncio.gather(Ended(looks=3), Ended(looks=5))

    assert asyncio.run(both()) == [5, 5]
    with pytest.raises(TimeoutError):
        Ended(looks=1).wait(0)


def failed(error, cause=None):
    try:
        raise error from cause
    except Exception as raised:
        return raised


def test_each_wait_raises_a_copy_of_the_error_with_where_it_was_raised_and_why():
    cause = KeyError("why")
    error = failed(MessageTooLongError("long", 1, 2, 3), cause)
    depth = len(traceback.extract_tb(error.__traceback__))
    future = Ended(error)
    for _ in range(3):
        with pytest.raises(MessageTooLongError, match="long") as caught:
            future.wait()
        assert caught.value is not error
        assert vars(caught.value) == vars(error)
        assert caught.value.__cause__ is cause
        assert caught.traceback[-1].name == "failed"
        assert len(traceback.extract_tb(error.__traceback__)) == depth
    assert future.exception() is error

    async def wait():
        await future

    with pytest.raises(MessageTooLongError):
        asyncio.run(wait())


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_an_error_that_cannot_be_copied_is_raised_itself():
    error = TwoArguments(1, 2)
    with pytest.raises(TwoArguments, match="1 and 2") as caught:
        Ended(error).wait()
    assert caught.value is error


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_future_can_be_neither_copied_nor_pickled(duplicate):
    with pytest.raises(TypeError, match="Ended: belongs to its process"):
        duplicate(Ended())


def test_a_future_that_was_not_made_by_a_call_raises():
    with pytest.raises(TypeError, match="cannot be made by its constructor"):
        Future().wait()
