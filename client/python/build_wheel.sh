#!/usr/bin/env bash
# Builds the wheel from what CMake has built: build_wheel.sh BUILD_DIR OUT_DIR [PYTHON].
# Prints the path of the wheel. Needs no network: Debian's python3-setuptools and python3-wheel.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: $0 BUILD_DIR OUT_DIR [PYTHON]" >&2; exit 2; }
SLUICE_BUILD_DIR=$(realpath "$1")
export SLUICE_BUILD_DIR
mkdir -p "$2"
out=$(realpath "$2")
scratch=$(mktemp -d) # setuptools writes beside its input
trap 'rm -rf "$scratch"' EXIT
here=$(dirname "$(realpath "$0")")
cp -r "$here/." "$here/../../LICENSE" "$scratch"
cd "$scratch"
"${3:-/usr/bin/python3}" -B -c 'import sys
from setuptools import build_meta
print(f"{sys.argv[1]}/{build_meta.build_wheel(sys.argv[1])}", file=open(3, "w"))' "$out" 3>&1 >&2
