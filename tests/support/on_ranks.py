"""Tests that ranks run: ``@on_ranks(2)`` makes a function of a communicator a test with two real processes."""

from __future__ import annotations

import functools
import importlib
import inspect
from dataclasses import dataclass

import pytest

from support.harness import run_processes, run_ranks


def on_ranks(*sizes, run=run_ranks, **options):
    """Have ranks run the function: in groups of each of these sizes, by ``run(n, function, ..., **options)``.

    Its first argument is what ``run`` gives a rank, the communicator; the others are fixtures and parameters of the
    test, which must pickle. With more sizes than one, the test has the parameter ``n``. An option that is a function
    is called with the fixtures and parameters that it names, which the test then has as well.
    """
    called = {name: _names(option) for name, option in options.items() if callable(option)}

    def make(function):
        taken = _names(function)[1:]
        in_ranks = _InRanks(function.__module__, function.__name__)

        @functools.wraps(function)
        def test(n=sizes[0], **given):
            made = {name: options[name](*[given[each] for each in names]) for name, names in called.items()}
            run(n, in_ranks, *[given[name] for name in taken], **(options | made))

        test.of_a_rank = function
        names = dict.fromkeys([*taken, *(each for names in called.values() for each in names)])
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        if len(sizes) == 1:
            test.__signature__ = inspect.Signature(parameters)
            return test
        n = inspect.Parameter("n", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([*parameters, n])
        return pytest.mark.parametrize("n", sizes)(test)

    return make


def _names(function):
    """The positional parameters of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


on_processes = functools.partial(on_ranks, run=run_processes)  # of a rank's number, without a communicator


@dataclass(frozen=True)
class _InRanks:
    """The function of a test by its name, as ranks find it: the test itself has the name in its module."""

    module: str
    name: str

    def __call__(self, *args):
        return getattr(importlib.import_module(self.module), self.name).of_a_rank(*args)
