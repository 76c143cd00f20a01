#!/usr/bin/env bash
# Read by the tests in clean roots, after common.sh: minimal roots of Debian's releases, made by
# debootstrap and kept in BUILD/roots with the packages that apt has fetched. Each use is an overlay
# of one, thrown away at the end. A mount namespace has all mounts, so none is left. As root alone.
[[ $(id -u) -eq 0 ]] || skip "clean roots need root"
need debootstrap unshare chroot
if [[ ${SLUICE_ROOTS:-} != "$$" ]]; then
  rmdir "$WORK"
  SLUICE_ROOTS=$$ exec unshare --mount --propagation private "$0" "$@"
fi
roots=$BUILD/roots root=
# Nothing is mounted below WORK, which is removed with all that is in it.
opened=()
close_roots() {
  for place in "${opened[@]}"; do umount -l -R "$place" && rmdir "$place"; done
  rm -rf -- "$WORK"
}
trap close_roots EXIT
export DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8

# base RELEASE: its minimal root is in $roots/RELEASE; fails where it can't be had.
base() {
  [[ ! -e $roots/$1/.done ]] || return 0
  rm -rf "${roots:?}/$1"
  mkdir -p "$roots"
  debootstrap --variant=minbase "$1" "$roots/$1" "${2:-http://deb.debian.org/debian}" \
    >"$roots/$1.log" 2>&1 || return 1
  chroot "$roots/$1" apt-get update -q >>"$roots/$1.log" 2>&1 || return 1
  touch "$roots/$1/.done"
}

# open_root RELEASE: a copy of it in $root, with the devices of a container.
open_root() {
  local place
  place=$(mktemp -d "$WORK/$1.XXXX")
  root=$(mktemp -d "$roots/open.XXXX")
  mkdir -p "$place"/{upper,work} "$roots/$1.archives/partial"
  mount -t overlay overlay "$root" \
    -o "lowerdir=$roots/$1,upperdir=$place/upper,workdir=$place/work" ||
    skip "no overlay file system here"
  opened+=("$root")
  mount --bind "$roots/$1.archives" "$root/var/cache/apt/archives"
  mount -t proc proc "$root/proc"
  mount --rbind /dev "$root/dev"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # packages start no services
  chmod +x "$root/usr/sbin/policy-rc.d"
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/thrown-away" # no wait for the disk
}

# Mounts of a folder of this machine, for reading alone.
lend() {
  mkdir -p "$root$2"
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
}

# inside COMMAND...: in $root, without this machine's variables. Its words are shown if it fails.
inside() {
  env -i "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root \
    "DEBIAN_FRONTEND=$DEBIAN_FRONTEND" "LANG=$LANG" \
    chroot "$root" "$@" >"$WORK/out" 2>&1 ||
    fail "$(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"): $*: $(tail -n 40 "$WORK/out")"
}

install() { inside apt-get install --no-install-recommends --yes -q "$@"; }

# next_version RELEASE N FILE: the package sluiced as a later release, with another number alone.
next_version() {
  rm -rf "$WORK/next"
  dpkg-deb -R "$roots/$1.packages"/sluiced_*.deb "$WORK/next"
  sed -i "s/^Version: .*/&+$2/" "$WORK/next/DEBIAN/control"
  dpkg-deb --root-owner-group -b "$WORK/next" "$3" >/dev/null
}

# row CELL...: prints a row of the table in docs/results.md.
row() {
  printf '| %s ' "$@"
  printf '|\n'
}
