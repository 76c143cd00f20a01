#!/usr/bin/env bash
# Makes the Debian packages: build.sh BUILD_DIR OUT_DIR. Takes the programs of a build tree, in
# which sluiced, sluice and sluice_dpdk_plugin are built, and prints the packages' paths. What
# is in which package: libsluice0.3.install and its like; the rest is debhelper's: control, rules,
# changelog, copyright.
set -euo pipefail
[[ $# -eq 2 ]] || { echo "usage: $0 BUILD_DIR OUT_DIR" >&2; exit 2; }
SLUICE_BUILD=$(realpath "$1")
export SLUICE_BUILD
mkdir -p "$2"
out=$(realpath "$2")
root=$(realpath "$(dirname "$(realpath "$0")")/../..")
scratch=$(mktemp -d) # dpkg-buildpackage writes into the tree and beside it
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/sluice"
cd "$scratch/sluice"
cp -r "$root/config/debian" debian
ln -s "$root"/{client,config,CHANGELOG.md} .
cp config/deploy/sluiced.service debian/
for package in sluiced libsluice0.3 libsluice-dev python3-sluice; do
  printf '%s\n' '# The project has no mailing list.' bogus-mail-host \
    bogus-mail-host-in-debian-changelog >"debian/$package.lintian-overrides"
done
# -d: a build tree needs no more packages than are here.
dpkg-buildpackage -b -us -uc -d -ui >"$scratch/log" 2>&1 || {
  cat "$scratch/log" >&2
  exit 1
}
for package in "$scratch"/*.deb; do
  cp "$package" "$out"
  printf '%s\n' "$out/${package##*/}"
done
