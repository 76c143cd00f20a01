#!/usr/bin/env bash
# The script `run` itself, in a tree of its own with stand-ins for apt and CMake: help, unknown
# commands, what it installs and how, and that nothing outlives an interruption.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

tree=$WORK/tree
mkdir -p "$tree/config" "$tree/client/python/sluice" "$tree/build/client" "$WORK/bin"
cp "$SOURCE/run" "$tree/run"
cp "$SOURCE"/config/packages{,.sh} "$tree/config/"
sed -i "s|/etc/os-release|$WORK/os-release|g" "$tree/config/packages.sh"
touch "$tree/build/client/libsluice.so"
cd "$tree"
unset CI

stand_in() {
  printf '#!/bin/bash\n%s\n' "$2" >"$WORK/bin/$1"
  chmod +x "$WORK/bin/$1"
}
# All is installed but g++ and what $WORK/missing names; an ordinary user with sudo.
touch "$WORK/missing" "$WORK/log"
stand_in dpkg-query "echo dpkg-query >>'$WORK/log'
for name in \"\${@:3}\"; do
  grep -qx -- \"\$name\" '$WORK/missing' || printf '%s installed\n' \"\$name\"
done"
stand_in apt-cache "echo apt-cache >>'$WORK/log'
printf 'Package: %s\nSize: 2048\nInstalled-Size: 4096\n\n' \"\${@:3}\""
stand_in apt-get "printf 'apt-get %s\n' \"\$*\" >>'$WORK/log'"
stand_in sudo "printf 'sudo %s\n' \"\$*\" >>'$WORK/log'"
stand_in id 'echo 1000'
stand_in ctest "printf 'ctest %s\n' \"\$*\" >>'$WORK/log'"
stand_in cmake "printf 'cmake %s\n' \"\$*\" >>'$WORK/log'"
mkdir -p build/linters/bin # as if PyPI's linters were there
ln -s /bin/true build/linters/bin/kubernetes-validate
export PATH=$WORK/bin:$PATH

# --- help
./run >"$WORK/out"
for command in demo test build bench swarm fuzz wheel package test-torch2 fmt; do
  expect_line "$WORK/out" "^  $command .*[a-z]"
done
status=0
./run nonsense >"$WORK/out" 2>&1 || status=$?
[[ $status -eq 2 ]] || fail "an unknown command ended with $status"
expect_line "$WORK/out" '^run: unknown command: nonsense$'
expect_line "$WORK/out" '^  demo '

# --- packages
./run build >"$WORK/out" 2>&1 || fail "nothing missing: $(cat "$WORK/out")"
if grep -q 'sudo' "$WORK/log"; then fail "installed although nothing was missing"; fi
expect_line "$WORK/log" '^cmake --build '
echo g++ >"$WORK/missing"
./run build </dev/null >"$WORK/out" 2>&1 || fail "g++ missing: $(cat "$WORK/out")"
expect_line "$WORK/out" '^  g\+\+ +2 KiB +4\.0 MiB$'
expect_line "$WORK/log" '^sudo env .*apt-get install --no-install-recommends --yes -q g\+\+$'
if grep -q 'prometheus$' "$WORK/log"; then fail "Prometheus was installed outside CI"; fi
: >"$WORK/log"
printf '%s\n' g++ cmake >"$WORK/missing"
./run build </dev/null >"$WORK/out" 2>&1 || fail "two are missing: $(cat "$WORK/out")"
expect_line "$WORK/log" '^sudo env .*apt-get install --no-install-recommends --yes -q cmake g\+\+$'
for tool in dpkg-query apt-cache; do
  [[ $(grep -cx "$tool" "$WORK/log") -eq 1 ]] || fail "$tool ran once a package: $(cat "$WORK/log")"
done

# --- the release: before anything is fetched
printf 'ID=debian\nVERSION_ID="11"\nPRETTY_NAME="Debian GNU/Linux 11"\n' >"$WORK/os-release"
: >"$WORK/log"
if ./run build </dev/null >"$WORK/out" 2>&1; then fail "Debian 11 was accepted"; fi
expect_line "$WORK/out" '^run: this is Debian GNU/Linux 11, .* build on Debian 12 or 13'
if grep -q apt "$WORK/log"; then fail "asked apt on Debian 11"; fi
printf 'ID=debian\nVERSION_ID="13"\nPRETTY_NAME="Debian GNU/Linux 13"\n' >"$WORK/os-release"
./run build </dev/null >"$WORK/out" 2>&1 || fail "Debian 13: $(cat "$WORK/out")"
if grep -q 'this is Debian' "$WORK/out"; then fail "Debian 13 is no surprise"; fi
printf 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04"\n' >"$WORK/os-release"
./run build </dev/null >"$WORK/out" 2>&1 || fail "Ubuntu: $(cat "$WORK/out")"
expect_line "$WORK/out" '^run: this is Ubuntu 24.04; what was tried is Debian 12 and 13$'
rm "$WORK/os-release"

