#!/usr/bin/env bash
# The wheel of `./run wheel` in clean roots of Debian 11, 12 and 13, with each one's own Python and,
# in that of Debian 12, the others that pyenv has: installed without a network, it is imported,
# `doctor` looks at the machine, and two ranks sum over inproc://. Prints a table.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/packaging/roots.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/roots.sh"

"$SOURCE/run" wheel --yes >"$WORK/wheel.log" 2>&1 || fail "./run wheel: $(tail "$WORK/wheel.log")"
wheels=("$SOURCE"/dist/sluice_net-*-manylinux_2_28_*.whl)
[[ ${#wheels[@]} -eq 1 ]] || fail "not one wheel but: ${wheels[*]}"

cat >"$WORK/sum.py" <<'PYTHON'
import array, platform, sluice, threading
def worker(rank):
    with sluice.Job([("a", 4, "float32")], "inproc://roots", rank=rank, world_size=2,
                    run_id=1) as job:
        data = array.array("f", [rank, 2, 4, 6 * rank])
        job.submit(0, data.buffer_info()[0])
        job.wait_step(timeout=300)
        sums[rank] = data.tolist()
sums = [None, None]
threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert sums == [[0.5, 2.0, 4.0, 3.0]] * 2, sums
print(platform.python_version(), *platform.libc_ver())
PYTHON

# try_wheel RELEASE PYTHON: in $root.
try_wheel() {
  rm -rf "$root/venv"
  inside "$2" -m venv /venv
  inside /venv/bin/python -m pip install --quiet --no-index "/dist/${wheels[0]##*/}"
  inside /venv/bin/python -m sluice doctor
  expect_line "$WORK/out" '^ok +library .* at /venv/'
  inside /venv/bin/python /sum.py
  row "$1" "$(cat "$WORK/out")" "imported, \`doctor\`, sum"
  tried=$((tried + 1))
}

tried=0
for release in bullseye bookworm trixie; do
  base "$release" || {
    row "$release" "" "no root: $(tail -n 1 "$roots/$release.log")"
    continue
  }
  open_root "$release"
  lend "$SOURCE/dist" /dist
  cp "$WORK/sum.py" "$root/"
  install python3 python3-venv
  try_wheel "$release" python3
  if [[ $release != bookworm ]] || ! command -v pyenv >/dev/null; then continue; fi
  # What pyenv compiles links against these.
  install libbz2-1.0 libffi8 liblzma5 libreadline8 libsqlite3-0 libssl3 zlib1g
  for python in "$(pyenv root)"/versions/3.*; do
    minor=${python##*/3.}
    [[ ${minor%%.*} -ge 9 ]] || continue
    lend "$python" "$python"
    try_wheel "$release" "$python/bin/python3"
  done
done
((tried > 1)) || fail "the wheel was tried in $tried roots"
