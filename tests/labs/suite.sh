#!/usr/bin/env bash
#
# suite.sh - the suite, or some of its files, in a lab: file by file, to be stopped and gone on with at will
#
#   suite.sh [-n NODES] [-c CPUS] [-x WORDS] [-k COUNT] [-t SECONDS] DIR LAB [FILE...]
#   suite.sh DIR
#
#   -n NODES    of numa_vm: its nodes, with 2 GiB of memory each (default 2)
#   -c CPUS     of numa_vm: processors in each node (default 1: quickest where this machine has no more than nodes)
#   -x WORDS    put before each call of the lab, e.g. 'nice -n 19'
#   -k COUNT    at most so many files in one call of the lab (default: all)
#   -t SECONDS  for one file, by the clock inside the lab (default 3600)
#
# LAB is numa_vm or arm64 (README.md has what they need); the files are all of tests/ by default, those that start
# processes first. DIR receives: tree/, the project as the first call built it; FILE.log, the output of pytest for a
# file, with "/" as "."; FILE.log.part, the same for a file that is not finished. A file with a log is not run again:
# the same command continues where the last one was stopped. At the end, or with DIR alone, it prints a summary.
#
# Exit status: 0 if every file that was asked for has run and none failed.
#
# Environment: that of the labs, and
#   SUITE_BUILD       how tree/ is built       (python3 setup.py -q build_ext --inplace; on numa_vm that of tests/faults too)
#   SHMRING_PATIENCE  how many times as long as elsewhere tests wait for ranks      (10)

set -euo pipefail
cd "$(dirname "$0")/../.."

die() { echo "suite: $*" >&2; exit 125; }
usage() { sed -n '3,12p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 125; }

nodes=2 cpus=1 prefix=() most=0 seconds=3600
while getopts n:c:x:k:t: option; do
    case $option in
        n) nodes=$OPTARG ;; c) cpus=$OPTARG ;; x) read -ra prefix <<< "$OPTARG" ;; k) most=$OPTARG ;; t) seconds=$OPTARG ;; *) usage ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 1 ] || usage
mkdir -p "$1"
dir=$(cd "$1" && pwd) lab=${2:-}
shift $(($# < 2 ? $# : 2))

log_of() { echo "$dir/${1//\//.}.log"; }

# report: a line a file, from the last line of each log, "== 3 failed, 20 passed in 14.15s ==".
report() {
    local log
    for log in "$dir"/*.log "$dir"/*.log.part; do
        [ ! -e "$log" ] || awk -v name="${log##*/}" '
            { last = $0 ~ /^=+ .* in [0-9.]+s.* =+$/ ? $0 : last }
            END { gsub(/=+/, "", last); print name ":" (last ? last : " not through") }' "$log"
    done
    awk '/^=+ .* in [0-9.]+s.* =+$/ { for (i = 2; i < NF; i++) if ($i ~ /^[0-9]+$/) { sub(",", "", $(i + 1)); n[$(i + 1)] += $i } }
        END { printf "all:"; for (word in n) printf " %d %s", n[word], word; print "" }' "$dir"/*.log 2>/dev/null || true
}
[ -n "$lab" ] || { report; exit; }

export LAB_PIP="${LAB_PIP:-numpy cython setuptools posix-ipc pytest pytest-benchmark hypothesis ml-dtypes}"
export LAB_TIMEOUT="${LAB_TIMEOUT:-1000000}" LAB_BOOT_TIMEOUT="${LAB_BOOT_TIMEOUT:-1800}"
build='python3 setup.py -q build_ext --inplace'
case $lab in
    numa_vm)
        start=(tests/labs/numa_vm.sh -n "$nodes" -c "$cpus" -m $((nodes * 2048)))
        build+=' && PYTHONPATH=. python3 tests/faults/fault_build.py' ;;    # imports what was built: not if cross-compiled
    arm64) start=(tests/labs/arm64.sh) ;;
    *) die "no such lab: $lab" ;;
esac
if [ ! -e "$dir/tree.done" ]; then
    rm -rf "$dir/tree"
    "${start[@]}" -b "${SUITE_BUILD:-$build}" -k "$dir/tree" . true
    touch "$dir/tree.done"
fi

files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(cd tests && ls numa/test_*.py multiproc/test_*.py hostile/test_*.py \
    exhaustion/test_*.py stress/test_*.py soak/test_*.py faults/test_*.py models/test_*.py unit/test_*.py | sed 's|^|tests/|')
left=()
for file in "${files[@]}"; do
    [ -e "$(log_of "$file")" ] || left+=("$file")
done
[ "$most" -gt 0 ] || most=$((${#left[@]} + 1))

# What the lab runs: each file by itself, between two lines that say so.
each='seconds=$1; export SHMRING_PATIENCE=$2; shift 2
for file; do
    echo "==> $file"
    PYTHONPATH=. timeout -k 10 "$seconds" python3 -m pytest -v --tb=short -p no:cacheprovider "$file" 2>&1
    echo "<== $?"
done'
for ((i = 0; i < ${#left[@]}; i += most)); do
    log=
    "${prefix[@]}" "${start[@]}" "$dir/tree" bash -c "$each" each "$seconds" "${SHMRING_PATIENCE:-10}" "${left[@]:i:most}" |
        while IFS= read -r line; do
            case $line in
                '==> '*) log=$(log_of "${line#==> }"); : > "$log.part" ;;
                # also where a pytest that was ended has left its last line open
                *'<== '[0-9]*) mv "$log.part" "$log"; echo "${log##*/}: $(tail -n 1 "$log")" ;;
                *) [ -z "$log" ] || printf '%s\n' "$line" >> "$log.part" ;;
            esac
        done || true
done

report
for file in "${files[@]}"; do
    tail -n 1 "$(log_of "$file")" 2>/dev/null | grep -q ' in [0-9.]*s' || { echo "suite: $file is not through" >&2; bad=1; }
    ! tail -n 1 "$(log_of "$file")" 2>/dev/null | grep -Eq '[0-9] (failed|error)' || bad=1
done
exit "${bad:-0}"
