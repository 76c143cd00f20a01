#!/usr/bin/env bash
# The container images of config/deploy/cluster, built by buildah from the packages and the wheel
# that the tests in clean roots have made, and used: the box serves, a worker's `doctor` sums over
# it. Where no base image can be pulled, a minimal root of Debian 12 takes its place. podman reads
# the quadlet.
# shellcheck source=tests/packaging/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tests/packaging/roots.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/roots.sh"
need buildah ethtool ip
places=(--root "$WORK/images" --runroot "$WORK/run")
packages=("$roots"/bookworm.packages/*.deb)
wheels=("$SOURCE"/dist/sluice_net-*-manylinux_2_28_*.whl)
[[ -e ${packages[0]} ]] || skip "deb_roots_test.sh has made no packages in $roots"
[[ -e ${wheels[0]} ]] || skip "no wheel in dist/ (./run wheel makes it)"
base bookworm || fail "no root: $(tail -n 1 "$roots/bookworm.log")"

# Images and containers are in a place of their own. The processes share this machine's namespaces.
export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
printf '{"default": [{"type": "insecureAcceptAnything"}]}\n' >"$WORK/policy.json"
images() {
  local command=$1
  shift
  buildah "${places[@]}" "$command" "$@" >"$WORK/out" 2>"$WORK/log" ||
    fail "buildah $command $*: $(cat "$WORK/out" "$WORK/log")"
}

# import_base NAME PACKAGE...: a root with these packages under the name of an image.
import_base() {
  local name=$1 made
  shift
  open_root bookworm
  [[ $# -eq 0 ]] || install "$@"
  rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED # as in the image, where Python is not Debian's
  umount -l -R "$root/dev" "$root/proc" "$root/var/cache/apt/archives"
  images from scratch
  made=$(<"$WORK/out")
  images add "$made" "$root" /
  images commit --quiet --signature-policy "$WORK/policy.json" "$made" "$name"
  images rm "$made"
}

cluster=$SOURCE/config/deploy/cluster
base trixie || fail "no root: $(tail -n 1 "$roots/trixie.log")"
open_root trixie # Debian 12's podman has no quadlet
install podman
lend "$cluster" /units
inside env QUADLET_UNIT_DIRS=/units /usr/libexec/podman/quadlet -dryrun
expect_line "$WORK/out" '^ExecStart=/usr/bin/podman run .* localhost/sluiced$'
row quadlet "Debian 13" "podman makes a unit of it"

from=("$(sed -n 's/^FROM //p' "$cluster/box.containerfile")"
  "$(sed -n 's/^FROM //p' "$cluster/worker.containerfile")")
if buildah "${places[@]}" pull --quiet "${from[0]}" >/dev/null 2>&1; then
  buildah "${places[@]}" pull --quiet "${from[1]}" >/dev/null
  bases="from the registry"
else
  import_base "${from[0]}"
  import_base "${from[1]}" python3 python3-pip
  bases="from a minimal root"
fi
images build --pull-never --signature-policy "$WORK/policy.json" \
  -f "$cluster/box.containerfile" -t sluiced "$roots/bookworm.packages"
# Without torch, which is 3 GB and not ours.
sed 's/--no-cache-dir torch /--no-cache-dir --no-index /' "$cluster/worker.containerfile" \
  >"$WORK/worker.containerfile"
images build --pull-never --signature-policy "$WORK/policy.json" \
  -f "$WORK/worker.containerfile" -t sluice-worker "$SOURCE/dist"

# A box with one port, and a worker behind it.
box=sluice-images-$$-box worker=sluice-images-$$-worker
sluiced=
close() {
  kill "$sluiced" 2>/dev/null
  wait
  ip netns del "$box"
  ip netns del "$worker"
  close_roots
}
trap close EXIT
ip netns add "$box"
ip netns add "$worker"
ip link add port0 netns "$box" type veth peer name eth0 netns "$worker"
ip -n "$box" link set port0 up
ip -n "$box" link set lo up
ip netns exec "$worker" ethtool -K eth0 tx off >/dev/null # a cable would carry whole checksums
ip -n "$worker" address add 10.77.0.10/24 dev eth0
ip -n "$worker" link set eth0 up
mkdir "$WORK/etc"
(umask 077 && printf secret >"$WORK/etc/secret")
cat >"$WORK/etc/appliance.toml" <<'TOML'
[appliance]
address = "10.77.0.1/24"
secret_file = "/etc/sluice/secret"
[[port]]
name = "worker0"
type = "af_packet"
interface = "port0"
TOML

# entry IMAGE: a container of it in $container, and its command in the array `entry`.
entry() {
  images inspect --type image "$1"
  python3 -c 'import json, sys
print(*json.load(sys.stdin)["OCIv1"]["config"]["Entrypoint"], sep="\n")' <"$WORK/out" >"$WORK/entry"
  mapfile -t entry <"$WORK/entry"
  images from --pull-never "$1"
  container=$(<"$WORK/out")
}
entry sluiced
ip netns exec "$box" buildah "${places[@]}" run --cap-add CAP_NET_RAW --cap-add CAP_NET_ADMIN \
  -v "$WORK/etc:/etc/sluice:ro" "$container" -- "${entry[@]}" >"$WORK/box.log" 2>&1 &
sluiced=$!
until grep -q '^ready: ' "$WORK/box.log"; do
  kill -0 "$sluiced" 2>/dev/null || fail "the box: $(cat "$WORK/box.log")"
  sleep 0.1
done
entry sluice-worker
ip netns exec "$worker" buildah "${places[@]}" run --env SLUICE_ADDRESS=udp://10.77.0.1 \
  --env SLUICE_SECRET=secret "$container" -- "${entry[@]}" doctor \
  >"$WORK/out" 2>&1 || fail "the worker: $(cat "$WORK/out" "$WORK/box.log")"
expect_line "$WORK/out" '^ok +appliance .*one sum'
row "box, worker" "$bases" "built, the box served, a worker summed over it"
