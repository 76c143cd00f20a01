#!/usr/bin/env bash
# `cmake --install` gives a tree against which C and C++ programs build, with CMake and pkg-config,
# also after it has been moved.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
need cmake cc c++ pkg-config

cmake --install "$BUILD" --prefix "$WORK/first" --component client >"$WORK/install.log" ||
  fail "cmake --install: $(cat "$WORK/install.log")"
mv "$WORK/first" "$WORK/prefix"
prefix=$WORK/prefix

# With the CMake package.
build_examples() {
  cmake -S "$SOURCE/client/examples" -B "$WORK/cmake" -DCMAKE_PREFIX_PATH="$prefix" &&
    cmake --build "$WORK/cmake"
}
build_examples >"$WORK/log" 2>&1 || fail "find_package(sluice): $(cat "$WORK/log")"
"$WORK/cmake/sum_c" inproc://c 0 1 >"$WORK/out"
expect_line "$WORK/out" '^sum of 1000 elements over 1 ranks: 1 2 3 '
"$WORK/cmake/groups_c" inproc://groups 0 1 >"$WORK/out"
expect_line "$WORK/out" '^rank 0: the sum of 1000000 elements is 1 each$'
"$WORK/cmake/average_cpp" inproc://cpp 2 >"$WORK/out"
expect_line "$WORK/out" '^average over 2 ranks: 0\.5$'

# With pkg-config, warnings as errors: the headers are clean for users who ask for that.
pc=$(find "$prefix" -name sluice.pc)
export PKG_CONFIG_PATH=${pc%/sluice.pc}
read -ra flags <<<"$(pkg-config --cflags --libs sluice)"
libdir=$(pkg-config --variable=libdir sluice)
cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$SOURCE/client/examples/sum.c" "${flags[@]}" \
  -o "$WORK/sum_pc" || fail "the C example does not build with pkg-config's flags"
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -pthread "$SOURCE/client/examples/average.cc" \
  "${flags[@]}" -o "$WORK/average_pc" ||
  fail "the C++ example does not build with pkg-config's flags"
export LD_LIBRARY_PATH=$libdir
"$WORK/sum_pc" inproc://c 0 1 >"$WORK/out"
expect_line "$WORK/out" '^sum of 1000 elements'
"$WORK/average_pc" inproc://cpp 2 >"$WORK/out"
expect_line "$WORK/out" '^average over 2 ranks'

# The plug-in, where it was built, is where the library looks for it.
if [[ -e $BUILD/client/libsluice_dpdk.so ]]; then
  [[ -e $libdir/sluice/libsluice_dpdk.so ]] || fail "libsluice_dpdk.so is not in sluice/"
fi

# Nothing but the C interface is exported, and the client needs no DPDK.
nm -D --defined-only "$libdir/libsluice.so" | awk '{ print $3 }' | sed 's/@.*//' |
  grep -vE '^(sluice_[a-z_]+|SLUICE_[0-9.]+|)$' >"$WORK/names" || true
[[ ! -s $WORK/names ]] || fail "exported besides sluice_*: $(head "$WORK/names")"
readelf -d "$libdir/libsluice.so" >"$WORK/dynamic"
expect_line "$WORK/dynamic" 'SONAME.*\[libsluice\.so\.0\.3\]'
if grep -E 'NEEDED.*librte_' "$WORK/dynamic"; then fail "libsluice needs DPDK"; fi
