"""The driver of `shmring.jax`: compiled functions of arrays."""

import jax
import numpy as np

import shmring.jax as sj
from support.drivers import Direct
from support.oracle import FUNCTIONS, KINDS, check, draw


class Jax(Direct):
    """A custom call in a compiled function; outputs are new arrays."""

    is_functional = True

    @staticmethod
    def takes(case):
        # XLA's threads flush denormals to zero, in the kernels of shmring as in XLA's own.
        can = hasattr(sj, case.kind) and case.is_plain and not case.counts and case.op not in FUNCTIONS
        return can and case.fill == "usual" and case.place == "out" and case.count < 5000

    def call(self, case, x, out, keywords):
        if case.kind == "scatter" and x is None:  # all ranks pass an array; only the root's is read
            x = np.zeros(case.shape_in(self.size, self.rank), out.dtype)
        y = np.asarray(jax.jit(lambda x: getattr(sj, case.kind)(x, **keywords))(x))
        has_result = case.kind not in ("reduce", "gather") or self.rank == keywords["root"]
        if has_result and (case.kind, self.rank) != ("exscan", 0):
            return y
        assert not np.any(y)  # what is no result is zeros
        return None if KINDS[case.kind].has_root else out


def run_jax_cases(comm, number, seed):
    """Make these calls; one rank's part."""
    driver = Jax(comm)
    broadcasts = draw(number // 10, f"{seed} jax", lambda case: case.is_plain and case.count < 5000, kind="broadcast")
    for case in [*draw(number, f"{seed} jax", Jax.takes), *broadcasts]:
        check(driver, case)
    driver.close()
