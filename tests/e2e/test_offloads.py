"""A port whose device checks received checksums and completes sent ones: DPDK's tap driver offers
both, in software, as a NIC does in hardware, and a pair of queues for each worker. Here the hosts
are processes behind one interface."""

import re
import subprocess
import sys

import pytest
from lab import BOX_ADDRESS, Lab, missing
from workers import BUILD, finish, run_all, start

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

INTERFACE = "sluice0"
HOST_ADDRESS = "10.77.0.2"
TABLE_ROW = rf"local +net_tap: tap interface {INTERFACE} +device +device +2 \(steered "


def config_of(lab: Lab) -> str:
    """The lab's own, but with one tap port."""
    head = lab.config().split("[[port]]")[0].replace("[appliance]", "[appliance]\nshards = 2")
    return head + f'[[port]]\nname = "local"\ntype = "tap"\ninterface = "{INTERFACE}"\n'


def in_box(lab: Lab, *command: str) -> None:
    process = lab.popen(None, list(command), stderr=subprocess.PIPE, text=True)
    assert process.wait(300) == 0, process.stderr.read()


@pytest.fixture
def lab():
    with Lab(hosts=1) as made:
        made.start_appliance(BUILD, config_of(made))
        in_box(made, "ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", INTERFACE)
        yield made


def total(lab: Lab, start_of_line: str) -> float:
    lines = [line for line in lab.scrape().splitlines() if line.startswith(start_of_line)]
    assert lines, start_of_line
    return sum(float(line.split()[-1]) for line in lines)


def test_sums_are_exact_where_the_device_makes_and_checks_the_checksums(lab):
    log = (lab.directory / "sluiced.log").read_text()
    assert re.search(TABLE_ROW, log), log
    workers = [
        start(lab, None, lab.url, rank, 3, steps=5, tensors=4, elems=60_000) for rank in range(3)
    ]
    for worker in workers:
        report = finish(worker)
        assert report["exit"] == 0, report
    assert total(lab, 'sluice_packets_total{reason="bad_checksum"') == 0


def share_handed_over(lab: Lab) -> float:
    """Of the frames that one job's sums take."""
    ranks = [
        start(lab, None, lab.url, rank, 3, steps=10, tensors=4, elems=60_000) for rank in range(3)
    ]
    for worker in ranks:
        report = finish(worker)
        assert report["exit"] == 0, report
    frames = total(lab, "sluice_port_rx_packets_total") + total(lab, "sluice_port_tx_packets_total")
    return total(lab, "sluice_lcore_handed_over_packets_total") / frames


# The kernel puts a flow's datagrams into the queue by which it was last answered, so that those for
# a shard come to its worker without a rule.
def test_each_worker_serves_a_port_with_queues_for_all(lab):
    assert share_handed_over(lab) < 0.2


def test_one_worker_serves_a_shaped_port_and_hands_over_what_is_another_s():
    with Lab(hosts=1) as made:
        made.start_appliance(BUILD, config_of(made) + "rate_mbps = 10000\n")
        in_box(made, "ip", "addr", "add", f"{HOST_ADDRESS}/24", "dev", INTERFACE)
        log = (made.directory / "sluiced.log").read_text()
        assert re.search(r"device +device +1 \(shaped\) ", log), log
        assert share_handed_over(made) > 0.3


