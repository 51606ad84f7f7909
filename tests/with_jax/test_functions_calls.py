"""Results of the functions: dtypes, axes, trees; in loops, branches and exported graphs; order."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from support.jax_ranks import on_jax, run_jax

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from jax import export, lax  # noqa: E402
from support.jax_driver import run_jax_cases  # noqa: E402

import shmring.jax as sj  # noqa: E402
from shmring.dtypes import DTYPES  # noqa: E402


def equal(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), f"{a} is not {b}"


# ---- the right answer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
def test_every_case_is_right(n, seed):
    run_jax(n, run_jax_cases, 40, seed, x64=True)


# ---- dtypes ----------------------------------------------------------------------------------------------------------

CORE = tuple(dtype.name for dtype in DTYPES)
MOVED = ("float8_e5m2fnuz", "float8_e4m3fnuz", "int4", "uint4")  # XLA packs the last two


@on_jax(2, x64=True)
def test_every_dtype_is_moved_and_those_of_the_core_are_combined(comm):
    here, p = comm.rank, comm.size
    others = [name for name in MOVED if hasattr(jnp, name)]
    for name in (*CORE, *others):
        parts = [(np.arange(6) % 3 + rank).astype(jnp.dtype(name)) for rank in range(p)]
        x = jnp.asarray(parts[here])
        equal(jax.jit(sj.all_gather)(x), np.stack(parts))
        equal(sj.broadcast(x, 1), parts[1])
        equal(sj.permute(x, [(rank, (rank + 1) % p) for rank in range(p)]), parts[here - 1])
        equal(sj.sendrecv(x, (here + 1) % p, (here - 1) % p), parts[here - 1])
        equal(sj.all_to_all(jnp.stack([x] * p)), np.stack(parts))
        sj.send(x, (here + 1) % p)
        equal(jax.jit(lambda like: sj.recv(like))(x), parts[here - 1])
        if name in CORE:
            wanted = np.array(parts[0])
            comm.all_reduce(np.array(parts[here]), out=wanted)
            equal(jax.jit(sj.all_reduce)(x), wanted)
            equal(sj.reduce_scatter(jnp.stack([x] * p), "max" if "complex" not in name else "sum").dtype, x.dtype)
        else:
            with pytest.raises(TypeError, match=f"{name} cannot be combined"):
                sj.all_reduce(x)
    assert len(others) == 4


@on_jax(2)
def test_arrays_without_elements(comm):
    for f in (sj.all_reduce, sj.broadcast, sj.scan, lambda x: sj.permute(x, [(0, 1)])):
        equal(f(jnp.zeros((0, 3))), np.zeros((0, 3), np.float32))
    assert sj.all_gather(jnp.zeros((0,))).shape == (comm.size, 0)


# ---- axes, trees, large arrays ---------------------------------------------------------------------------------------


@on_jax(2)
def test_axes_are_those_of_lax(comm):
    p, here = comm.size, comm.rank
    parts = [np.arange(24, dtype=np.float32).reshape(2, 6, 2) * (rank + 1) + rank for rank in range(p)]
    x = parts[here]
    for axis in (0, 1, 2, -1):
        equal(sj.all_gather(x, axis), np.stack(parts, axis))
        equal(sj.all_gather(x, axis, tiled=True), np.concatenate(parts, axis))
    equal(sj.all_gather(x, 3), np.stack(parts, 3))
    equal(sj.reduce_scatter(x, axis=1, tiled=True), np.split(sum(parts), p, 1)[here])
    equal(sj.reduce_scatter(x[:, :p], axis=-2), sum(parts)[:, here])
    for split, join in itertools.product((1, -2), (0, 1, 2)):
        blocks = [np.split(part, p, split)[here] for part in parts]
        equal(sj.all_to_all(x, split, join, tiled=True), np.concatenate(blocks, join))
        equal(sj.all_to_all(x[:, :p], split, min(join, 2)), np.stack([part[:, here] for part in parts], join))


@on_jax(2)
def test_vmap_is_the_call_of_each(comm):
    """Vmap of a call is the call of each element of the batch."""
    p, here = comm.size, comm.rank
    x = jnp.arange(5 * p * 3.0).reshape(5, p, 3) * (here + 1)
    other = (here - 1) % p, (here + 1) % p
    calls = [
        sj.all_reduce, sj.copy_to_all, sj.reduce, sj.reduce_scatter, sj.scan, sj.exscan, sj.all_gather, sj.gather,
        sj.scatter, sj.all_to_all, sj.broadcast, lambda y: sj.permute(y, [(0, 1)]), lambda y: sj.sendrecv(y, *other),
    ]  # fmt: skip
    for call in calls:
        equal(jax.vmap(call)(x), jnp.stack([call(y) for y in x]))
        nested = jax.vmap(jax.vmap(call))(x[:, None])
        equal(nested, jnp.stack([call(y) for y in x])[:, None])
    assert len(calls) == 13


@on_jax(2)
def test_trees_and_large_arrays(comm):
    tree = {"w": jnp.ones((3, 2)) * comm.rank, "b": [jnp.arange(4), 2]}
    total = sj.all_reduce(tree)
    equal(total["w"], np.full((3, 2), sum(range(comm.size)), np.float32))
    equal(total["b"][0], np.arange(4, dtype=np.int32) * comm.size)
    assert int(total["b"][1]) == 2 * comm.size
    total, token = sj.all_reduce(tree, token=sj.new_token())
    assert sj.all_gather({}, token=token)[0] == {}
    big = np.random.default_rng(comm.rank).standard_normal(3_000_000).astype(np.float32)
    wanted = comm.all_reduce(big.copy())
    for _ in range(3):  # plans are made, and used again
        equal(jax.jit(sj.all_reduce)(big), wanted)


# ---- control flow ----------------------------------------------------------------------------------------------------


@on_jax(2)
def test_loops_branches_checkpoints_and_linear_solves(comm):
    p = comm.size
    x = jnp.arange(4.0) + comm.rank
    total = np.asarray(sj.all_reduce(x))
    equal(jax.jit(lambda x: lax.scan(lambda c, _: (sj.all_reduce(c) / p, c), x, None, length=3)[0])(x), total / p)
    equal(jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: sj.all_reduce(c), x))(x), total * p * p)

    def residual_is_large(state):
        return sj.all_reduce(state[1], "max") < 5

    steps = jax.jit(lambda n: lax.while_loop(residual_is_large, lambda s: (s[0] + 1, s[1] + 1), (0, n))[0])
    assert int(steps(comm.rank)) == 5 - (p - 1)
    branch = jax.jit(lambda flag, x: lax.cond(flag, sj.all_reduce, lambda x: sj.all_gather(x).sum(0) * 2, x))
    equal(branch(True, x), total)
    equal(branch(False, x), total * 2)

    def loss(x):
        return jnp.sin(sj.all_reduce(x)).sum()

    equal(jax.jit(jax.grad(jax.checkpoint(loss)))(x), jax.grad(loss)(x))
    scanned = jax.grad(lambda x: lax.scan(lambda c, _: (jnp.cos(sj.all_reduce(c)), None), x, None, length=3)[0].sum())
    assert jnp.allclose(jax.jit(scanned)(x), scanned(x))
    hessian = jax.jit(jax.hessian(loss))(x)
    assert jnp.allclose(hessian, jnp.diag(-p * jnp.sin(total)))
    solved = lax.custom_linear_solve(
        lambda v: sj.all_reduce(v) * 2, x, lambda mv, b: b / (2 * p), transpose_solve=lambda mv, b: b / (2 * p)
    )
    equal(solved, x / (2 * p))


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_token", [False, True])
@on_jax(2)
def test_independent_calls_are_in_order(comm, by_token):
    """64 calls without a dependence, each with another shape: in another order on one rank they would not match."""
    xs = [np.full(1 + i, i, np.float32) for i in range(64)]

    def f(xs, token):
        out = []
        for x in xs:
            if by_token:
                y, token = sj.all_reduce(jnp.sin(x), token=token)
            else:
                y = sj.all_reduce(jnp.sin(x))
            out.append(y)
        return out[::-1], token

    compiled = jax.jit(f)
    for _ in range(20):
        results, _ = compiled(xs, sj.new_token())
        for x, y in zip(xs, results[::-1], strict=True):
            assert np.allclose(y, np.sin(x) * comm.size, atol=1e-5)


@on_jax(2)
def test_calls_with_tokens(comm):
    p, here = comm.size, comm.rank
    other = (here + 1) % p, (here - 1) % p

    @jax.jit
    def f(x, token):
        a, token = sj.all_reduce(x, token=token)
        token = sj.barrier(token=token)
        b, token = sj.sendrecv(x, *other, token=token)
        if here == 0:
            token = sj.send(x, 1, 9, token=token)
        if here == 1:
            c, status, token = sj.recv(x, tag=9, status=True, token=token)
            b = b + c * status.source
        d, token = jax.vmap(lambda y: sj.all_gather(y, token=token), out_axes=(0, None))(x)
        return a, b, d, token

    x = jnp.ones((3, 2)) * here
    for _ in range(3):
        a, b, d, token = f(x, sj.new_token())
        equal(a, np.full((3, 2), sum(range(p)), np.float32))
        equal(b, np.full((3, 2), other[0], np.float32))
        equal(d, np.stack([np.arange(p, dtype=np.float32)[:, None] * np.ones(2, np.float32)] * 3))
        assert token.shape == (1,)
    looped, _ = lax.fori_loop(0, 4, lambda i, s: sj.all_reduce(s[0], token=s[1]), (x, token))
    equal(looped, np.full((3, 2), sum(range(p)) * p**3, np.float32))
    assert not jax.make_jaxpr(f)(x, token).effects
    with pytest.raises(TypeError, match="must be of new_token"):
        sj.all_reduce(x, token=jnp.ones(3))


# ---- communicators, exported graphs ----------------------------------------------------------------------------------


@on_jax(4)
def test_several_communicators_in_one_function(comm):
    rows = comm.split(comm.rank % 2)
    twin = comm.dup()

    @jax.jit
    def f(x):
        return sj.all_reduce(x, comm=rows), sj.all_reduce(x, comm=twin), sj.all_reduce(x)

    x = jnp.float32(1 << comm.rank)
    whole = np.float32((1 << comm.size) - 1)
    part = np.float32(sum(1 << rank for rank in range(comm.rank % 2, comm.size, 2)))
    assert [float(y) for y in f(x)] == [part, whole, whole]
    sj.set_communicator(rows, "rows")
    assert sj.communicator("rows") is rows
    assert sj.communicator() is comm
    assert float(sj.all_reduce(x, comm="rows")) == part
    with pytest.raises(KeyError, match="no communicator is named 'columns'"):
        sj.all_reduce(x, comm="columns")


def exported(comm):
    rows = comm.dup()
    sj.set_communicator(rows, "rows")

    def f(x):
        return sj.all_gather(jnp.cos(sj.all_reduce(x)), comm=rows), jax.grad(lambda x: sj.scan(x).sum())(x)

    check = export.DisabledSafetyCheck.custom_call("shmring")
    graph = export.export(jax.jit(f), disabled_checks=[check])(jax.ShapeDtypeStruct((3,), np.float32))
    with pytest.raises(ValueError, match="has no name"):
        export.export(jax.jit(lambda x: sj.all_reduce(x, comm=comm.dup())), disabled_checks=[check])(jnp.ones(3))
    x = jnp.arange(3.0) + comm.rank
    return bytes(graph.serialize()), [np.asarray(y) for y in f(x)]


def imported(comm, blob, wanted):
    """In a process with other communicators, made in another order."""
    others = [comm.dup() for _ in range(3)]
    sj.all_reduce(1, comm=others[2])
    graph = export.deserialize(blob)
    with pytest.raises(Exception, match="no communicator is named 'rows'"):
        graph.call(jnp.arange(3.0) + comm.rank)
    sj.set_communicator(others[1], "rows")
    for _ in range(2):
        for y, z in zip(graph.call(jnp.arange(3.0) + comm.rank), wanted[comm.rank], strict=True):
            equal(y, z)
    with pytest.raises(Exception, match="made for a communicator of 2 ranks; this one has 1"):
        sj.set_communicator(comm.split(comm.rank))
        graph.call(jnp.arange(3.0))
    return True


def test_an_exported_graph_finds_its_communicators_by_name():
    pytest.importorskip("flatbuffers")
    blobs, results = zip(*run_jax(2, exported), strict=True)
    assert blobs[0] == blobs[1], "the graph is not the same on all ranks"
    assert run_jax(2, imported, blobs[0], results) == [True] * 2


# ---- processes ------------------------------------------------------------------------------------------------------


def test_no_function_loads_jax_before_it_is_used():
    code = "import shmring, shmring.jax, sys; print('jax' in sys.modules, 'jaxlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


PROGRAM = """
import jax, jax.numpy as jnp
import shmring.jax as sj
f = jax.jit(lambda x: sj.sendrecv(sj.all_reduce(x), comm.size - 1 - comm.rank, comm.size - 1 - comm.rank))
comm = sj.communicator()          # made here, by shmring.init()
assert float(f(1.0)) == comm.size == 2
x = jnp.ones(3_000_000)
for _ in range(5):
    f(x)                          # the process ends without waiting for these
"""


def test_a_program_without_a_communicator_of_its_own_that_ends_without_waiting(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "shmring", "run", "-n", "2", str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
