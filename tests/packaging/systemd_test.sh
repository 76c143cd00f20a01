#!/usr/bin/env bash
# The installed service under a real systemd: a machine of namespaces boots Debian 12 with the
# packages that deb_roots_test.sh has made and runs systemd_checks.sh. Prints what was checked.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/packaging/roots.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/roots.sh"
# shellcheck source=tests/packaging/machine.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/machine.sh"

base bookworm || fail "no root: $(tail -n 1 "$roots/bookworm.log")"
open_root bookworm
lend "$roots/bookworm.packages" /packages
install systemd systemd-sysv udev ethtool iproute2 iputils-ping procps
inside sh -c 'apt-get install --no-install-recommends --yes -q /packages/*.deb'
mkdir "$root/upgrade"
next_version bookworm 1 "$root/upgrade/good.deb"
next_version bookworm 2 "$root/upgrade/bad.deb"
cp "$(dirname "$0")/systemd_checks.sh" "$SOURCE/config/deploy/sluiced-devices.conf" "$root/srv/"
umount "$root/packages"
boot systemd_checks.sh
