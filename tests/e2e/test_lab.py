"""The lab: the rates of its links, and the clean-up after an early end."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
