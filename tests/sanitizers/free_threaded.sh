#!/usr/bin/env bash
#
# free_threaded.sh - tests with threads in a free-threaded CPython, both under the thread sanitizer
#
#   tests/sanitizers/free_threaded.sh [-t TREE] SOURCE [PYTEST_ARG...]
#
#   -t TREE   build there, and keep it: a later run compiles only what has changed. Without it a temporary folder is
#             used and removed.
#   SOURCE    the unpacked source of CPython, of the version of $PYTHON
#
# Builds CPython from SOURCE without the GIL and with the thread sanitizer (a quarter of an hour on two processors), and
# shmring with it. PYTEST_ARGs choose tests, in the copy of the checkout that is tested; by default those of threads that
# share objects and of ranks as threads. Reports of CPython's own are in free_threaded.supp, with reasons; any other is a
# failure. NumPy is not instrumented: what it does to array data is not seen, shmring's own accesses to it are.
#
# Needs: gcc with libtsan, what builds CPython, and $PYTHON: a free-threaded Python of the same version, not instrumented,
# with what builds and tests shmring; its packages are used. Exit status: 0 when all tests passed and nothing was reported.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3.14t}
tree=
if [ "${1:-}" = -t ]; then
    tree=$2
    shift 2
fi
[ $# -ge 1 ] || { sed -n '3,19p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
source=$(cd "$1" && pwd)
shift
if [ -z "$tree" ]; then
    tree=$(mktemp -d "${TMPDIR:-/tmp}/shmring-free-threaded.XXXXXX")
    trap 'rm -rf "$tree"' EXIT
fi
mkdir -p "$tree/cpython" "$tree/shmring"
tree=$(cd "$tree" && pwd)
instrumented=$tree/python/bin/python3

# The sanitizer's memory must be where it wants it: no random addresses.
if [ ! -e "$tree/python.done" ]; then
    cd "$tree/cpython"
    export TSAN_OPTIONS=report_bugs=0:exitcode=0    # the build runs the interpreter, which has races of its own
    { "$source/configure" -q --disable-gil --with-thread-sanitizer --disable-test-modules --with-ensurepip=no \
        --prefix="$tree/python" OPT='-g1 -O1 -fno-omit-frame-pointer' \
        && setarch -R make -j"$(nproc)" && setarch -R make install; } > "$tree/python.log" 2>&1 \
        || { tail -n 30 "$tree/python.log"; exit 2; }
    touch "$tree/python.done"
fi

# By the other Python: the instrumented one would take half an hour to generate the C code.
tar -c -C "$root" --exclude-vcs --exclude=./build --exclude='*.so' --exclude=__pycache__ . \
    | tar -x --no-same-owner -C "$tree/shmring"
cd "$tree/shmring"
SHMRING_SANITIZE=thread "$python" setup.py -q build_ext --inplace > "$tree/build.log" 2>&1 || { tail -n 30 "$tree/build.log"; exit 2; }

[ $# -gt 0 ] || set -- tests/multiproc/launch/test_spawn_threads.py tests/multiproc/engine/test_threads_at_once.py \
    tests/multiproc/collective/test_ranks_of_one_process.py tests/unit/base/test_free_threading.py
rm -rf "$tree/reports"
mkdir "$tree/reports"
PYTHONPATH=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Children of a process with threads that do not exec are ranks of tests.
TSAN_OPTIONS=suppressions=$tree/shmring/tests/sanitizers/free_threaded.supp:log_path=$tree/reports/report
TSAN_OPTIONS+=:exitcode=0:halt_on_error=0:die_after_fork=0:handle_segv=0:report_signal_unsafe=0:history_size=7
export PYTHONPATH TSAN_OPTIONS SHMRING_SANITIZED=thread SHMRING_PATIENCE=${SHMRING_PATIENCE:-10}
status=0
setarch -R "$instrumented" -m pytest -p no:cacheprovider -p no:xdist "$@" || status=$?
if [ -n "$(ls "$tree/reports")" ]; then
    echo "the thread sanitizer has reported:"
    head -n 60 "$tree"/reports/*
    exit 1
fi
echo "the thread sanitizer reports nothing"
exit "$status"
