#!/usr/bin/env bash
#
# run.sh - the test suite with the address and undefined-behaviour sanitizers in every extension
#
#   tests/sanitizers/run.sh [-t TREE] [PYTEST_ARG...]
#
#   -t TREE   build there, and keep it: a later run compiles again only what has changed. Without it a
#             temporary folder is used and removed.
#
# PYTEST_ARGs choose tests, in the copy of the checkout that is tested; without any the whole suite runs.
# A sanitizer's report is written to a file by whichever process it comes from and ends that process: ranks that
# a test kills anyway cannot hide one. Exit status: 0 when all tests passed and nothing was reported.
#
# Needs: gcc (or clang as CC) with its sanitizers, and $PYTHON (python3) with what builds and tests shmring.
# Environment: SHMRING_SANITIZE, the sanitizers (address,undefined).

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
sanitizers=${SHMRING_SANITIZE:-address,undefined}
tree=
if [ "${1:-}" = -t ]; then
    tree=$2
    shift 2
fi
if [ -z "$tree" ]; then
    tree=$(mktemp -d "${TMPDIR:-/tmp}/shmring-sanitized.XXXXXX")
    trap 'rm -rf "$tree"' EXIT
fi
mkdir -p "$tree"
tree=$(cd "$tree" && pwd)

# Without build products: those of the checkout are not sanitized, those of an earlier run stay.
tar -c -C "$root" --exclude-vcs --exclude=./build --exclude='*.so' --exclude=__pycache__ . \
    | tar -x --no-same-owner -C "$tree"
cd "$tree"
SHMRING_SANITIZE=$sanitizers "$python" setup.py -q build_ext --inplace > build.log 2>&1 || { tail -n 30 build.log; exit 2; }

rm -rf reports
mkdir reports
compiler=${CC:-gcc}
options=abort_on_error=1:log_path=$tree/reports/sanitizer
# The interpreter leaves memory to the end of the process, so leaks are not looked for. Freed memory is kept apart from
# new for less than by default: dozens of ranks share a machine. Ranks that tests end by SIGSEGV are no finding; one that
# no test sent fails its test without the sanitizer's help. An allocation of terabytes, which some tests ask NumPy for, is
# a MemoryError as it is without the sanitizer.
export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:allocator_may_return_null=1:quarantine_size_mb=16:$options
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:$options
export LD_PRELOAD
LD_PRELOAD=$("$compiler" -print-file-name=libasan.so)
export SHMRING_SANITIZED=$sanitizers  # for tests of what a sanitizer changes, such as limits of the address space

status=0
"$python" -m pytest -p no:cacheprovider "$@" || status=$?
unset LD_PRELOAD
# The sanitizer writes a warning about each allocation of terabytes that it refuses.
for report in reports/*; do
    if [ -e "$report" ] && ! grep -qv "WARNING: AddressSanitizer failed to allocate" "$report"; then
        rm "$report"
    fi
done
if [ -n "$(ls reports)" ]; then
    echo "the sanitizers have reported:"
    head -n 40 reports/*
    exit 1
fi
exit "$status"
