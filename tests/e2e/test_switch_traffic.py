"""Any traffic crosses the switch: TCP, IPv6, VLAN tags, full-size frames, hosts that move."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import BOX_ADDRESS, BOX_ADDRESS6, Lab, LabError, missing, stop
from raw_frames import MARKER_BYTES
from workers import BUILD, ping, read_line, run_all, run_in, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

RAW = str(Path(__file__).resolve().parent / "raw_frames.py")
BROADCAST = "ff:ff:ff:ff:ff:ff"
MAC_AGE_S = 5

EXTRA = f"""
[forwarding]
mac_age_s = {MAC_AGE_S}

[[rule]]
class = 3
protocol = "tcp"
port = 5201

[[rule]]
class = 9
dscp = 46
"""


@pytest.fixture(scope="module")
def lab():
    with Lab(hosts=3, ipv6=True) as made:
        made.start_appliance(BUILD, made.config(extra=EXTRA))
        yield made


def mac_of(lab, host):
    return run_in(lab, host, ["cat", "/sys/class/net/eth0/address"])[0].strip()


def send_raw(lab, host, destination, *options):
    out, code = run_in(lab, host, [sys.executable, RAW, "send", destination, *options])
    assert code == 0, out


class Listeners:
    """Hosts that receive raw frames from now on, until `frames` is called."""

    def __init__(self, lab, hosts):
        self.lab, self.hosts = lab, hosts
        self.processes = [
            lab.popen(
                host, [sys.executable, RAW, "receive", "60"], stdout=subprocess.PIPE, text=True
            )
            for host in hosts
        ]
        for process in self.processes:
            assert read_line(process) == "READY\n"

    def frames(self):
        """A list for each host: what came before a last broadcast frame, which is sent now."""
        for host in (0, 1) if 0 in self.hosts else (0,):  # nobody hears itself
            send_raw(self.lab, host, BROADCAST, "--bytes", str(MARKER_BYTES))
        lists = []
        for process in self.processes:
            frames = [json.loads(line) for line in process.communicate(timeout=300)[0].splitlines()]
            assert frames and frames.pop()["bytes"] == MARKER_BYTES, "the last frame did not come"
            lists.append(frames)
        return lists


def class_packets(lab, port, egress_class):
    """Frames that the port has sent in the class, 0 when it has sent none."""
    wanted = f'sluice_port_tx_class_packets_total{{port="{port}",class="{egress_class}"}} '
    lines = [line for line in lab.scrape().splitlines() if line.startswith(wanted)]
    return float(lines[0].split()[-1]) if lines else 0


@pytest.mark.skipif(shutil.which("iperf3") is None, reason="iperf3 is not installed")
@pytest.mark.parametrize("family", [4, 6])
def test_tcp_crosses_the_switch_both_ways_and_takes_the_class_of_its_rule(lab, family):
    server = lab.popen(
        1, ["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True
    )
    while "listening" not in (line := server.stdout.readline()):
        assert line, "the server ended before it listened"
    address = lab.address(1) if family == 4 else lab.address6(1)
    out, code = run_in(lab, 0, ["iperf3", "-c", address, "-J", "-t", "2", "--bidir"], timeout=300)
    server.communicate(timeout=300)
    report = json.loads(out)
    assert code == 0 and "error" not in report, report.get("error")
    end = report["end"]
    assert end["sum_received"]["bits_per_second"] > 1e6
    assert end["sum_received_bidir_reverse"]["bits_per_second"] > 1e6
    sent = end["sum_sent"]["bytes"] / 1500
    # Nearly all of it; segmentation and acknowledgements make the exact number iperf's business.
    wait_until(lambda: class_packets(lab, "host1", 3) > sent / 2, 10, "TCP by its rule in class 3")


def test_pings_full_frames_that_must_not_be_fragmented(lab):
    for command in (
        ["-M", "do", "-s", "1472", lab.address(1)],
        ["-6", "-M", "do", "-s", "1452", lab.address6(1)],
        ["-M", "do", "-s", "1472", BOX_ADDRESS],
        ["-6", "-M", "do", "-s", "1452", BOX_ADDRESS6],
    ):
        ping(lab, *command, "-c", "3", "-i", "0.1")


def test_a_rule_by_dscp_classes_pings(lab):
    before = class_packets(lab, "host1", 9)
    run_in(lab, 0, ["ping", "-Q", "0xb8", "-c", "5", "-i", "0.1", "-W", "10", lab.address(1)])
    wait_until(lambda: class_packets(lab, "host1", 9) >= before + 5, 10, "pings in class 9")


def test_answers_neighbour_solicitations(lab):
    lab.in_host(2, "ip -6 neigh flush dev eth0")
    out, code = run_in(lab, 2, ["ping", "-6", "-c", "2", "-i", "0.2", "-W", "10", BOX_ADDRESS6])
    assert code == 0, out
    entry, _ = run_in(lab, 2, ["ip", "-6", "neigh", "show", BOX_ADDRESS6])
    assert "lladdr 02:51:0a:4d:00:01" in entry, entry


def test_a_host_that_wants_the_appliances_ipv6_address_learns_that_it_is_taken(lab):
    lab.in_host(2, f"ip addr add {BOX_ADDRESS6}/64 dev eth0")
    try:
        def refused():
            out, _ = run_in(lab, 2, ["ip", "-6", "addr", "show", "dev", "eth0"])
            return "dadfailed" in out

        wait_until(refused, 10, "duplicate address detection fails")
    finally:
        lab.in_host(2, f"ip addr del {BOX_ADDRESS6}/64 dev eth0")


def test_a_broadcast_reaches_all_but_its_sender_and_once(lab):
    listeners = Listeners(lab, [0, 1, 2])
    send_raw(lab, 0, BROADCAST, "--bytes", "1500")
    own, *others = listeners.frames()
    assert own == []
    for frames in others:
        assert len(frames) == 1 and frames[0]["intact"] and frames[0]["bytes"] == 1500


@pytest.mark.parametrize("tags, length", [([100], 1500), ([100, 200], 1496), ([0xE064], 46)])
def test_vlan_tags_pass_through_unchanged(lab, tags, length):
    listeners = Listeners(lab, [1, 2])
    text = ",".join(str(tag) for tag in tags)
    send_raw(lab, 0, BROADCAST, "--tags", text, "--bytes", str(length))
    for frames in listeners.frames():
        assert len(frames) == 1, frames
        assert frames[0]["tags"] == tags and frames[0]["bytes"] == length and frames[0]["intact"]


def test_addresses_are_learned_by_vlan(lab):
    # Host 1 has spoken in VLAN 7 only, so a frame for it in VLAN 8 is flooded.
    send_raw(lab, 1, BROADCAST, "--tags", "7")
    listeners = Listeners(lab, [2])
    send_raw(lab, 0, mac_of(lab, 1), "--tags", "7", "--bytes", "70")
    send_raw(lab, 0, mac_of(lab, 1), "--tags", "8", "--bytes", "80")
    (frames,) = listeners.frames()
    assert [frame["bytes"] for frame in frames] == [80]


def test_a_host_that_falls_silent_is_forgotten_and_its_frames_flooded(lab):
    address = "02:aa:00:00:00:01"  # nobody's, so that nothing else refreshes it
    listeners = Listeners(lab, [2])
    send_raw(lab, 1, BROADCAST, "--source", address)
    send_raw(lab, 0, address, "--bytes", "70")
    time.sleep(MAC_AGE_S + 1)
    send_raw(lab, 0, address, "--bytes", "80")
    (frames,) = listeners.frames()
    unicast = [frame["bytes"] for frame in frames if frame["destination"] == address]
    assert unicast == [80], "the first went to its port only, the second to all"


def test_a_host_that_moves_takes_its_address_along(lab):
    address = "02:aa:00:00:00:02"
    send_raw(lab, 1, BROADCAST, "--source", address)
    send_raw(lab, 2, BROADCAST, "--source", address)
    listeners = Listeners(lab, [1, 2])
    send_raw(lab, 0, address, "--bytes", "70")
    old, new = listeners.frames()
    assert old == []
    assert [frame["bytes"] for frame in new] == [70]


def test_jumbo_frames_go_to_the_ports_whose_mtu_carries_them():
    with Lab(hosts=3, mtu=9000) as jumbo:
        config = jumbo.config()
        at = config.rindex("mtu = 9000")
        jumbo.start_appliance(BUILD, config[:at] + "mtu = 1500" + config[at + len("mtu = 9000") :])
        ping = ["ping", "-M", "do", "-s", "8972", "-c", "2", "-i", "0.1", "-W", "10"]
        out, code = run_in(jumbo, 0, [*ping, jumbo.address(1)])
        assert code == 0, out
        listeners = Listeners(jumbo, [1, 2])
        for length in (1500, 1501, 1504, 9000):
            send_raw(jumbo, 0, BROADCAST, "--bytes", str(length))
        wide, narrow = [[frame["bytes"] for frame in frames] for frames in listeners.frames()]
        assert wide == [1500, 1501, 1504, 9000]
        assert narrow == [1500]
        dropped = 'sluice_port_dropped_packets_total{port="host0",reason="too_long"} 3'
        assert dropped in jumbo.scrape(), [
            line for line in jumbo.scrape().splitlines() if "too_long" in line
        ]


def test_af_xdp_ports_carry_frames_of_their_mtu():
    with Lab(hosts=2, pmd="af_xdp", mtu=3360) as large:
        try:
            large.start_appliance(BUILD)
        except LabError as error:  # the kernel may lack AF_XDP: that is the only reason to skip
            if "Protocol not supported" in str(error) or "Address family" in str(error):
                pytest.skip(f"no AF_XDP here: {str(error).splitlines()[-1]}")
            raise
        ping = ["ping", "-M", "do", "-s", "3332", "-c", "2", "-i", "0.1", "-W", "10"]
        out, code = run_in(large, 0, [*ping, large.address(1)])
        assert code == 0, out


def test_chunks_for_another_appliance_queue_by_priority_on_the_way(lab):
    # A second sluiced, in host 2, sums; the lab's own is only a switch between it and the workers.
    config = lab.directory / "second.toml"
    config.touch(mode=0o600)  # it holds the secret
    config.write_text(
        '[appliance]\naddress = "10.77.0.9/24"\nsecret = "lab"\nmemory_mib = 256\n'
        '[[port]]\nname = "only"\ntype = "af_packet"\ninterface = "eth0"\n'
    )
    second = lab.popen(
        2,
        [str(BUILD / "dataplane" / "sluiced"), "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = ""
    while "ready:" not in log:
        line = second.stdout.readline()
        assert line, log
        log += line

    def in_band(port):
        return sum(class_packets(lab, port, egress_class) for egress_class in range(16, 48))

    before = in_band("host0"), in_band("host2")
    for report in run_all(lab, "udp://10.77.0.9:7700", 2, steps=3, tensors=4, elems=20_000):
        assert report["exit"] == 0, report
    chunks = 3 * 4 * 20_000 * 4 / 1344
    assert in_band("host0") - before[0] >= chunks, "results"
    assert in_band("host2") - before[1] >= 2 * chunks, "contributions of two workers"
    stop(second)


def test_results_queue_by_priority_like_other_traffic(lab):
    for report in run_all(lab, lab.url6, 2, steps=3, tensors=4, elems=20_000):
        assert report["exit"] == 0, report
    band = sum(class_packets(lab, "host0", egress_class) for egress_class in range(16, 48))
    assert band >= 3 * 4 * 20_000 * 4 / 1344
