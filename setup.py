"""Build of the extensions. Metadata lives in pyproject.toml.

Switches, read from the environment, off by default:

    SHMRING_DEBUG=1        assertions in the C parts, bounds checks in the Cython parts, debug symbols
    SHMRING_SANITIZE=LIST  gcc/clang sanitizers, e.g. ``address,undefined`` or ``thread``
    SHMRING_FAULTS=1       points at which tests can kill, stop or delay a process (``shmring/core/c/faults.h``)
    SHMRING_SYMBOLS=1      names of functions for debuggers, profilers and tools/instructions.py; the same code
    SHMRING_ANNOTATE=1     Cython's annotated HTML beside the C

One binary carries every kernel, and ``shmring/core/kernel/dispatch.h`` picks at import.
"""

import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

import numpy
from Cython.Build import cythonize
from Cython.Compiler.Options import default_options
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SWITCHES = ("DEBUG", "SANITIZE", "FAULTS", "SYMBOLS", "ANNOTATE")
DEBUG, SANITIZE, FAULTS, SYMBOLS, ANNOTATE = (os.environ.get(f"SHMRING_{one}", "").strip("0") for one in SWITCHES)

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "cdivision": True,
    "boundscheck": bool(DEBUG),
    "wraparound": False,
    "initializedcheck": bool(DEBUG),
    "freethreading_compatible": True,
    "auto_pickle": False,  # what can be pickled has a __reduce__ of its own
}

# The part of Cython's runtime that many modules need is compiled once, without the parts that no module needs (Cython
# 3.1 and 3.2 have no such choice).
SHARED = {"shared_utility_qualified_name": "shmring._cython"}
if "shared_utility_features_disabled" in default_options:
    SHARED["shared_utility_features_disabled"] = ["MemoryView", "AutoPickle"]

# -ffp-contract=off: a fused multiply-add rounds once where the baseline kernel rounds twice, so the instruction sets
# would disagree in the last bit.
COMPILE_ARGS = ["-std=c11", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unused-function"]
LINK_ARGS = ["-pthread"]
KERNEL_ARGS, CALL_ARGS, COLD_ARGS = ["-O2"], [], []
if DEBUG:
    COMPILE_ARGS += ["-UNDEBUG", "-DSHMRING_DEBUG=1", "-Wall", "-g"]
    KERNEL_ARGS = ["-Og"]
elif SANITIZE:
    KERNEL_ARGS = ["-O1", "-g0"]
elif FAULTS:
    KERNEL_ARGS = ["-O0", "-g0"]  # made for one run of the tests: to optimize takes longer than that gains
else:
    # Without tables for unwinding and jumps to other libraries through stubs: a tenth of the bytes. No exception of C++
    # passes through these modules, and tables are of no use to a debugger without the symbols that -s drops.
    COMPILE_ARGS += ["-g0", "-fno-asynchronous-unwind-tables", "-fno-plt", "-fno-ident"]
    LINK_ARGS += ["-Wl,--build-id=none", *([] if SYMBOLS else ["-Wl,-s"])]
    # The passes of -O2 that save instructions of a call (docs/maintainers/experiments.md).
    CALL_PASSES = """caller-saves crossjumping expensive-optimizations indirect-inlining inline-functions
        inline-small-functions ipa-cp ipa-ra ipa-sra optimize-sibling-calls partial-inlining peephole2
        reorder-blocks-and-partition strict-aliasing tree-vrp"""
    CALL_ARGS = ["-O1", *(f"-f{one}" for one in CALL_PASSES.split())]
    COLD_ARGS = ["-Os", "-fno-gcse", "-fno-tree-pre"]
# Rooms without code that runs for each call, message or element.
COLD_ROOMS = {"base", "bootstrap", "launch", "memory", "nodes", "observe", "placement"}
if SANITIZE:
    COMPILE_ARGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"]
    LINK_ARGS += [f"-fsanitize={SANITIZE}"]
if FAULTS:
    COMPILE_ARGS += ["-DSHMRING_FAULTS=1"]


def extension(path: str) -> Extension:
    """The extension module of one .pyx, or of the .c that Cython writes for all."""
    sources, arguments = [path], CALL_ARGS or KERNEL_ARGS
    if path == "shmring/core/kernel/reduce.pyx":
        sources += sorted(glob("shmring/core/kernel/kernels_*.c"))  # of one instruction set each
        arguments = KERNEL_ARGS
    elif path.split("/")[-2] in COLD_ROOMS:
        arguments = COLD_ARGS or KERNEL_ARGS
    arguments = [*COMPILE_ARGS, *arguments]
    if path == "shmring/jax/_mpi.pyx":
        arguments += ["-fvisibility=default"]  # jaxlib looks up its functions by name
    return Extension(
        os.path.splitext(path)[0].replace("/", "."),
        sources,
        include_dirs=["shmring", "shmring/capi/include", numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"), ("_GNU_SOURCE", "1")],
        # setuptools puts CFLAGS before these; of contrary flags the compiler takes the last, which is the user's.
        extra_compile_args=[*arguments, *shlex.split(os.environ.get("CFLAGS", ""))],
        extra_link_args=LINK_ARGS,
        depends=sorted(glob("shmring/**/*.h", recursive=True)),  # Cython knows the .pxd
    )


class ParallelBuild(build_ext):
    """Translate all .pyx, then compile the extensions side by side, and so the sources of one; the longest first.

    The .pyx are translated here, not when the extensions are declared: source distributions list what is declared.
    """

    def finalize_options(self):
        """Default ``--parallel`` to the processors this process may use; build an editable install where others are."""
        super().finalize_options()
        if self.editable_mode:  # setuptools gives it temporary folders: the next build in place would build all again
            kept = self.distribution.get_command_class("build")(self.distribution)
            kept.ensure_finalized()
            self.build_lib, self.build_temp = kept.build_platlib, kept.build_temp
        self.parallel = self.parallel or len(os.sched_getaffinity(0))

    def build_extensions(self):
        """Compile and link, in the order of the time that each takes: the kernels, then by the size of the C."""
        folder = "build/c-debug" if DEBUG else "build/c"
        options = {"annotate": bool(ANNOTATE), "build_dir": folder, "emit_linenums": False, "nthreads": self.parallel}
        translated = cythonize(self.extensions, compiler_directives=DIRECTIVES, **options, **SHARED)
        sources = {one.name: one.sources for one in translated}
        for one in self.extensions:
            one.sources = sources[one.name]
        compile_files = self.compiler.compile

        def compile_side_by_side(sources, *args, **options):
            with ThreadPoolExecutor(len(sources)) as pool:
                objects = list(pool.map(lambda source: compile_files([source], *args, **options), sources))
            return [name for names in objects for name in names]

        self.compiler.compile = compile_side_by_side
        self.extensions.sort(key=lambda one: (len(one.sources), os.path.getsize(one.sources[0])), reverse=True)
        super().build_extensions()

    def copy_extensions_to_source(self):
        """Build in place; remove extensions there whose source is gone: they would hide a .py of the same name."""
        names = {one.name for one in self.extensions}
        ending = self.get_ext_filename("")
        for path in glob(f"shmring/**/*{ending}", recursive=True):
            if path.removesuffix(ending).replace("/", ".") not in names:
                os.remove(path)
        super().copy_extensions_to_source()


def extensions() -> list[Extension]:
    """All extension modules; none on systems where shmring does not work."""
    paths = [*sorted(glob("shmring/**/*.pyx", recursive=True)), "shmring/_cython.c"]
    return [extension(path) for path in paths] if sys.platform == "linux" else []


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
