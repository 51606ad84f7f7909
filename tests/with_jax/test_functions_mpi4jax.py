"""What mpi4jax's tests check, by their names: each function here checks what theirs of that name checks.

Differences: results of a root's collectives have one shape on all ranks, so the others get zeros; `recv` and `sendrecv`
return the status, since a function under jit cannot write into an object; and forward derivatives of `sendrecv` work.
"""

import sys
from functools import partial

import pytest
from support.jax_ranks import run_jax

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax.scipy.sparse.linalg import cg  # noqa: E402

import shmring.jax as sj  # noqa: E402

ONES = (3, 2)


def equal(a, b):
    assert jnp.array_equal(a, b), f"{a} is not {b}"


def near(a, b):
    assert jnp.allclose(a, b), f"{a} is not {b}"


def transposed(f, x):
    return lambda y: jax.linear_transpose(f, x)(y)[0]


def plain_and_jit(f):
    return f, jax.jit(f)


# ---- allreduce -------------------------------------------------------------------------------------------------------


def check_allreduce(comm):
    for f in plain_and_jit(sj.all_reduce):
        arr = jnp.ones(ONES)
        equal(f(arr), arr * comm.size)
        equal(arr, jnp.ones(ONES))


def check_allreduce_scalar(comm):
    for f in plain_and_jit(sj.all_reduce):
        equal(f(1), comm.size)


def check_allreduce_vmap(comm):
    for f in plain_and_jit(jax.vmap(sj.all_reduce)):
        equal(f(jnp.ones(ONES)), jnp.ones(ONES) * comm.size)


def check_allreduce_transpose(comm):
    arr = jnp.ones(ONES)
    for f in plain_and_jit(transposed(sj.all_reduce, arr)):
        equal(f(arr), arr)


def check_allreduce_transpose2(comm):
    arr = jnp.ones(ONES)
    for f in plain_and_jit(transposed(transposed(sj.all_reduce, arr), arr)):
        equal(f(arr), sj.all_reduce(arr))


def check_allreduce_grad(comm):
    def used_twice(x):
        y = sj.all_reduce(x)
        x + 2 * y
        return sj.all_reduce(x).sum()

    arr = jnp.ones(ONES)
    for f in (lambda x: sj.all_reduce(x).sum(), used_twice):
        for g in plain_and_jit(jax.value_and_grad(f)):
            value, gradient = g(arr)
            equal(value, arr.sum() * comm.size)
            equal(gradient, arr)


def check_allreduce_jvp(comm):
    arr = jnp.ones(ONES)
    value, tangent = jax.jvp(sj.all_reduce, (arr,), (arr * 3,))
    equal(value, arr * comm.size)
    equal(tangent, arr * 3 * comm.size)


def check_allreduce_vjp(comm):
    arr = jnp.ones(ONES)
    value, back = jax.vjp(sj.all_reduce, arr)
    equal(value, arr * comm.size)
    equal(back(arr * 3)[0], arr * 3)


def check_allreduce_chained(comm):
    for f in plain_and_jit(jax.grad(lambda x: sj.all_reduce(x) + sj.all_reduce(x))):
        equal(f(0.0), 2.0)


def check_custom_vjp(comm):
    @jax.custom_vjp
    def f(x, y):
        return sj.all_reduce((jnp.sin(x) * y).sum())

    def forth(x, y):
        return f(x, y), (jnp.cos(x), jnp.sin(x), y)

    def back(res, g):
        g = sj.all_reduce(g)
        cos_x, sin_x, y = res
        return cos_x * g * y, sin_x * g

    f.defvjp(forth, back)
    near(jax.jit(f)(jnp.ones(3), jnp.ones(3) * 2), comm.size * 6 * jnp.sin(1))
    near(jax.jit(jax.grad(f))(jnp.ones(3), jnp.ones(3) * 2), jnp.full(3, comm.size * 2 * jnp.cos(1)))


def check_advanced_jvp(comm):
    """A gradient of an expectation value, with a vjp within the backward rule of a custom_vjp (netket.jax.expect)."""

    def log_pdf(w, x):
        return jnp.sum(x.dot(w), axis=-1)

    def observable(w, x):
        return jnp.exp(jnp.sum(x.dot(w), axis=-1)) - 2

    @partial(jax.custom_vjp, nondiff_argnums=())
    def expect(w, x):
        return sj.all_reduce(observable(w, x).mean()) / comm.size

    def forth(w, x):
        values = observable(w, x)
        mean = sj.all_reduce(values.mean()) / comm.size
        return mean, (w, x, values - mean)

    def back(residuals, ct):
        w, x, deltas = residuals

        def f(w, x):
            return sj.all_reduce(jnp.mean(deltas * log_pdf(w, x) + observable(w, x))) / comm.size

        return jax.vjp(f, w, x)[1](ct)

    expect.defvjp(forth, back)
    w = jax.random.normal(jax.random.PRNGKey(3), (4, 8)) / 8
    x = jax.random.normal(jax.random.PRNGKey(4), (16, 4)) / 8
    value, pull = jax.vjp(lambda w: expect(w, x), w)
    assert bool(jnp.isfinite(value))
    assert bool(jnp.isfinite(pull(jnp.ones_like(value))[0]).all())


