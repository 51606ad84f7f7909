"""Build of the extensions. Metadata lives in pyproject.toml.

Switches, all read from the environment, all off by default:

    SHMRING_DEBUG=1        assertions in the C parts, bounds checks in the Cython parts, debug symbols
    SHMRING_SANITIZE=LIST  gcc/clang sanitizers, e.g. ``address,undefined`` or ``thread``
    SHMRING_FAULTS=1       points at which tests can kill, stop or delay a process (``shmring/core/c/faults.h``)
    SHMRING_SYMBOLS=1      names of functions for debuggers, profilers and tools/instructions.py; the same code
    SHMRING_ANNOTATE=1     Cython's annotated HTML beside the C

What is built without a switch has no debug symbols, and the compiler's usual warnings (``SHMRING_DEBUG=1``: more).
The user's ``CFLAGS`` come last and win: ``CFLAGS=-O3`` optimizes all modules with ``-O3``.
Nothing is detected about the processor that builds: one binary carries every kernel, and
``shmring/core/kernel/dispatch.h`` picks at import.
"""

import os
import re
import shlex
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


def is_on(switch: str) -> bool:
    """Whether a switch is set, and not to 0."""
    return os.environ.get(switch, "0") not in ("", "0")


DEBUG, FAULTS, SYMBOLS, ANNOTATE = (is_on(f"SHMRING_{one}") for one in ("DEBUG", "FAULTS", "SYMBOLS", "ANNOTATE"))
SANITIZE = os.environ.get("SHMRING_SANITIZE", "")

# Rooms, and files of others, with little or no code that runs for each message, record or element: 60 % of the time and
# 80 % of the bytes of -O2. Two passes of -Os are left out, which find little in code that Cython writes, and take a
# seventh of the time.
COLD_ROOMS = {
    "collectives/bootstrap", "collectives/observe", "core/base", "core/memory", "core/placement", "launch", "nodes",
}  # fmt: skip
COLD_FILES = {
    "capi/handles", "channels/backlog", "channels/half_pipe", "channels/queue", "channels/queue_locks",
    "channels/word_sleep",
    "collectives/engine/engine", "collectives/engine/kinds", "collectives/engine/outbox",
    "collectives/engine/recording", "collectives/engine/thread_team", "collectives/shared/moved",
    "core/objects/tensors", "core/ring/inspect", "core/ring/prospects", "core/sync/abort", "core/sync/liveness",
    "core/sync/long_waits", "core/sync/notifier", "core/sync/wait_graph", "jax/_mpi",
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

# Where Cython writes its C, apart for each form of it.
TRANSLATED = "build/c-debug" if DEBUG else "build/c"

# What many modules need of Cython's runtime (the type of functions, exceptions, arguments) is compiled once: a fifth of
# the time and of the bytes of a module. Without what no module needs; Cython 3.1 and 3.2 have no such choice.
SHARED_UTILITY = "shmring._cython"
SHARED_OPTIONS = {"shared_utility_qualified_name": SHARED_UTILITY}
if "shared_utility_features_disabled" in default_options:
    SHARED_OPTIONS["shared_utility_features_disabled"] = ["MemoryView", "AutoPickle"]

# -ffp-contract=off: a fused multiply-add rounds once where the baseline kernel rounds twice,
# so the instruction sets would disagree in the last bit.
COMPILE_ARGS = ["-std=c11", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-unused-function"]
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
    # By default no symbols but those that the loader needs.
    LINK_ARGS += ["-Wl,--build-id=none", *([] if SYMBOLS else ["-Wl,-s"])]
if FAULTS:
    COMPILE_ARGS += ["-DSHMRING_FAULTS=1"]
# setuptools puts CFLAGS before these; of contrary flags the compiler takes the last, which shall be the user's.
USER_ARGS = shlex.split(os.environ.get("CFLAGS", ""))

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
    sources = [path]
    if path == "shmring/core/kernel/reduce.pyx":
        sources += sorted(glob("shmring/core/kernel/kernels_*.c"))  # of one instruction set each
    name = path[len("shmring/") : -len(".pyx")]
    room = os.path.dirname(name)
    arguments = []
    if not (DEBUG or SANITIZE or FAULTS or room == "core/kernel"):
        arguments += COLD_ARGS if room in COLD_ROOMS or name in COLD_FILES else CALL_ARGS
    if name == "jax/_mpi":
        arguments += ["-fvisibility=default"]  # jaxlib looks up its functions by name
    return Extension(
        path[: -len(".pyx")].replace(os.sep, "."),
        sources,
        include_dirs=[*INCLUDE_DIRS, numpy.get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_23_API_VERSION"), ("_GNU_SOURCE", "1")],
        extra_compile_args=[*COMPILE_ARGS, *arguments, *USER_ARGS],
        extra_link_args=LINK_ARGS,
        depends=sorted(set().union(*map(files_behind, sources))),
    )


def shared_utility() -> Extension:
    """The extension module of what the others share; Cython writes its source, too."""
    source = SHARED_UTILITY.replace(".", "/") + ".c"
    arguments = [*COMPILE_ARGS, "-O1", *USER_ARGS]
    return Extension(SHARED_UTILITY, [source], extra_compile_args=arguments, extra_link_args=LINK_ARGS)


def nprocessors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        if self.parallel is None:
            self.parallel = nprocessors()

    def build_extensions(self):
        """Compile and link, in the order of what each is known to take: the kernels, then by the size of the C."""
        translated = cythonize(
            self.extensions,
            compiler_directives=DIRECTIVES,
            annotate=ANNOTATE,
            build_dir=TRANSLATED,
            emit_linenums=False,
            nthreads=nprocessors(),
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

    def copy_extensions_to_source(self):
        """Build in place; remove extensions there whose source is gone: they would hide a .py of the same name."""
        names = {one.name for one in self.extensions}
        ending = self.get_ext_filename("")
        for path in glob(f"shmring/**/*{ending}", recursive=True):
            if path.removesuffix(ending).replace(os.sep, ".") not in names:
                os.remove(path)
        super().copy_extensions_to_source()


class PythonFiles(build_py):
    """Leave the sources of the extensions out of the wheel; what others cimport are the .pxd and the headers."""

    def find_data_files(self, package, src_dir):
        """Data files of a package, without what Cython or the compiler reads here alone."""
        found = [name for name in super().find_data_files(package, src_dir) if not name.endswith((".pyx", ".c"))]
        return [name for name in found if not name.endswith(".h") or os.path.normpath(name) in public_headers()]


def extensions() -> list[Extension]:
    """All extension modules; none on systems where shmring does not work."""
    if sys.platform != "linux":
        return []
    return [*(extension(path) for path in sorted(glob("shmring/**/*.pyx", recursive=True))), shared_utility()]


if __name__ == "__main__":
    setup(
        ext_modules=extensions(),
        cmdclass={"build_ext": ParallelBuild, "build_py": PythonFiles},
    )
