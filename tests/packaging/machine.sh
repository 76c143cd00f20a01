#!/usr/bin/env bash
# shellcheck disable=SC2154 # roots.sh sets root
# Read by tests that need a machine with systemd, after roots.sh: the files of $root in namespaces
# of their own, with systemd as the first process.
need pivot_root
packages=("$roots"/bookworm.packages/*.deb)
[[ -e ${packages[0]} ]] || skip "deb_roots_test.sh has made no packages in $roots"

# In the namespaces: the file systems of a container, then systemd.
start_systemd() {
  local device
  cd "$1" || return
  mount -t proc proc proc
  mount -t sysfs sys sys
  mount -t cgroup2 cgroup sys/fs/cgroup || mount -t cgroup2 -o nsdelegate cgroup sys/fs/cgroup
  mount -t tmpfs -o mode=755 dev dev
  mkdir -p dev/pts dev/shm dev/net
  for device in null zero full random urandom tty net/tun; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
  done
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  mount -t tmpfs shm dev/shm
  mount -t tmpfs -o mode=755 run run
  pivot_root . mnt
  exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /bin/sh -c \
    'umount -l /mnt && exec /lib/systemd/systemd --log-target=journal' >/dev/null 2>&1 </dev/null
}

# boot SCRIPT [internet]: the machine runs /srv/SCRIPT once it is up, prints what that says, and
# ends; fails unless the last line is "all checks passed". With `internet` its tap0 leads there, DNS
# at 10.0.2.3.
boot() {
  local script=$1 machine internet=
  cat >"$root/etc/systemd/system/checks.service" <<UNIT
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /srv/$script
StandardOutput=append:/srv/checks
StandardError=append:/srv/checks
TimeoutStartSec=infinity
ExecStopPost=/bin/systemctl poweroff --force --force
UNIT
  mkdir -p "$root/etc/systemd/system/default.target.wants"
  ln -s /etc/systemd/system/checks.service "$root/etc/systemd/system/default.target.wants/"
  rm "$root/usr/sbin/policy-rc.d" "$root/etc/dpkg/dpkg.cfg.d/thrown-away"
  umount -l -R "$root/dev" "$root/proc" "$root/var/cache/apt/archives"
  export -f start_systemd
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --fork --kill-child --pid --mount --net --uts --ipc --cgroup \
    /bin/bash -euc 'start_systemd "$1"' machine "$root" >"$WORK/machine" 2>&1 &
  machine=$!
  if [[ ${2:-} == internet ]]; then
    until [[ -n $(pgrep -P "$machine") ]]; do sleep 0.1; done
    slirp4netns --configure --mtu=1500 "$(pgrep -P "$machine")" tap0 >"$WORK/internet" 2>&1 &
    internet=$!
  fi
  wait "$machine" || true
  [[ -z $internet ]] || kill "$internet" 2>/dev/null || true
  cat "$root/srv/checks" || true
  grep -qx 'all checks passed' "$root/srv/checks" ||
    fail "the machine did not pass: $(cat "$WORK/machine")"
}