# --- sanitizers
: >"$WORK/missing"
./run test --sanitize address -R wire >"$WORK/out" 2>&1 || fail "sanitize: $(cat "$WORK/out")"
expect_line "$WORK/log" '^cmake -S \. -B .*/build/sanitize-address .*-DSLUICE_SANITIZE=address'
expect_line "$WORK/log" '^cmake --build .*/build/sanitize-address .*--target sluice_sanitizable$'
expect_line "$WORK/log" '^ctest --test-dir .*/build/sanitize-address .*-R wire$'
status=0
./run test --sanitize memory >"$WORK/out" 2>&1 || status=$?
[[ $status -eq 1 ]] || fail "an unknown sanitizer ended with $status"
expect_line "$WORK/out" "^run: --sanitize takes thread or address, not 'memory'$"

# --- tests that take long, and what only they want
echo qemu-system-x86 >"$WORK/missing"
: >"$WORK/log"
./run test -R wire >"$WORK/out" 2>&1 || fail "test: $(cat "$WORK/out")"
if grep -qE 'qemu|-C full' "$WORK/log"; then fail "an ordinary test run: $(cat "$WORK/log")"; fi
./run test quick </dev/null >"$WORK/out" 2>&1 || fail "test quick: $(cat "$WORK/out")"
expect_line "$WORK/log" '^ctest --test-dir .* -L \^\(style\|unit\|packets\)\$$'
expect_line "$WORK/log" '^cmake --build .* --target sluice_quick$'
./run test full -R wire </dev/null >"$WORK/out" 2>&1 || fail "test full: $(cat "$WORK/out")"
expect_line "$WORK/log" '^sudo env .*apt-get install .*qemu-system-x86'
expect_line "$WORK/log" '^ctest --test-dir .* -C full -R wire$'
expect_line "$WORK/out" 'no kernel to boot'
: >"$WORK/missing"

# --- fuzz targets: all of them, with what was asked for; one that fails fails the script
mkdir -p "$tree/build/sanitize-address/tests/fuzz"
for target in parse frame switch config aggregator; do
  printf '#!/bin/bash\nprintf "%%s\\n" "%s $*" >>"%s"\n' "$target" "$WORK/log" \
    >"$tree/build/sanitize-address/tests/fuzz/fuzz_$target"
  chmod +x "$tree/build/sanitize-address/tests/fuzz/fuzz_$target"
done
./run fuzz --seconds 7 >"$WORK/out" 2>&1 || fail "fuzz: $(cat "$WORK/out")"
for target in parse frame switch config aggregator; do
  expect_line "$WORK/log" "^$target --seconds 7$"
done
printf '#!/bin/bash\nexit 1\n' >"$tree/build/sanitize-address/tests/fuzz/fuzz_frame"
status=0
./run fuzz >"$WORK/out" 2>&1 || status=$?
[[ $status -eq 1 ]] || fail "a failing fuzz target ended with $status"
echo g++ >"$WORK/missing"

# --- interruption: a child in its group, one in a session of its own, one that ignores SIGTERM
cat >client/python/sluice/__main__.py <<'PYTHON'
import pathlib, signal, subprocess, time
children = [
    subprocess.Popen(["sleep", "300"]),
    subprocess.Popen(["sleep", "300"], start_new_session=True),
    subprocess.Popen(["sleep", "300"], start_new_session=True,
                     preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
]
pathlib.Path("pids").write_text("".join(f"{child.pid}\n" for child in children))
pathlib.Path("ready").touch()
time.sleep(300)
PYTHON
./run demo >"$WORK/out" 2>&1 &
script=$!
for _ in $(seq 100); do
  [[ -e ready ]] && break
  sleep 0.1
done
[[ -e ready ]] || fail "the stand-in did not start: $(cat "$WORK/out")"
kill -TERM "$script"
status=0
wait "$script" || status=$?
[[ $status -eq 143 ]] || fail "interrupted with SIGTERM it ended with $status: $(cat "$WORK/out")"
while read -r pid; do
  if kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.*Z' "/proc/$pid/status"; then
    kill -KILL "$pid"
    fail "a child outlived the script"
  fi
done <pids
