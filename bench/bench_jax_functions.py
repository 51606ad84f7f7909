"""The cost of a call from a compiled function of JAX: the first in a function, and each further one.

A function with 1 and with 101 all-reduces of 4 bytes, ordered by effect and by token, on one rank: no rank waits for
another, so what is measured is the binding. Below it, the same on two ranks, with the engine's part.
`python bench/bench_jax_functions.py [ranks]` prints the table.
"""

import sys
from functools import partial
from timeit import timeit

import pytest
import sides  # noqa: F401  which finds `support`
from support.jax_ranks import run_jax
from turns import take_turns

MORE, SLICES, TIMES = 100, 30, 20


def measure(comm):
    """Microseconds by (order, number of calls): the best slice of this rank."""
    import jax
    import jax.numpy as jnp

    import shmring.jax as sj

    def function(ncalls, by_token):
        def f(x, token):
            for _ in range(ncalls):
                if by_token:
                    x, token = sj.all_reduce(x, "max", token=token)
                else:
                    x = sj.all_reduce(x, "max")
            return x, token

        return jax.jit(f)

    x, token = jnp.float32(1), sj.new_token()

    def microseconds(f):
        def call():
            jax.block_until_ready(f(x, token))

        call()
        return timeit(call, number=TIMES) / TIMES * 1e6

    keys = [(order, n) for order in ("effect", "token") for n in (1, 1 + MORE)]
    slices = {(order, n): partial(microseconds, function(n, order == "token")) for order, n in keys}
    return {key: min(us) for key, us in take_turns(slices, lambda cycle: cycle >= SLICES).items()}


def table(nranks):
    """Rows of (order, microseconds of a function with one call, of each further call); the slowest rank counts."""
    results = run_jax(nranks, measure, timeout=600)
    slowest = {key: max(result[key] for result in results) for key in results[0]}
    return [
        (order, slowest[order, 1], (slowest[order, 1 + MORE] - slowest[order, 1]) / MORE)
        for order in ("effect", "token")
    ]


@pytest.mark.jax
def test_a_call_from_a_compiled_function(benchmark):
    pytest.importorskip("jax")
    rows = benchmark.pedantic(table, args=(1,), rounds=1)
    benchmark.extra_info.update({f"further call by {order}, us": further for order, _, further in rows})
    assert [order for order, _, _ in rows] == ["effect", "token"]


if __name__ == "__main__":
    for nranks in map(int, sys.argv[1:] or (1, 2)):
        print(f"{nranks} ranks          a jit with one call    each further call")
        for order, one, further in table(nranks):
            print(f"ordered by {order:8} {one:13.1f} us {further:18.2f} us")
