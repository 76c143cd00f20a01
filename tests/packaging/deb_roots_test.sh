#!/usr/bin/env bash
# The Debian packages, made by `./run package` in a clean root of Debian 12 and of 13, and used in
# another: installed, upgraded while the service runs (with and without settings that pass), purged
# without a trace. Prints a table.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/packaging/roots.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/roots.sh"

# make_packages RELEASE: into $roots/RELEASE.packages. With this machine's ccache a second run is
# short, since the source is where it is outside.
make_packages() {
  local cache
  base "$1" || fail "no root of $1: $(tail -n 1 "$roots/$1.log")"
  open_root "$1"
  mkdir -p "$root$SOURCE/dist" "$roots/$1.packages"
  tar -C "$SOURCE" --exclude=./build --exclude=./dist --exclude=./.git -c . |
    tar -C "$root$SOURCE" -x
  mount --bind "$roots/$1.packages" "$root$SOURCE/dist"
  rm -f "$roots/$1.packages"/*
  if cache=$(ccache --get-config cache_dir 2>/dev/null); then
    install ccache
    mkdir -p "$root$cache"
    mount --bind "$cache" "$root$cache"
    mkdir -p "$root/root/.config/ccache"
    { ccache -p | sed -n 's/^([^)]*\.conf) //p' && echo "cache_dir = $cache"; } \
      >"$root/root/.config/ccache/ccache.conf"
  fi
  inside "$SOURCE/run" package --yes
}

# What an administrator sees of the file system, without records, caches and logs of apt and dpkg.
files_of() {
  find "$root" -xdev \( -path "$root/proc" -o -path "$root/dev" -o -path "$root/run" -o \
    -path "$root/packages" -o \
    -path "$root/var/lib/apt" -o -path "$root/var/lib/dpkg" -o -path "$root/var/cache" -o \
    -path "$root/var/log" -o -path "$root/tmp" -o -path "$root/etc/ld.so.cache" -o \
    -name "*.pyc" -o -name "__pycache__" \) -prune -o \
    ! -name 'passwd-' ! -name 'group-' ! -name 'shadow-' ! -name 'gshadow-' -print | sort
}

# As under systemd, whose programs note what they are asked.
pretend_systemd() {
  mkdir -p "$root/run/systemd/system"
  for tool in systemctl deb-systemd-invoke; do
    printf '#!/bin/sh\necho "%s $*" >>/calls\n' "$tool" >"$root/usr/local/bin/$tool"
    chmod +x "$root/usr/local/bin/$tool"
  done
}

try_packages() {
  local release=$1 version
  open_root "$release"
  lend "$roots/$release.packages" /packages
  install adduser python3 systemd udev # what stays when the packages go
  files_of >"$WORK/before"
  inside sh -c 'apt-get install --no-install-recommends --yes -q /packages/*.deb'
  inside sluiced --check-config --config /etc/sluice/appliance.toml
  inside sluicectl --help
  inside sluice doctor
  expect_line "$WORK/out" '^ok +library '
  inside getent passwd sluice

  pretend_systemd
  next_version "$release" 1 "$root/next.deb"
  inside dpkg -i /next.deb
  expect_line "$root/calls" '^deb-systemd-invoke restart sluiced.service$'
  rm "$root/calls"
  printf 'nonsense = 1\n' >>"$root/etc/sluice/appliance.toml"
  next_version "$release" 2 "$root/next.deb"
  inside dpkg -i /next.deb
  expect_line "$WORK/out" 'was not restarted'
  expect_line "$WORK/out" 'appliance.toml:[0-9]+: .*nonsense'
  if grep -q ' restart ' "$root/calls"; then fail "restarted with settings that do not pass"; fi
  rm -r "$root/run/systemd/system" "$root/usr/local/bin"/{systemctl,deb-systemd-invoke} \
    "$root/next.deb" "$root/calls"

  version=$(sed -n 's/^Version: //p' "$WORK/next/DEBIAN/control")
  # What only systemd recommends goes as well.
  inside apt-get -o APT::AutoRemove::RecommendsImportant=false \
    -o APT::AutoRemove::SuggestsImportant=false \
    purge --autoremove --yes -q sluiced libsluice0.3 libsluice-dev python3-sluice
  if chroot "$root" getent passwd sluice >/dev/null; then fail "the user sluice is left"; fi
  files_of | comm -13 "$WORK/before" - >"$WORK/left"
  [[ ! -s $WORK/left ]] || fail "$release: a purge leaves: $(cat "$WORK/left")"
  row "$release" "${version%+*}" "installed, upgraded, a wrong file refused, nothing left"
}

releases=("${@:3}")
[[ ${#releases[@]} -gt 0 ]] || releases=(bookworm trixie)
for release in "${releases[@]}"; do
  make_packages "$release"
  try_packages "$release"
done
