"""Build of the extensions. Metadata lives in pyproject.toml.

Switches, all read from the environment, all off by default:

    SHMRING_DEBUG=1        assertions in the C parts, bounds checks in the Cython parts, debug symbols
    SHMRING_SANITIZE=LIST  gcc/clang sanitizers, e.g. ``address,undefined`` or ``thread``
    SHMRING_FAULTS=1       points at which tests can kill, stop or delay a process (``shmring/_c/faults.h``)
    SHMRING_ANNOTATE=1     Cython's annotated HTML beside each .pyx

What is built without a switch has no debug symbols, and the compiler's usual warnings (``SHMRING_DEBUG=1``: more).
Nothing is detected about the processor that builds: one binary carries every kernel, and
``shmring/kernel/dispatch.h`` picks at import.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from glob import glob
from pathlib import Path

import numpy
from Cython.Build import cythonize
from Cython.Compiler.Options import default_options
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

DEBUG = os.environ.get("SHMRING_DEBUG", "0") not in ("", "0")
SANITIZE = os.environ.get("SHMRING_SANITIZE", "")
FAULTS = os.environ.get("SHMRING_FAULTS", "0") not in ("", "0")
ANNOTATE = os.environ.get("SHMRING_ANNOTATE", "0") not in ("", "0")

# C sources beside the generated one: the kernels of one instruction set each.
MORE_SOURCES = {"shmring/kernel/reduce.pyx": sorted(glob("shmring/kernel/kernels_*.c"))}

# Rooms, and files of others, with little or no code that runs for each message, record or element: 60 % of the time and
# 80 % of the bytes of -O2. Two passes of -Os are left out, which find little in code that Cython writes, and take a
# seventh of the time.
COLD_ROOMS = {"base", "bench", "bootstrap", "memory", "nodes", "observe", "placement"}
COLD_FILES = {
    "capi/handles", "channels/half_pipe", "channels/queue", "channels/robust", "channels/word_sleep", "engine/engine",
    "engine/kinds", "engine/outbox", "engine/recording", "engine/thread_team", "jax/_mpi", "objects/tensors",
    "ring/eventfd", "ring/inspect", "ring/prospects", "shared/moved", "sync/abort", "sync/liveness", "sync/long_waits",
    "sync/wait_graph",
}  # fmt: skip
COLD_ARGS = ["-Os", "-fno-gcse", "-fno-tree-pre"]

# All others but the kernels: those passes of -O2 that save instructions of a call. A call takes as many instructions as
# with -O2, within 1 %, in three quarters of the time and 94 % of the bytes (docs/maintainers/experiments.md).
CALL_ARGS = ["-O1"] + [
    f"-f{one}" for one in (
        "caller-saves", "crossjumping", "expensive-optimizations", "indirect-inlining", "inline-functions",
        "inline-small-functions", "ipa-cp", "ipa-ra", "ipa-sra", "optimize-sibling-calls", "partial-inlining",
        "peephole2", "reorder-blocks-and-partition", "strict-aliasing", "tree-vrp",
    )
]  # fmt: skip

# What many modules need of Cython's runtime (the type of functions, exceptions, arguments) is compiled once: a fifth of
# the time and of the bytes of a module. Without what no module needs; Cython 3.1 and 3.2 have no such choice.
SHARED_UTILITY = "shmring._cython"
SHARED_OPTIONS = {"shared_utility_qualified_name": SHARED_UTILITY}
if "shared_utility_features_disabled" in default_options:
    SHARED_OPTIONS["shared_utility_features_disabled"] = ["MemoryView", "AutoPickle"]

# -ffp-contract=off: a fused multiply-add rounds once where the baseline kernel rounds twice,
# so the instruction sets would disagree in the last bit.
COMPILE_ARGS = ["-std=c11", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unused-function"]
MORE_ARGS = {"shmring/jax/_mpi.pyx": ["-fvisibility=default"]}  # jaxlib looks up its functions by name
LINK_ARGS = ["-pthread"]
if SANITIZE:
    COMPILE_ARGS += [f"-fsanitize={SANITIZE}", "-fno-omit-frame-pointer"]
    LINK_ARGS += [f"-fsanitize={SANITIZE}"]
if DEBUG:
    COMPILE_ARGS += ["-UNDEBUG", "-DSHMRING_DEBUG=1", "-Wall", "-Og", "-g"]
elif SANITIZE:
    COMPILE_ARGS += ["-O1", "-g0"]
elif FAULTS:
    COMPILE_ARGS += ["-O0", "-g0"]  # made for one run of the tests: to optimize takes longer than that gains
else:
    # Without tables for unwinding and jumps to other libraries through stubs: a tenth of the bytes. No exception of C++
    # passes through these modules, and tables are of no use to a debugger without the symbols that -s drops.
    COMPILE_ARGS += ["-O2", "-g0", "-fno-asynchronous-unwind-tables", "-fno-plt", "-fno-ident"]
    LINK_ARGS += ["-Wl,-s", "-Wl,--build-id=none"]  # no symbols but those that the loader needs
if FAULTS:
    COMPILE_ARGS += ["-DSHMRING_FAULTS=1"]

INCLUDE_DIRS = ["shmring", "shmring/capi/include"]

DIRECTIVES = {
    "language_level": 3,
    "binding": True,
    "embedsignature": True,
    "embedsignature.format": "python",
    "cdivision": True,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "freethreading_compatible": True,
    # What can be pickled has a __reduce__ of its own; the others are refused by Python's copyreg, too.
    "auto_pickle": False,
}


def files_behind(path: str) -> set[str]:
    """The headers and .pxd files that the code of a file depends on, directly or through others."""
    found: set[str] = set()
    todo = [path, os.path.splitext(path)[0] + ".pxd"]
    while todo:
        name = todo.pop()
        if name in found or not os.path.exists(name):
            continue
        found.add(name)
        text = Path(name).read_text()
        headers = re.findall(r'(?:#include|extern from) "([\w./]+)"', text)
        todo += [f"{folder}/{header}" for header in headers for folder in [os.path.dirname(name), *INCLUDE_DIRS]]
        for package, names in re.findall(r"^from (shmring[\w.]*) cimport ([^#\n]+)", text, re.M):
            parts = [package, *(f"{package}.{word}" for word in re.findall(r"\w+", names))]
            todo += [part.replace(".", "/") + end for part in parts for end in (".pxd", "/__init__.pxd")]
        for module in re.findall(r"^cimport (shmring[\w.]*)", text, re.M):
            todo.append(module.replace(".", "/") + ".pxd")
    return found - {path}


@cache
def public_headers() -> frozenset[str]:
    """The headers that code of others may include: those of C, and those behind a .pxd."""
    found = frozenset(glob("shmring/capi/include/**/*.h", recursive=True))
    return found.union(*map(files_behind, glob("shmring/**/*.pxd", recursive=True)))


def extension(path: str) -> Extension:
    """The extension module of one .pyx."""
    sources = [path, *MORE_SOURCES.get(path, [])]
    room, name = path.split("/")[1], path[len("shmring/") : -len(".pyx")]
    if DEBUG or SANITIZE or FAULTS or room == "kernel":
        passes = []
    else:
        passes = COLD_ARGS if room in COLD_ROOMS or name in COLD_FILES else CALL_ARGS
    return Extension(
        path[: -len(".pyx")].replace(os.sep, "."),
        sources,
        include_dirs=[*INCLUDE_DIRS, numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"), ("_GNU_SOURCE", "1")],
        extra_compile_args=[*COMPILE_ARGS, *passes, *MORE_ARGS.get(path, [])],
        extra_link_args=LINK_ARGS,
        depends=sorted(set().union(*map(files_behind, sources))),
    )


def shared_utility() -> Extension:
    """The extension module of what the others share; Cython writes its source, too."""
    source = SHARED_UTILITY.replace(".", "/") + ".c"
    return Extension(SHARED_UTILITY, [source], extra_compile_args=[*COMPILE_ARGS, "-O1"], extra_link_args=LINK_ARGS)


def nprocessors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ParallelBuild(build_ext):
    """Translate all .pyx, then compile the extensions side by side, and so the sources of one; the longest first.

    The .pyx are translated here, not when the extensions are declared: source distributions list what is declared.
    """

    def finalize_options(self):
        """Default ``--parallel`` to the processors this process may use."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = nprocessors()

    def build_extensions(self):
        """Compile and link, in the order of what each is known to take: the kernels, then by the size of the C."""
        translated = cythonize(
            self.extensions,
            compiler_directives=DIRECTIVES,
            annotate=ANNOTATE,
            emit_linenums=False,
            nthreads=nprocessors() if sys.platform == "linux" else 0,
            **SHARED_OPTIONS,
        )
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


class PythonFiles(build_py):
    """Leave the sources of the extensions out of the wheel; what others cimport are the .pxd and the headers."""

    def find_data_files(self, package, src_dir):
        """Data files of a package, without what Cython or the compiler reads here alone."""
        found = [name for name in super().find_data_files(package, src_dir) if not name.endswith((".pyx", ".c"))]
        return [name for name in found if not name.endswith(".h") or os.path.normpath(name) in public_headers()]


if __name__ == "__main__":
    setup(
        ext_modules=[
            *(extension(path) for path in sorted(glob("shmring/**/*.pyx", recursive=True))),
            shared_utility(),
        ],
        cmdclass={"build_ext": ParallelBuild, "build_py": PythonFiles},
    )
