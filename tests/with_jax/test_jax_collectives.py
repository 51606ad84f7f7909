"""JAX's own collectives in several processes: every operation and type, meshes, the compiler's, gradients."""

import numpy as np
from support.jax_programs import run_program

TYPES = """
    jax.config.update("jax_enable_x64", True)
    m = mesh()
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    for name in (*integers, "float32", "float64", "bfloat16", "complex64", "complex128"):
        dtype = jnp.dtype(name)
        rows = np.random.default_rng(7).integers(0, 5, (n, n * 6)).astype(dtype)
        if dtype.kind == "c":
            rows = (rows + 1j * rows[::-1]).astype(dtype)
        x = spread(rows.reshape(-1), m, "x")

        def every(a):
            ring = [(i, (i + 1) % n) for i in range(n)]
            results = (lax.psum(a, "x"), lax.all_gather(a, "x"), lax.psum_scatter(a, "x", tiled=True),
                       lax.ppermute(a, "x", ring), lax.all_to_all(a, "x", 0, 0, tiled=True),
                       lax.ppermute(a, "x", ring[:1]))
            return results if a.dtype.kind == "c" else (*results, lax.pmax(a, "x"), lax.pmin(a, "x"))

        total = rows.sum(0, dtype=dtype)
        expected = (total, rows, total.reshape(n, -1)[rank], rows[rank - 1],
                    rows.reshape(n, n, -1)[:, rank].reshape(-1), rows[0] if rank == 1 else np.zeros_like(rows[0]))
        outs = (P(), P("x"), P("x"), P("x"), P("x"), P("x"))
        if dtype.kind != "c":
            expected += rows.max(0), rows.min(0)
            outs += P(), P()
        for i, (got, wanted) in enumerate(zip(mapped(every, m, P("x"), outs)(x), expected, strict=True)):
            got = own(got)
            assert got.dtype == dtype and got.shape == wanted.shape, (name, i, got.shape, wanted.shape)
            assert np.array_equal(got.astype(np.complex128), wanted.astype(np.complex128)), (name, i, got, wanted)
    rows = np.arange(n * 4) % 3 > 0
    both = mapped(lambda a: (lax.pmax(a.astype(jnp.int32), "x"), lax.all_gather(a, "x")), m, P("x"), (P(), P("x")))
    got = both(spread(rows, m, "x"))
    assert np.array_equal(own(got[1]), rows.reshape(n, -1)) and np.array_equal(own(got[0]), rows.reshape(n, -1).max(0))
    report(done=n)
"""


def test_every_operation_on_every_type_is_exact(tmp_path):
    assert [one["done"] for one in run_program(tmp_path, 3, TYPES).reports] == [3] * 3


PROGRAMS = """
    everybody = multihost_utils.process_allgather(jnp.arange(3) + rank)
    assert everybody.tolist() == [[r, r + 1, r + 2] for r in range(n)]
    assert multihost_utils.broadcast_one_to_all(np.arange(3) + rank).tolist() == [0, 1, 2]
    multihost_utils.sync_global_devices("here")

    # Rows, columns and all of a 2 x 2 mesh in one program: three groups with the same first device.
    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    m = mesh((2, 2), ("x", "y"))
    x = spread(square, m, "x", "y")
    f = mapped(lambda a: (lax.psum(a, "x"), lax.psum(a, "y"), lax.psum(a, ("x", "y"))), m, P("x", "y"),
               (P(None, "y"), P("x"), P()))
    halves = square.reshape(2, 4, 2, 4)
    row, column = rank // 2, rank % 2
    for got, wanted in zip(f(x), (halves.sum(0)[:, column], halves.sum(2)[row], halves.sum((0, 2)))):
        assert np.array_equal(own(got), wanted), (got, wanted)

    # A mesh with its devices in another order, so that the group's first device is not the lowest.
    turned = mesh(devices=jax.devices()[::-1])
    got = own(mapped(lambda a: lax.all_gather(a, "x"), turned, P("x"), P("x"))(spread(square, turned, "x")))
    assert np.array_equal(got, square.reshape(4, 2, 8)), got

    # The compiler's own: a product of matrices whose inner dimension is spread, sums over an axis.
    whole = NamedSharding(m, P())
    a, b = spread(square, m, None, "x"), spread(square, m, "x", None)
    assert np.array_equal(own(jax.jit(lambda a, b: a @ b, out_shardings=whole)(a, b)), square @ square)
    assert own(jax.jit(lambda a: a.sum(), out_shardings=whole)(x)) == square.sum()

    # Gradients through psum.
    line = mesh()
    loss = mapped(lambda w, a: lax.psum((a @ w).sum(), "x"), line, (P(), P("x")), P())
    grad = jax.jit(jax.grad(loss))(jnp.ones(8), spread(square, line, "x"))
    assert np.array_equal(own(grad), square.sum(0)), grad

    # Fifty calls that no process waits for one by one, large and small.
    big = spread(np.ones((4, 300_000), np.float32), line, "x")
    step = mapped(lambda a: (a + lax.psum(a, "x") / n), line, P("x"), P("x"))
    for _ in range(10):
        big = step(big)
    assert own(big)[0, 0] == 1024.0, own(big)[0, 0]
    report(done=True, jax=jax.__version__)
"""


def test_meshes_the_compilers_collectives_gradients_and_multihost_utils(tmp_path):
    reports = run_program(tmp_path, 4, PROGRAMS).reports
    assert all(one["done"] for one in reports)


SAME_BITS = """
    rows = np.random.default_rng(rank).standard_normal(10_000).astype(np.float32)
    m = mesh()
    x = jax.make_array_from_process_local_data(NamedSharding(m, P("x")), rows)
    total = own(mapped(lambda a: lax.psum(a, "x"), m, P("x"), P())(x))
    report(bits=total.tobytes().hex())
"""


def test_sums_have_the_bits_of_rank_order_on_all_ranks(tmp_path):
    total = np.zeros(10_000, np.float32)
    for rank in range(3):
        total += np.random.default_rng(rank).standard_normal(10_000).astype(np.float32)
    assert [one["bits"] for one in run_program(tmp_path, 3, SAME_BITS).reports] == [total.tobytes().hex()] * 3
