#!/usr/bin/env bash
#
# threads.sh - rings, rounds, eager exchanges and waits between threads, under the thread sanitizer
#
#   tests/sanitizers/threads.sh [-t TREE] [COUNT]
#
# Builds the extensions and threads.pyx with -fsanitize=thread and runs threads_main.py: nothing may be reported. Then it does
# the same with the release stores of atomics.h made relaxed: that must be reported, or this test could not fail.
#
# What it can show: each access to payload is ordered by an acquire that has met its release. What it cannot: the
# sanitizer does not know atomic_thread_fence (gcc warns, -Wtsan). The one fence there is orders no payload; it keeps
# wake-ups from being lost, which tests/models/waiting.pml checks with and without it. Neither the copy loops of numpy nor
# the interpreter are instrumented: threads.pyx runs without the GIL and reads and writes payload itself.
#
# COUNT messages (20000). Needs gcc with libtsan and $PYTHON (python3) with what builds shmring. Exit status 0: both came
# out as they must.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}
tree=
if [ "${1:-}" = -t ]; then
    tree=$2
    shift 2
fi
count=${1:-20000}
if [ -z "$tree" ]; then
    tree=$(mktemp -d "${TMPDIR:-/tmp}/shmring-threads.XXXXXX")
    trap 'rm -rf "$tree"' EXIT
fi

build() {
    mkdir -p "$tree/$1"
    tar -c -C "$root" --exclude-vcs --exclude=./build --exclude='*.so' --exclude=__pycache__ . \
        | tar -x --no-same-owner -C "$tree/$1"
    cd "$tree/$1"
    cp tests/sanitizers/threads.pyx shmring/
    if [ "$1" = relaxed ]; then
        sed -i '/store_release_/,/}/s/memory_order_release/memory_order_relaxed/' shmring/core/c/atomics.h
        grep -q 'value, memory_order_relaxed); *\\' shmring/core/c/atomics.h
    fi
    SHMRING_SANITIZE=thread "$python" setup.py -q build_ext --inplace > build.log 2>&1 \
        || { tail -n 20 build.log; exit 2; }
}

run() {
    cd "$tree/$1"
    LD_PRELOAD=$("${CC:-gcc}" -print-file-name=libtsan.so) PYTHONPATH=. \
        TSAN_OPTIONS="exitcode=66 halt_on_error=0 report_signal_unsafe=0 log_path=$tree/$1/report" \
        timeout 600 "$python" tests/sanitizers/threads_main.py "$count"
}

build plain
run plain || { cat "$tree"/plain/report* 2>/dev/null | head -n 60; echo "threads.sh: FAILED"; exit 1; }
echo "the thread sanitizer reports nothing"

build relaxed
status=0
run relaxed > /dev/null 2>&1 || status=$?
grep -q 'WARNING: ThreadSanitizer: data race' "$tree"/relaxed/report* 2>/dev/null \
    || { echo "threads.sh: FAILED: relaxed stores were not reported (status $status)"; exit 1; }
echo "with relaxed stores it reports: $(cat "$tree"/relaxed/report* | grep -c 'WARNING: ThreadSanitizer: data race') data races"
