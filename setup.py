"""Build of the extensions. Metadata lives in pyproject.toml.

Switches, all read from the environment, all off by default:

    SHMRING_DEBUG=1        assertions in the C parts, bounds checks in the Cython parts
    SHMRING_SANITIZE=LIST  gcc/clang sanitizers, e.g. ``address,undefined`` or ``thread``
    SHMRING_FAULTS=1       points at which tests can kill, stop or delay a process (``shmring/_c/faults.h``)
    SHMRING_ANNOTATE=1     Cython's annotated HTML beside each .pyx

Nothing is detected about the processor that builds: one binary carries every kernel, and
``shmring/_c/dispatch.h`` picks at import.
"""

import os
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("SHMRING_DEBUG", "0") not in ("", "0")
SANITIZE = os.environ.get("SHMRING_SANITIZE", "")
FAULTS = os.environ.get("SHMRING_FAULTS", "0") not in ("", "0")
ANNOTATE = os.environ.get("SHMRING_ANNOTATE", "0") not in ("", "0")

# -ffp-contract=off: a fused multiply-add rounds once where the baseline kernel rounds twice,
# so the instruction sets would disagree in the last bit.
compile_args = ["-std=c11", "-O2", "-g0", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"]
link_args = ["-pthread"]
if SANITIZE:
    compile_args += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer", "-O1"]
    link_args += [f"-fsanitize={SANITIZE}"]
if DEBUG:
    compile_args += ["-UNDEBUG", "-DSHMRING_DEBUG=1", "-Og"]
if FAULTS:
    compile_args += ["-DSHMRING_FAULTS=1", "-O1"]

directives = {
    "language_level": 3,
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "cdivision": True,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "freethreading_compatible": False,
}

headers = glob("shmring/_c/*.h")
extensions = [
    Extension(
        path[: -len(".pyx")].replace(os.sep, "."),
        [path],
        include_dirs=["shmring/_c", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"), ("_GNU_SOURCE", "1")],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        depends=headers,
    )
    for path in sorted(glob("shmring/**/*.pyx", recursive=True))
]


class ParallelBuild(build_ext):
    """Compile the extensions side by side; the kernels alone take as long as all the others."""

    def finalize_options(self):
        """Default ``--parallel`` to the processors this process may use."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


setup(
    ext_modules=cythonize(extensions, compiler_directives=directives, annotate=ANNOTATE, nthreads=len(os.sched_getaffinity(0))),
    cmdclass={"build_ext": ParallelBuild},
)
