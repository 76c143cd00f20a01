"""The lab: the rates of its links, and the clean-up after an early end."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cables
import lab
import links
import workers

LAB = Path(lab.__file__)


def namespaces(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()
            if line.startswith(f"sl{pid % 100000}x")]


@pytest.mark.parametrize("wait", ["built", "building"])
def test_a_lab_that_is_terminated_removes_its_namespaces(wait, tmp_path):
    reason = lab.missing()
    if reason:
        pytest.skip(reason)
    mark = tmp_path / "running"
    process = subprocess.Popen([sys.executable, str(LAB), "--hosts", "2", "--pmd", "bridge", "--",
                                "sh", "-c", f"touch {mark}; sleep 60"])
    deadline = time.monotonic() + 300
    while not (mark.exists() if wait == "built" else namespaces(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 128 + signal.SIGTERM
    left = namespaces(process.pid)
    for namespace in left:
        subprocess.run(["ip", "netns", "del", namespace], check=True)
    assert left == []


def test_a_cable_delays_loses_repeats_and_drops_what_finds_its_queue_full():
    reason = lab.missing()
    if reason:
        pytest.skip(reason)
    frames, answered, whole = 100, {}, ("none", "reordered")
    faults = {"none": {}, "loss": {"loss": 30}, "bursts": {"loss": 30, "burst": 5},
              "duplicates": {"duplicate": 50}, "reordered": {"reorder": 50, "reorder_ms": 50},
              "full": {"mbps": 1, "queue": 2}}
    with lab.Lab(hosts=2, pmd="bridge", cabled=True) as cabled:
        for host in (0, 1):  # so that nothing but the pings draws
            mac = cabled.popen(1 - host, ["cat", "/sys/class/net/eth0/address"], stdout=-1,
                               text=True).communicate()[0].strip()
            cabled.in_host(host, f"ip neigh replace {cabled.address(1 - host)} lladdr {mac} "
                                 f"nud permanent dev eth0")
        for name, fault in faults.items():
            with cables.laid(cabled, workers.BUILD, cables.Cable(round_trip_ms=20, **fault)) as got:
                # Where nothing is lost it goes on until all are answered, and may send some more.
                limit = ["-w", "60"] if name in whole else ["-W", "5"]
                ping = cabled.popen(0, ["ping", "-n", "-s", "1400", "-i", "0.002", *limit, "-c",
                                        str(frames), cabled.address(1)], stdout=-1, text=True)
                said = ping.communicate(timeout=120)[0]
            trips_ms = [float(each) for each in re.findall(r"time=([0-9.]+) ms", said)]
            # Two cables, each at most an eighth of its delay early, both ways.
            assert min(trips_ms) > 39, (name, said)
            answered[name] = len(re.findall(r"time=", said)), got["there"], said
    for name in whole:
        count, there, said = answered[name]
        sent = int(re.search(r"(\d+) packets transmitted", said)[1])
        # A ping there, its answer from host 1.
        assert count >= frames and 2 * frames <= there["carried"] <= 2 * sent, answered[name]
    for name, count in (("loss", "lost"), ("bursts", "lost"), ("full", "full")):
        assert answered[name][1][count] > 0 and answered[name][0] < frames, answered[name]
    assert answered["duplicates"][1]["duplicated"] > 0
    assert "DUP!" in answered["duplicates"][2]


@pytest.mark.full  # it measures seconds
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("pmd", ["bridge", "af_packet"])
def test_a_bare_sender_gets_the_rate_of_both_links_whatever_switches(pmd, mtu):
    reason = lab.missing()
    if reason:
        pytest.skip(reason)
    rate = 4  # a burst of 16 KB is 32 ms: a machine that stalls for less loses nothing
    with lab.Lab(hosts=2, rate_mbps=rate, pmd=pmd, mtu=mtu) as shaped:
        if pmd != "bridge":
            shaped.start_appliance(workers.BUILD)
        up, down = [], []
        for _ in range(10):  # a busy machine carries less, and more only to make up for it
            # Trains of 64 KB are counted whole: 2.6 % of what the link carries in that time.
            for link, carried in zip((up, down), links.carried_mbps(shaped, 0, 1, 5.0)):
                link.append(carried)
            if all(max(link) > 0.97 * rate and statistics.median(link) < 1.03 * rate
                   for link in (up, down)):
                return
        assert False, f"the links carried {up} and {down} Mb/s of {rate}"
