#!/usr/bin/env bash
#
# run.sh [NODES [COMMAND ...]] - the tests of this folder, and the page counts of docs/maintainers/placement-tests.md, inside a virtual
# machine with so many NUMA nodes (default 2), two processors each; or any other command, e.g.
#
#   tests/numa/run.sh 4
#   tests/numa/run.sh 2 python3 -m pytest -q tests/multiproc
#
# What it needs, and how the machine is made: tests/labs/README.md.

set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=${1:-2}
shift || true
[ $# -gt 0 ] || set -- bash -c 'python3 -m pytest -q -p no:cacheprovider tests/numa && python3 tests/numa/counts.py'
export LAB_PIP="${LAB_PIP:-numpy cython setuptools posix-ipc pytest pytest-benchmark hypothesis ml-dtypes}"
exec tests/labs/numa_vm.sh -n "$nodes" -c 2 -m $((nodes * 1024)) -b 'python3 setup.py -q build_ext --inplace' . \
    env PYTHONPATH=.:tests "$@"