# ---- allreduce_matvec: 24 --------------------------------------------------------------------------------------------


def check_matvec(comm):
    """Columns of A and x are distributed, y is equal on all ranks: the transpose of matvec, and so on, is known."""
    m, n = 5, 60
    keys = jax.random.split(jax.random.PRNGKey(123), 5)
    a, x, y = (jax.random.uniform(key, shape) for key, shape in zip(keys, ((m, n), (n,), (m,)), strict=False))
    v, w = jax.random.uniform(keys[3], (n,)), jax.random.uniform(keys[4], (m,))
    mine = slice(n // comm.size * comm.rank, n // comm.size * (comm.rank + 1))
    local, x_local, v_local = a[:, mine], x[mine], v[mine]

    def mv(x):
        return sj.all_reduce(local @ x)

    def mv_t(y):
        return local.T @ transposed(sj.all_reduce, y)(y)

    forth, back = (x_local, a @ x), (y, (a.T @ y)[mine])
    for f, (given, wanted), (given_t, wanted_t) in ((mv, forth, back), (mv_t, back, forth)):
        for _transposes in range(4):  # matvec, matvec_transpose, _transpose2, _transpose3; and the same of matvecT
            for g in plain_and_jit(f):
                near(g(given), wanted)
            f = transposed(f, given)
            given, wanted, given_t, wanted_t = given_t, wanted_t, given, wanted
    for f, given, tangent, wanted, wanted_tangent in (
        (mv, x_local, v_local, a @ x, a @ v),
        (mv_t, y, w, (a.T @ y)[mine], (a.T @ w)[mine]),
    ):
        for g in plain_and_jit(lambda x, t, f=f: jax.jvp(f, (x,), (t,))):
            value, result = g(given, tangent)
            near(value, wanted)
            near(result, wanted_tangent)
    for f, given, ct, wanted in ((mv, x_local, w, (a.T @ w)[mine]), (mv_t, y, v_local, a @ v)):
        for g in plain_and_jit(lambda x, t, f=f: jax.vjp(f, x)[1](t)[0]):
            near(g(given, ct), wanted)


# ---- other collectives -----------------------------------------------------------------------------------------------


def check_allgather(comm):
    for f in plain_and_jit(sj.all_gather):
        equal(f(jnp.ones(ONES) * comm.rank), jnp.ones((comm.size, *ONES)) * jnp.arange(comm.size)[:, None, None])
        equal(f(comm.rank), jnp.arange(comm.size))


def check_alltoall(comm):
    for f in plain_and_jit(sj.all_to_all):
        got = f(jnp.ones((comm.size, *ONES)) * comm.rank)
        equal(got, jnp.ones((comm.size, *ONES)) * jnp.arange(comm.size)[:, None, None])


def check_alltoall_wrong_size(comm):
    with pytest.raises(ValueError, match=rf"its length must be {comm.size}"):
        sj.all_to_all(jnp.ones((comm.size + 1,)))


def check_alltoall_transpose(comm):
    rows, columns = 84, 84

    def transpose(arr):
        arr = arr.reshape([rows // comm.size, comm.size, columns // comm.size]).transpose([1, 0, 2])
        return sj.all_to_all(arr).reshape([rows, columns // comm.size]).transpose([1, 0])

    whole = jax.random.normal(jax.random.PRNGKey(42), [rows, columns])
    mine = slice(rows // comm.size * comm.rank, rows // comm.size * (comm.rank + 1))
    for f in plain_and_jit(transpose):
        equal(f(whole[mine]), whole.T[mine])


def check_barrier(comm):
    assert sj.barrier() is None
    jax.jit(sj.barrier)()
    jax.vmap(lambda x: (sj.barrier(), x)[1])(jnp.ones(3))


def check_bcast(comm):
    for f in plain_and_jit(sj.broadcast):
        equal(f(jnp.ones(ONES) * (comm.rank + 7)), jnp.ones(ONES) * 7)
        equal(f(comm.rank + 7), 7)


def check_gather(comm):
    for f in plain_and_jit(sj.gather):
        got = f(jnp.ones(ONES) * (comm.rank + 1))
        wanted = jnp.ones((comm.size, *ONES)) * (jnp.arange(comm.size)[:, None, None] + 1)
        equal(got, wanted if comm.rank == 0 else 0 * wanted)
        equal(f(comm.rank + 1), (jnp.arange(comm.size) + 1) * (comm.rank == 0))


def check_reduce(comm):
    total = comm.size * (comm.size - 1) // 2
    for f in plain_and_jit(sj.reduce):
        equal(f(jnp.ones(ONES) * comm.rank), jnp.full(ONES, total if comm.rank == 0 else 0))
        equal(f(comm.rank), total if comm.rank == 0 else 0)


def check_scan(comm):
    for f in plain_and_jit(sj.scan):
        equal(f(jnp.ones(ONES) * comm.rank), jnp.ones(ONES) * sum(range(comm.rank + 1)))
        equal(f(comm.rank), sum(range(comm.rank + 1)))


def check_scatter(comm):
    for f in plain_and_jit(sj.scatter):
        rows = jnp.ones((comm.size, *ONES)) * jnp.arange(comm.size)[:, None, None]
        equal(f(rows if comm.rank == 0 else -rows), jnp.ones(ONES) * comm.rank)


def check_scatter_wrong_size(comm):
    with pytest.raises(ValueError, match=rf"its length must be {comm.size}"):
        sj.scatter(jnp.ones((comm.size + 1,)))


# ---- messages --------------------------------------------------------------------------------------------------------


def check_send_recv(comm):
    for wrap in (lambda f: f, jax.jit):
        for shape in (ONES, ()):
            arr = jnp.ones(shape) * comm.rank
            if comm.rank == 0:
                for peer in range(1, comm.size):
                    equal(wrap(lambda x, peer=peer: sj.recv(x, peer, peer))(arr), jnp.ones(shape) * peer)
            else:
                wrap(lambda x: sj.send(x, 0, comm.rank))(arr)
                equal(arr, jnp.ones(shape) * comm.rank)


def check_send_recv_deadlock(comm):
    @jax.jit
    def exchange(arr):
        if comm.rank == 0:
            sj.send(arr, 1)
            return sj.recv(arr, 1)
        new = sj.recv(arr, 0)
        sj.send(arr, 0)
        return new

    if comm.rank < 2:
        equal(exchange(jnp.ones(10) * comm.rank), jnp.ones(10) * (1 - comm.rank))


def check_send_recv_status(comm):
    for wrap in (lambda f: f, jax.jit):
        if comm.rank == 0:
            for peer in range(1, comm.size):
                got, status = wrap(lambda x, peer=peer: sj.recv(x, peer, peer, status=True))(jnp.ones(ONES))
                equal(got, jnp.ones(ONES) * peer)
                assert (int(status.source), int(status.tag)) == (peer, peer)
        else:
            wrap(lambda x: sj.send(x, 0, comm.rank))(jnp.ones(ONES) * comm.rank)


def in_pairs(comm):
    """The other rank of this one's pair; itself for the last of an odd number."""
    return min(comm.rank ^ 1, comm.size - 1)


def check_sendrecv(comm):
    other = in_pairs(comm)
    for f in plain_and_jit(lambda x: sj.sendrecv(x, other, other)):
        equal(f(jnp.ones(ONES) * comm.rank), jnp.ones(ONES) * other)
        equal(f(comm.rank), other)


def check_sendrecv_status(comm):
    other = in_pairs(comm)
    for f in plain_and_jit(lambda x: sj.sendrecv(x, other, other, tag=4, out_tag=-1, status=True)):
        got, status = f(jnp.ones(ONES) * comm.rank)
        equal(got, jnp.ones(ONES) * other)
        assert (int(status.source), int(status.tag)) == (other, 4)


def check_sendrecv_vmap(comm):
    other = in_pairs(comm)
    got = jax.vmap(lambda x: sj.sendrecv(x, other, other))(jnp.ones(ONES) * comm.rank)
    equal(got, jnp.ones(ONES) * other)


def check_sendrecv_grad(comm):
    other = in_pairs(comm)

    def f(x):
        return (sj.sendrecv(x, other, other) * (comm.rank + 1)).sum()

    def twice(x):
        x = sj.sendrecv(x, other, other) * (comm.rank + 1) * 5
        return (sj.sendrecv(x, other, other) * (comm.rank + 1) ** 2).sum()

    arr = jnp.ones(ONES) * (comm.rank + 1)
    for derivative in (jax.grad, jax.jacrev):
        equal(derivative(f)(arr), jnp.ones(ONES) * (other + 1))
        equal(derivative(twice)(arr), jnp.ones(ONES) * (comm.rank + 1) ** 2 * (other + 1) * 5)


def check_sendrecv_jacfwd(comm):
    other = in_pairs(comm)
    got = jax.jacfwd(lambda x: sj.sendrecv(x, other, other) * (comm.rank + 1))(jnp.ones(2))
    equal(got, jnp.eye(2) * (comm.rank + 1))  # ranks move their inputs along together


# ---- transformations -------------------------------------------------------------------------------------------------


def check_custom_linear_solver(comm):
    b = jax.random.normal(jax.random.key(1), (24,))
    matvec = jax.tree_util.Partial(sj.all_reduce)
    for solve in plain_and_jit(cg):
        near(comm.size * solve(matvec, b)[0], b)


CHECKS = [name.removeprefix("check_") for name in vars(sys.modules[__name__]) if name.startswith("check_")]


def run_all(comm, names):
    for name in names:
        globals()[f"check_{name}"](comm)
    return len(names)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("part", range(3))
def test_what_mpi4jax_tests(n, part):
    names = CHECKS[part::3]
    assert run_jax(n, run_all, names) == [len(names)] * n
