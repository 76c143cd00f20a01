#!/usr/bin/env bash
# What ./run installs or fetches with apt, and how; it sources this. Uses its say() and die(), its
# variable assume_yes, and the list in config/packages.

# The packages of the named groups, from config/packages.
packages_of() {
  local line group
  while IFS= read -r line; do
    for group in "$@"; do
      if [[ $line == "$group:"* ]]; then
        tr -s ' ' '\n' <<<"${line#*:}" | sed '/^$/d'
      fi
    done
  done <config/packages
}

# Lines of the first file that the second lacks.
without() {
  LC_ALL=C comm -23 <(LC_ALL=C sort -u "$1") <(LC_ALL=C sort -u "$2")
}

# dpkg and apt are asked for all packages in one call: each takes half a second in a container.
missing_packages() {
  local names
  mapfile -t names < <(packages_of "$@")
  without <(printf '%s\n' "${names[@]}") <(
    # shellcheck disable=SC2016 # dpkg expands it
    dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${names[@]}" 2>/dev/null |
      sed -n 's/ installed$//p'
  )
}

# Of each package that apt knows a line: its name, and the KiB to download and when installed.
apt_facts() {
  # Size is in bytes, Installed-Size in KiB.
  { LC_ALL=C apt-cache show --no-all-versions "$@" 2>/dev/null || true; } | awk '
    function tell() { if (name != "") print name, download, installed; name = "" }
    /^Package:/ { tell(); name = $2 }
    /^Size:/ { download = $2 / 1024 }
    /^Installed-Size:/ { installed = $2 }
    END { tell() }'
}

# The packages are those of Debian 12 and 13. Said before anything is fetched.
check_release() {
  local id version name
  [[ -r /etc/os-release ]] || return 0
  { read -r id && read -r version && read -r name; } < <(
    # shellcheck source=/dev/null
    source /etc/os-release
    printf '%s\n' "${ID:-}" "${VERSION_ID:-}" "${PRETTY_NAME:-}"
  )
  case $id:$version in
    debian:12 | debian:13) ;;
    debian:[0-9] | debian:1[01])
      die "this is $name, and its compiler and DPDK are too old: build on Debian 12 or 13, for
  example in a container" ;;
    *) say "run: this is ${name:-a system without a name}; what was tried is Debian 12 and 13" ;;
  esac
}

# Fills as_root with what goes before a command that needs root; fails when there is no way.
as_root=()
find_root() {
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || return 1
    as_root=(sudo)
  fi
}

# KiB as text.
size() {
  awk -v kib="$1" 'BEGIN {
    if (kib < 1024) printf "%.0f KiB", kib; else printf "%.1f MiB", kib / 1024
  }'
}

# list_sizes FACTS NAME...
list_sizes() {
  local name download installed plan
  say "Debian packages that are missing:"
  printf '  %-24s %12s %12s\n' package download installed
  while read -r name download installed; do
    printf '  %-24s %12s %12s\n' "$name" "$(size "$download")" "$(size "$installed")"
  done <<<"$1"
  shift
  plan=$(LC_ALL=C apt-get install --print-uris --no-install-recommends --yes -q "$@" 2>/dev/null) ||
    return 0
  say "With what they depend on: $(grep -c "^'" <<<"$plan") files to fetch."
  sed -nE -e 's/^Need to get (.*) of archives\.$/  download: \1/p' \
    -e 's/^After this operation, (.*) of additional.*/  installed: \1/p' <<<"$plan"
}

apt_install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install --no-install-recommends --yes -q "$@" </dev/null
}

# Packages must not start services on a build machine: Prometheus' unit is masked beforehand, and
# package scripts are told not to start anything.
without_services() {
  local policy=/usr/sbin/policy-rc.d unit=/etc/systemd/system/prometheus.service own=no status=0
  if [[ ! -e $policy ]]; then
    own=yes
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
  fi
  [[ -e $unit ]] || "${as_root[@]}" ln -s /dev/null "$unit" 2>/dev/null || true
  "$@" || status=$?
  [[ $own == no ]] || "${as_root[@]}" rm -f "$policy"
  return "$status"
}

# Installs what the groups lack. Debian only; elsewhere the compiler says what is missing.
need_packages() {
  local names reply facts can_install=yes
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "run: no apt here; the packages of config/packages ($*) must be installed by other means"
    return 0
  fi
  mapfile -t names < <(missing_packages "$@")
  [[ ${#names[@]} -gt 0 ]] || return 0
  check_release
  find_root || can_install=no
  facts=$(apt_facts "${names[@]}")
  if [[ $can_install == yes && $(grep -c . <<<"$facts") -lt ${#names[@]} ]]; then
    say "The package lists don't know all of ${names[*]}: updating them."
    "${as_root[@]}" apt-get update -q </dev/null ||
      die "apt-get update failed; see its message above"
    facts=$(apt_facts "${names[@]}")
  fi
  list_sizes "$facts" "${names[@]}"
  [[ $can_install == yes ]] || die "installing them needs root, and there is no sudo. As root:
  apt-get update && apt-get install --no-install-recommends ${names[*]}"
  if [[ -t 0 && ${assume_yes:-no} == no ]]; then
    read -r -p "Install them now? [Y/n] " reply
    [[ $reply =~ ^([yY].*)?$ ]] || die "nothing was installed"
  fi
  local install=(apt_install)
  [[ ${CI:-} != true ]] || install=(without_services apt_install)
  # Lists that are out of date name files that are gone: update them and try once more.
  "${install[@]}" "${names[@]}" || {
    "${as_root[@]}" apt-get update -q </dev/null && "${install[@]}" "${names[@]}"
  } || die "apt-get could not install the packages; see its message above"
}

# Debian's kernel, unpacked into the folder and not installed: tests boot it in a virtual machine.
# Without it they are skipped.
fetch_kernel() {
  local folder=$1 name
  [[ ! -e $folder ]] || return 0
  name=$(LC_ALL=C apt-cache depends linux-image-amd64 2>/dev/null |
    sed -nE 's/^ *Depends: (linux-image-[0-9].*)/\1/p' | head -n 1) || true
  if [[ -z $name ]]; then
    say "run: apt knows no linux-image-amd64: no kernel to boot in a virtual machine"
    return 0
  fi
  say "Fetching $name, to boot it in a virtual machine."
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  if (cd "$folder.new" && apt-get download -q "$name" && dpkg-deb -x ./*.deb . && rm ./*.deb); then
    mv "$folder.new" "$folder"
  else
    say "run: apt-get could not fetch $name; see its message above"
  fi
}