# An Ethernet frame of IPv4 and UDP to the box's control port, its checksum one off, right, none.
FRAMES = """
import socket, struct, sys
def total(data):
    words = struct.unpack(f">{len(data) // 2}H", data)
    value = sum(words)
    while value >> 16: value = (value & 0xffff) + (value >> 16)
    return value
own = bytes.fromhex(open("/sys/class/net/INTERFACE/address").read().strip().replace(":", ""))
src, dst = socket.inet_aton("HOST"), socket.inet_aton("BOX")
payload = bytes(64)
udp = struct.pack(">HHH", 40000, 7700, 8 + len(payload))
pseudo = src + dst + struct.pack(">HH", 17, 8 + len(payload))
right = 0xffff ^ total(pseudo + udp + b"\\0\\0" + payload)
ip = struct.pack(">BBHHHBB", 0x45, 0, 28 + len(payload), 0, 0x4000, 64, 17)
ip += struct.pack(">H", 0xffff ^ total(ip + b"\\0\\0" + src + dst)) + src + dst
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("INTERFACE", 0))
for checksum in (right ^ 1, right, 0):
    head = bytes.fromhex("MAC") + own + b"\\x08\\0"
    raw.send(head + ip + udp + struct.pack(">H", checksum) + payload)
"""


def test_a_frame_that_the_device_calls_bad_is_refused_and_one_without_a_checksum_too(lab):
    mac = re.search(r"MAC ([0-9a-f:]+)", (lab.directory / "sluiced.log").read_text()).group(1)
    script = (
        FRAMES.replace("INTERFACE", INTERFACE)
        .replace("HOST", HOST_ADDRESS)
        .replace("BOX", BOX_ADDRESS)
        .replace("MAC", mac.replace(":", ""))
    )
    in_box(lab, sys.executable, "-c", script)
    refused = 'sluice_packets_total{reason="bad_checksum"'
    for _ in range(100):
        if total(lab, refused) >= 2:
            break
    assert total(lab, refused) == 2, "the sound one is no Sluice packet, but its checksum is right"


def test_ports_are_described_without_serving_anybody(tmp_path):
    with Lab(hosts=1) as made:
        path = tmp_path / "appliance.toml"
        path.touch(mode=0o600)
        path.write_text(config_of(made) + made.config().split("[[port]]")[1].join(["[[port]]", ""]))
        command = [str(BUILD / "dataplane" / "sluiced"), "--config", str(path), "--ports"]
        process = made.popen(None, command, stdout=subprocess.PIPE, text=True)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert re.search(TABLE_ROW, out), out
        assert re.search(r"host0 +net_af_packet: af_packet on interface s0 +software", out), out
        assert len(out.splitlines()) == 3, out


WITHOUT_TAP = """
drivers=$(echo "$(pkg-config --variable=libdir libdpdk)"/dpdk/pmds-*)
cp -a "$drivers" "$1/drivers"
rm "$1"/drivers/librte_net_tap*
mount --bind "$1/drivers" "$drivers"
shift
exec "$@"
"""


def test_a_driver_that_is_not_installed_is_named_with_its_package(tmp_path):
    with Lab(hosts=1) as made:
        path = tmp_path / "appliance.toml"
        path.touch(mode=0o600)
        path.write_text(config_of(made))
        sluiced = [str(BUILD / "dataplane" / "sluiced"), "--config", str(path), "--ports"]
        process = made.popen(
            None,
            ["unshare", "-m", "sh", "-e", "-c", WITHOUT_TAP, "sh", str(tmp_path), *sluiced],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 1, out
        told = r"DPDK has no driver net_tap: .*package librte-net-tap\d+$"
        assert re.search(told, out, re.M), out
        assert "is the name free" not in out


# What the driver sends frame by frame is received frame by frame: then none comes in company.
@pytest.mark.parametrize("ipv6", [False, True])
def test_results_leave_an_interface_of_the_kernel_in_trains(ipv6):
    with Lab(hosts=2, rate_mbps=200, ipv6=ipv6) as made:
        made.start_appliance(BUILD)
        address = made.url6 if ipv6 else made.url
        for report in run_all(made, address, 2, steps=3, tensors=4, elems=60_000):
            assert report["exit"] == 0, report
            assert report["coalesced"] > report["packets_received"] / 4, report
        assert total(made, 'sluice_packets_total{reason="bad_checksum"') == 0
        log = (made.directory / "sluiced.log").read_text()
        assert re.search(r"host0 +net_af_packet: .* software \(not offered\) +device ", log), log
