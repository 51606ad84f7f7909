#!/usr/bin/env bash
# Compare every stub with its compiled module, that of the installed shmring. Arguments: those of stubtest.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t modules < <(find shmring -name '*.pyi' | sed 's|/|.|g; s|\.pyi$||' | sort)
stubtest --mypy-config-file pyproject.toml --allowlist tests/meta/stubs.txt --ignore-unused-allowlist "$@" "${modules[@]}"
