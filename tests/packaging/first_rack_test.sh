#!/usr/bin/env bash
# docs/first_rack.md as a new operator follows it: a machine of Debian 12 with nothing but systemd
# is the box, two bare roots in it are the workers' machines. first_rack_steps.sh runs the page's
# own commands and prints how long each step took. Needs Debian's mirror.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/packaging/roots.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/roots.sh"
# shellcheck source=tests/packaging/machine.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/machine.sh"

base bookworm || fail "no root: $(tail -n 1 "$roots/bookworm.log")"
open_root bookworm
install systemd systemd-sysv udev ethtool iproute2 iputils-ping procps
for worker in 0 1; do
  mkdir "$root/worker$worker"
  tar -C "$roots/bookworm" -c . | tar -C "$root/worker$worker" -x
  chroot "$root/worker$worker" apt-get install --no-install-recommends --yes -q iproute2 \
    iputils-ping procps >"$WORK/out" 2>&1 || fail "a worker's root: $(tail "$WORK/out")"
  cp "${packages[@]}" "$root/worker$worker/root/"
done
cp "${packages[@]}" "$SOURCE/docs/first_rack.md" "$(dirname "$0")/first_rack_steps.sh" "$root/srv/"
need slirp4netns
boot first_rack_steps.sh internet
