"""`sluiced` on PCI network cards that QEMU emulates, in a virtual machine in the place of the box.

Drivers, interrupts, the IOMMU and the cards' links are as on a machine with cards; their speed is
not. The workers stay in the lab's hosts. One machine a kind of card; the tests share it.
"""

import re

import pytest
import vm as machines
from lab import Lab, metric, missing
from workers import BUILD, run_all, wait_until

WHY_NOT = missing() or machines.missing(BUILD)
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

GENEROUS_S = 240  # an emulated processor, on a machine that others use
QUEUES = 2  # of a virtio card


class Box:
    """sluiced in a machine with cards."""

    def __init__(self, lab: Lab, vm: machines.CardVm):
        self.lab, self.vm = lab, vm
        self.log_path = lab.directory / "sluiced.log"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self, mtu: int = 1500, shards: int = 1, hugepages: bool = True) -> None:
        """Returns when it is ready."""
        config = self.lab.config(member_timeout_s=30).split("[[port]]")[0].replace(
            "memory_mib = 256",
            f"memory_mib = 128\nhugepages = {str(hugepages).lower()}\nshards = {shards}")
        for host, address in enumerate(self.vm.addresses):
            config += (f'[[port]]\nname = "host{host}"\ntype = "pci"\npci = "{address}"\n'
                       f"mtu = {mtu}\n")
        path = self.lab.directory / "appliance.toml"
        path.touch(mode=0o600)
        path.write_text(config)
        self.log_path.write_text("")
        self.vm.run(f"{{ {BUILD.resolve()}/dataplane/sluiced --config {path} & pid=$!; "
                    f"echo $pid >/run/sluiced.pid; wait $pid; echo gone; "
                    f"}} >{self.log_path} 2>&1 &")
        wait_until(lambda: re.search("^(ready:|gone)", self.log(), re.M), GENEROUS_S,
                   "a ready sluiced")
        assert "ready:" in self.log(), self.log()

    def end(self, signal: str = "TERM") -> None:
        self.vm.run(f"test ! -e /run/sluiced.pid || "
                    f"{{ read -r pid </run/sluiced.pid; kill -{signal} $pid; "
                    f"while test -e /proc/$pid; do sleep 0.1; done; rm /run/sluiced.pid; }}")

    def wait_link(self, host: int, state: str, times: int = 1) -> None:
        told = re.compile(rf'port "host{host}" \(PCI device .*\) is {state}')
        wait_until(lambda: len(told.findall(self.log())) >= times, GENEROUS_S,
                   f"host{host} {state}")

    def metrics(self) -> str:
        return self.vm.run("busybox wget -q -O - http://127.0.0.1:9464/metrics")

    def sum_exactly(self, mtu: int, elems: int = 30_000) -> None:
        for report in run_all(self.lab, self.lab.url, self.lab.hosts, timeout=GENEROUS_S, mtu=mtu,
                              steps=3, tensors=3, elems=elems,
                              join_timeout_ms=GENEROUS_S * 1000):
            assert report["exit"] == 0, (report, self.log())
        too_long = [line for line in self.metrics().splitlines()
                    if 'reason="too_long"' in line and not line.endswith(" 0")]
        assert not too_long, too_long


@pytest.fixture(scope="module", params=list(machines.CARDS))
def machine(request):
    with Lab(hosts=2, mtu=9000) as lab:
        queues = QUEUES if request.param == "virtio" else 1
        with machines.CardVm(lab, BUILD, request.param, queues) as vm:
            yield Box(lab, vm)


@pytest.fixture
def box(machine):
    yield machine
    machine.end()


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_ports_come_up_and_sums_are_exact(box, mtu):
    box.start(mtu)
    for host in range(2):
        box.wait_link(host, "up")
    box.sum_exactly(mtu)


def test_a_lost_link_is_told_and_so_is_its_return(box):
    box.vm.set_link(0, up=False)
    try:
        box.start()
        box.wait_link(0, "down")
    finally:
        box.vm.set_link(0, up=True)
    box.wait_link(0, "up")
    box.vm.set_link(0, up=False)
    box.wait_link(0, "down", 2)
    box.vm.set_link(0, up=True)
    box.wait_link(0, "up", 2)
    assert 'port "host1"' not in re.sub(r'.*"host1".* is up.*', "", box.log()), box.log()
    box.sum_exactly(1500)


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_it_starts_again_on_cards_that_were_in_use(box, signal):
    box.start()
    box.sum_exactly(1500)
    box.end(signal)
    box.start()
    box.sum_exactly(1500)


def test_without_hugepages_behind_an_iommu(box):
    box.start(9000, hugepages=False)
    box.sum_exactly(9000)


def test_a_pair_of_queues_for_each_of_two_shards(box):
    if box.vm.card != "virtio":
        pytest.skip("not this card")
    box.start(9000, shards=QUEUES)
    assert re.search(r"host0 +net_virtio: .* 2 \(steered in software\)", box.log()), box.log()
    box.sum_exactly(9000, elems=300_000)  # over 400 chunks, in turns of 64 for each shard
    assert metric(box.metrics(), "sluice_lcore_handed_over_packets_total") > 0


def test_interrupts_that_come_end_rests_and_those_that_do_not_are_not_waited_for(box):
    box.start()
    for _ in range(4):
        box.sum_exactly(1500)
    silent = len(re.findall(r'port "host\d", queue 0: no receive interrupt came', box.log()))
    woken = metric(box.metrics(), "sluice_lcore_wakes_total")
    print(f"{box.vm.card}: {silent} silent ports, {woken} rests ended by packets")
    assert (silent, woken > 0) in ((0, True), (2, False)), box.log()
