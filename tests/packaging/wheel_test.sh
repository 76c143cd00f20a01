#!/usr/bin/env bash
# The wheel installs into a fresh venv without torch, DPDK or a compiler, and sums there.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
python=/usr/bin/python3
"$python" -c 'import ensurepip' 2>/dev/null || skip "python3-venv is not installed"

"$SOURCE/client/python/build_wheel.sh" "$BUILD" "$WORK/dist" "$python" >"$WORK/log" 2>&1 ||
  fail "build_wheel.sh: $(cat "$WORK/log")"
"$python" -m venv "$WORK/venv"
"$WORK/venv/bin/python" -m pip install --quiet --no-index --no-deps "$WORK"/dist/*.whl

# Elsewhere, so that the source tree is not what is imported; no compiler on the PATH.
cd "$WORK"
env -i HOME="$WORK" PATH="$WORK/venv/bin" "$WORK/venv/bin/python" - >"$WORK/out" <<'PYTHON'
import array
import sys

import sluice
assert "torch" not in sys.modules and sluice.__file__.startswith(sys.prefix), sluice.__file__
with sluice.Job([("values", 4, "float32")], "inproc://wheel", rank=0, world_size=1) as job:
    values = array.array("f", [1, 2, 3, 4])
    job.submit("values", values)
    job.wait_step(timeout=10)
print("version", sluice.__version__, "sum", *values)
PYTHON
expect_line "$WORK/out" '^version 0\.1\.0 sum 1\.0 2\.0 3\.0 4\.0$'
