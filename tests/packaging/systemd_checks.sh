#!/usr/bin/env bash
# Inside the machine of systemd_test.sh, as root: the service of the package, by systemctl alone.
set -euo pipefail
settings=/etc/sluice/appliance.toml

failed() {
  printf 'FAILED: line %s: %s\n' "$1" "$BASH_COMMAND"
  systemctl status --no-pager --full sluiced || true
  journalctl --no-pager -n 30 -u sluiced
}
trap 'failed $LINENO' ERR

shown() { systemctl show --value --property "$1" sluiced; }
# until_true SECONDS COMMAND...: waits for a condition.
until_true() {
  local tenths=$((10 * $1))
  shift
  until "$@"; do
    ((tenths-- > 0)) || return 1
    sleep 0.1
  done
}
# shellcheck disable=SC2053 # a pattern
told() { [[ $(shown StatusText) == $1 ]]; }
another_process() { [[ $(shown ActiveState) == active && $(shown MainPID) -ne $1 ]]; }
ended() { [[ $(shown ActiveState) == inactive ]]; }
passed() { printf 'ok: %s\n' "$*"; }

# Two workers' machines: namespaces behind the box's two ports.
for port in 0 1; do
  ip netns add "worker$port"
  ip link add "port$port" type veth peer name eth0 netns "worker$port"
  ip link set "port$port" up
  ip -n "worker$port" address add "10.77.0.1$port/24" dev eth0
  # A cable would carry whole checksums.
  ip netns exec "worker$port" ethtool -K eth0 tx off >/dev/null
  ip -n "worker$port" link set eth0 up
  ip -n "worker$port" link set lo up
done
printf 'secret of the rack' >/etc/sluice/secret
chown root:sluice /etc/sluice/secret
chmod 640 /etc/sluice/secret
cat >"$settings" <<'TOML'
[appliance]
address = "10.77.0.1/24"
secret_file = "/etc/sluice/secret"
log_level = "info"

[[port]]
name = "worker0"
type = "af_packet"
interface = "port0"

[[port]]
name = "worker1"
type = "af_packet"
interface = "port1"

[metrics]
address = "127.0.0.1:9464"
TOML
doctor() {
  ip netns exec worker0 env SLUICE_ADDRESS=udp://10.77.0.1 \
    "SLUICE_SECRET=$(cat /etc/sluice/secret)" sluice doctor >/tmp/doctor 2>&1 || {
    cat /tmp/doctor
    return 1
  }
}

systemctl start sluiced # returns at READY=1
[[ $(shown ActiveState) == active ]]
told 'ready: 10.77.0.1 UDP port 7700*'
[[ $(stat -c %U "/proc/$(shown MainPID)") == sluice ]]
doctor
passed "started as the user sluice, READY, a sum over a port"

grep -L '^CapPrm:.*0000000000000000$' "/proc/$(shown MainPID)"/task/*/status >/tmp/with || true
[[ ! -s /tmp/with ]]
passed "no thread has a capability"

exposure=$(systemd-analyze security --no-pager sluiced.service |
  sed -n 's/.*Overall exposure.*: \([0-9.]*\).*/\1/p')
awk -v is="$exposure" 'BEGIN { exit !(is != "" && is <= 2.0) }'
passed "systemd-analyze security: $exposure"

sluicectl status | grep -q '^ready$'
[[ $(stat -c %U:%G:%a /run/sluice/control.sock) == sluice:sluice:600 ]]
passed "sluicectl"

pid=$(shown MainPID)
sed -i 's/^log_level = .*/log_level = "debug"/' "$settings"
systemctl reload sluiced
until_true 60 sh -c \
  'journalctl -u sluiced --no-pager | grep -q "SIGHUP: settings that have changed: 1"'
sed -i 's/^log_level = .*/log_level = "loud"/' "$settings"
if systemctl reload sluiced; then false; fi
[[ $(shown MainPID) -eq $pid && $(shown ActiveState) == active ]]
sed -i 's/^log_level = .*/log_level = "info"/' "$settings"
passed "reload; a wrong file is refused and the process goes on"

ip link set port1 down
until_true 60 told 'not ready: port "worker1" is down*'
ip link set port1 up
until_true 60 told 'ready: *'
passed "systemctl status names a port that is down"

pid=$(shown MainPID)
kill -STOP "$pid"
until_true 240 another_process "$pid"
journalctl -u sluiced --no-pager | grep -q 'Watchdog timeout'
doctor
passed "the watchdog ends a process that stands still, and it comes back"

pid=$(shown MainPID)
kill -KILL "$pid"
until_true 60 another_process "$pid"
doctor
passed "back after kill -9"

pid=$(shown MainPID)
dpkg -i /upgrade/good.deb >/tmp/dpkg 2>&1
until_true 60 another_process "$pid"
pid=$(shown MainPID)
cp "$settings" /tmp/good.toml
echo 'nonsense = 1' >>"$settings"
dpkg -i --force-confold /upgrade/bad.deb >/tmp/dpkg 2>&1
grep -q 'was not restarted' /tmp/dpkg
[[ $(shown MainPID) -eq $pid && $(shown ActiveState) == active ]]
cp /tmp/good.toml "$settings"
doctor
passed "an upgrade restarts it, and leaves it alone if its settings do not pass"

sluicectl drain >/dev/null
until_true 60 ended
[[ $(shown Result) == success && $(shown ExecMainStatus) == 0 ]]
passed "drained: it ends, and systemd starts it no more"

systemctl start sluiced
systemctl stop sluiced
[[ $(shown ActiveState) == inactive && $(shown Result) == success ]]
[[ ! -e /run/sluice ]]
passed "stopped, nothing left in /run"

mkdir -p /etc/systemd/system/sluiced.service.d
cp /srv/sluiced-devices.conf /etc/systemd/system/sluiced.service.d/
systemctl daemon-reload
sed -i 's/"af_packet"/"af_xdp"/' "$settings"
systemctl start sluiced
doctor
[[ $(sed -n 's/^CapPrm:\t0*//p' "/proc/$(shown MainPID)/status") == 1000 ]]
systemctl stop sluiced
if ip -d link show port0 | grep -q xdp; then false; fi
passed "af_xdp ports with sluiced-devices.conf, CAP_NET_ADMIN alone stays"

echo "all checks passed"
