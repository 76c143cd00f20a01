#!/usr/bin/env bash
# shellcheck disable=SC2016 # the page's own text
# Inside the machine of first_rack_test.sh, as root. Each command of the page is looked up there
# before it is run.
set -euo pipefail
cd /srv
page=first_rack.md

failed() {
  printf 'FAILED: line %s: %s\n' "$1" "$BASH_COMMAND"
  tail -n 40 out worker?.log 2>/dev/null || true
  journalctl --no-pager -n 40 -u sluiced
}
trap 'failed $LINENO' ERR

begun=0
step() {
  [[ $begun -eq 0 ]] || printf '%s | %s s\n' "$name" "$((SECONDS - begun))"
  name=$1 begun=$SECONDS
}
in_page() {
  grep -qF -- "$1" "$page" || {
    printf 'the page does not have: %s\n' "$1"
    return 1
  }
}
# box COMMAND: of the page, in the machine.
box() {
  in_page "$1"
  bash -euo pipefail -c "$1" >out 2>&1
}
# worker N COMMAND [SED]: of the page, on worker N, changed as the page says.
worker() {
  in_page "$2"
  local command=$2
  [[ $# -lt 3 ]] || command=$(sed "$3" <<<"$2")
  on "$1" "$command" >out 2>&1
}
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive HOME=/root
on() {
  ip netns exec "worker$1" chroot "/worker$1" /bin/bash -euo pipefail -c "cd /root; $2"
}
# Commands that need the internet, which the workers' training network has not.
fetch() {
  in_page "$2"
  chroot "/worker$1" /bin/bash -euo pipefail -c "cd /root; ${3:-$2}" >out 2>&1
}

# What stands before the page: cables, and a way to Debian's mirror.
until ip -4 address show dev tap0 2>/dev/null | grep -q 10.0.2.100; do sleep 0.2; done # slirp4netns
for place in "" /worker0 /worker1; do echo 'nameserver 10.0.2.3' >"$place/etc/resolv.conf"; done
for worker in 0 1; do
  ip netns add "worker$worker"
  ip link add "eth$((worker + 1))" type veth peer name eth1 netns "worker$worker"
  ip link set "eth$((worker + 1))" mtu 3360 up
  ip -n "worker$worker" link set lo up
  ip netns exec "worker$worker" ethtool -K eth1 tx off >out # a cable would carry whole checksums
  mount -t proc proc "/worker$worker/proc"
  mount --rbind /dev "/worker$worker/dev"
done
apt-get update >out 2>&1
for worker in 0 1; do chroot "/worker$worker" apt-get update >out 2>&1; done

step "1. install the box"
in_page 'apt install --no-install-recommends ./sluiced_*.deb'
apt install --yes --no-install-recommends ./sluiced_*.deb >out 2>&1

step "1. install two workers, with PyTorch"
for worker in 0 1; do
  fetch "$worker" \
    'apt install --no-install-recommends ./libsluice0.3_*.deb ./python3-sluice_*.deb' \
    "apt install --yes --no-install-recommends ./libsluice0.3_*.deb ./python3-sluice_*.deb \
      $(grep -o 'python3-torch python3-rich python3-prometheus-client' "$page")"
  worker "$worker" 'python3 -m sluice doctor'
done

step "3. configure (af_xdp; no step 2)"
in_page 'type = "af_xdp"'
sed -n '/^```toml$/,/^```$/p' "$page" | sed '/^```/d; /^hugepages/d; s/type = "pci"/type = "af_xdp"/
  s/^pci = "0000:01:00.0"/interface = "eth1"/; s/^pci = "0000:01:00.1"/interface = "eth2"/
  s/^mtu = 9000/mtu = 3360/' >/etc/sluice/appliance.toml
# What the page says of the secret, the rights, the check and the start.
sed -n '/^A secret, rights for the card/,/^## /p' "$page" | sed -n 's/^    # //p' >configure.sh
[[ $(wc -l <configure.sh) -ge 5 ]]
bash -euo pipefail configure.sh >out 2>&1
grep -qE '^(ready|not ready: port "worker0" is down.*)$' out # the workers' ends may be down

step "4. prepare the workers"
for worker in 0 1; do
  worker "$worker" 'ip address add 10.77.0.10/24 dev eth1' "s/\.10/.1$worker/"
  worker "$worker" 'ip link set eth1 mtu 9000 up' 's/9000/3360/'
  # Not of a namespace: in a machine of its own the worker sets it itself.
  box 'sysctl -w net.core.rmem_max=8388608'
  worker "$worker" 'ping 10.77.0.1' 's/ping/ping -c 1 -w 120/'
  in_page 'export SLUICE_ADDRESS=udp://10.77.0.1 SLUICE_SECRET='
  environment="export SLUICE_ADDRESS=udp://10.77.0.1 SLUICE_SECRET=$(cat /etc/sluice/secret);"
  worker "$worker" 'python3 -m sluice doctor --mtu 9000' "s/9000/3360/; s|^|$environment |"
done

until sluicectl status | grep -qx ready; do sleep 0.2; done

step "5. train"
in_page 'import sluice.torch; sluice.torch.attach(model, mtu=9000)'
in_page 'python3 -m sluice launch -n 1 --nnodes 2 --node-rank 0 --master-addr 10.77.0.10'
for worker in 0 1; do
  cat >"/worker$worker/root/train.py" <<'PYTHON'
import torch
import torch.distributed
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
model = torch.nn.parallel.DistributedDataParallel(model)
import sluice.torch; sluice.torch.attach(model, mtu=3360)  # the added line
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(torch.distributed.get_rank())
inputs, labels = torch.randn(4096, 64), torch.randint(0, 10, (4096,))
for step in range(100000):
    batch = slice(step * 64 % 4096, step * 64 % 4096 + 64)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
    optimizer.step()
    if step % 50 == 0:
        print("step", step, flush=True)
PYTHON
  on "$worker" "$environment python3 -m sluice launch -n 1 --nnodes 2 --node-rank $worker \
    --master-addr 10.77.0.10 --master-port 29500 --run-id first train.py" \
    >"worker$worker.log" 2>&1 &
done
for worker in 0 1; do
  until grep -q 'step 100$' "worker$worker.log"; do
    kill -0 $! # ends the wait if a worker has ended
    sleep 0.5
  done
done

step "6. top"
in_page 'python3 -m sluice top 192.0.2.5'
chroot /worker0 /bin/sh -c 'LC_ALL=C.UTF-8 python3 -m sluice top 10.0.2.100 --once' >out 2>&1
grep -E 'running +2 of 2 ranks' out
step ""
cat out
kill %1 %2
echo "all checks passed"
