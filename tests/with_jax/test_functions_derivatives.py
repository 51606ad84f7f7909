"""Derivatives of the functions: numerical ones of the whole computation of all ranks, to order 2, in both modes.

A rank's part of a call is no function that could be differentiated numerically: its result depends on the inputs of
other ranks. So the function under test takes the arrays of all ranks, equal on all of them, makes the call with this
rank's, and returns the results of all ranks. `copy_to_all` marks where the shared input becomes that of a rank, and
`all_reduce` where the results of ranks become shared again, so their derivatives are under test in each case.
"""

import pytest
from support.jax_ranks import on_jax, run_jax

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import shmring.jax as sj  # noqa: E402

# name -> (the call of a rank, the shape of its operand for p ranks)
CALLS = {
    "all_reduce": (lambda x, p: sj.copy_to_all(sj.all_reduce(x)), lambda p: (2,)),
    "all_reduce avg": (lambda x, p: sj.copy_to_all(sj.all_reduce(x, "avg")), lambda p: (2,)),
    "all_reduce max": (lambda x, p: sj.copy_to_all(sj.all_reduce(x, "max")), lambda p: (2,)),
    "all_reduce min": (lambda x, p: sj.copy_to_all(sj.all_reduce(x, "min")), lambda p: (2,)),
    "reduce": (lambda x, p: sj.reduce(x, root=p - 1), lambda p: (2,)),
    "reduce avg": (lambda x, p: sj.reduce(x, "mean"), lambda p: (2,)),
    "reduce_scatter": (lambda x, p: sj.reduce_scatter(x), lambda p: (p, 2)),
    "reduce_scatter avg": (lambda x, p: sj.reduce_scatter(x, "avg", 1, tiled=True), lambda p: (1, 2 * p)),
    "scan": (lambda x, p: sj.scan(x), lambda p: (2,)),
    "scan avg": (lambda x, p: sj.scan(x, "avg"), lambda p: (2,)),
    "exscan avg": (lambda x, p: sj.exscan(x, "avg"), lambda p: (2,)),
    "exscan": (lambda x, p: sj.exscan(x), lambda p: (2,)),
    "all_gather": (lambda x, p: sj.all_gather(x, 1), lambda p: (2,)),
    "all_gather tiled": (lambda x, p: sj.all_gather(x, tiled=True), lambda p: (1, 2)),
    "gather": (lambda x, p: sj.gather(x, p - 1), lambda p: (2,)),
    "scatter": (lambda x, p: sj.scatter(x, p - 1), lambda p: (p, 2)),
    "all_to_all": (lambda x, p: sj.all_to_all(x, 1, 0), lambda p: (2, p)),
    "broadcast": (lambda x, p: sj.broadcast(x, p - 1), lambda p: (2,)),
    "permute": (lambda x, p: sj.permute(x, [(i, i + 1) for i in range(p - 1)]), lambda p: (2,)),
    "sendrecv": (lambda x, p: sj.sendrecv(x, *ring(p)), lambda p: (2,)),
}


def ring(p):
    rank = sj.communicator().rank
    return (rank + 1) % p, (rank - 1) % p


def of_all(call, comm):
    """The function of the arrays of all ranks."""

    def f(xs):
        y = call(sj.copy_to_all(xs)[comm.rank], comm.size)
        y = jnp.sin(y) * (comm.rank + 1)
        return sj.all_reduce(jnp.zeros((comm.size, *y.shape)).at[comm.rank].set(y))

    return f


def check_numerically(comm, names):
    for name in names:
        call, shape = CALLS[name]
        xs = jax.random.normal(jax.random.PRNGKey(len(name)), (comm.size, *shape(comm.size)))
        check_grads(of_all(call, comm), (xs,), order=2, modes=("fwd", "rev"))
    return len(names)


@pytest.mark.parametrize("part", range(4))
def test_derivatives_are_the_numerical_ones(part):
    names = list(CALLS)[part::4]
    assert run_jax(3, check_numerically, names, x64=True) == [len(names)] * 3


# ---- what has none ---------------------------------------------------------------------------------------------------


def refusals(comm):
    x, token = jnp.ones(3), sj.new_token()
    refused = []
    for f in (
        lambda x: sj.all_reduce(x, "prod"),
        lambda x: sj.reduce(x, "max"),
        lambda x: sj.all_reduce(x, token=token)[0],
        lambda x: (sj.send(x, comm.rank), sj.recv(x))[1] + x,
    ):
        try:
            jax.jvp(f, (x,), (x,))
        except NotImplementedError as error:
            refused.append(str(error))
    sj.recv(x)  # the message of the last one
    with pytest.raises(ValueError, match="any source or with any tag has no transpose"):
        jax.grad(lambda x: sj.sendrecv(x, comm.rank, -1).sum())(x)
    return refused


def test_what_has_no_derivative_is_refused():
    for refused in run_jax(2, refusals):
        assert [text.split()[0] for text in refused] == [
            "shmring.jax.all_reduce",
            "shmring.jax.reduce",
            "shmring.jax.all_reduce",
            "shmring.jax.send",
        ]
        for word, text in zip(("op='prod'", "op='max'", "token", "sendrecv"), refused, strict=True):
            assert word in text


@on_jax(3)
def test_the_derivative_of_a_maximum_is_the_mean_of_those_that_have_it(comm):
    x = jnp.array([1.0, comm.rank])
    value, tangent = jax.jvp(lambda x: sj.all_reduce(x, "max"), (x,), (jnp.array([comm.rank, comm.rank + 1.0]),))
    assert (value.tolist(), tangent.tolist()) == ([1.0, 2.0], [1.0, 3.0])


# ---- one model on several ranks --------------------------------------------------------------------------------------


@on_jax(2, x64=True)
def test_tensor_parallel_layers_have_the_gradients_of_one_process(comm):
    """A layer with its columns and the next with its rows on the ranks: gradients are those of one process."""
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    w1, w2 = jax.random.normal(keys[0], (4, 6)), jax.random.normal(keys[1], (6, 4))
    x = jax.random.normal(keys[2], (3, 4))
    mine = slice(6 // comm.size * comm.rank, 6 // comm.size * (comm.rank + 1))

    def loss(x, w1, w2):
        return jnp.sum(jnp.tanh(x @ w1) @ w2) ** 2

    def loss_of_ranks(x, w1, w2):
        return jnp.sum(sj.all_reduce(jnp.tanh(sj.copy_to_all(x) @ w1) @ w2)) ** 2

    got = jax.jit(jax.grad(loss_of_ranks, (0, 1, 2)))(x, w1[:, mine], w2[mine])
    wanted = jax.grad(loss, (0, 1, 2))(x, w1, w2)
    for a, b in zip(got, (wanted[0], wanted[1][:, mine], wanted[2][mine]), strict=True):
        assert jnp.allclose(a, b)
