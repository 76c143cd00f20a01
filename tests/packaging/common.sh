#!/usr/bin/env bash
# Read by the packaging tests: SOURCE and BUILD from the arguments, a folder WORK that is removed.
set -euo pipefail
# shellcheck disable=SC2034 # used by the scripts that read this file
SOURCE=$1 BUILD=$2
WORK=$(mktemp -d)
trap 'rm -rf -- "$WORK"' EXIT

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

skip() {
  printf 'skipped: %s\n' "$*"
  exit 77
}

need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
}

# expect_line FILE REGEX: some line matches.
expect_line() {
  grep -qE -- "$2" "$1" || {
    cat "$1" >&2
    fail "no line matches: $2"
  }
}
