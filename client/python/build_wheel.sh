#!/usr/bin/env bash
# Builds the wheel from what CMake has built: build_wheel.sh BUILD_DIR OUT_DIR [PYTHON].
# Prints the path of the wheel. Needs no network.
set -euo pipefail
[[ $# -ge 2 ]] || { echo "usage: $0 BUILD_DIR OUT_DIR [PYTHON]" >&2; exit 2; }
SLUICE_BUILD_DIR=$(realpath "$1") exec "${3:-/usr/bin/python3}" \
  "$(dirname "$(realpath "$0")")/wheel_backend.py" "$2"
