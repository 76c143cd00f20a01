"""The wake-up of a worker whose port was quiet for a while: by a vhost-user guest's interrupt, also
after another guest has taken its place, and by a tap interface's own descriptor. The bench
`latency` has the times; these tests count the naps that a packet ended."""

import itertools
import re
import time

import pytest
from lab import BOX_ADDRESS, Lab, metric, missing
from workers import BUILD, finish, start

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

INTERFACE = "sluice0"
TIMES = 20


def ports(lab: Lab, kind: str) -> str:
    if kind == "tap":
        return f'[[port]]\nname = "local"\ntype = "tap"\ninterface = "{INTERFACE}"\n'
    return "".join(f'[[port]]\nname = "guest{rank}"\ntype = "vhost-user"\n'
                   f'path = "{lab.directory}/{rank}.sock"\n' for rank in range(2))


def start_box(lab: Lab, kind: str, polling: str) -> str:
    """Returns the log, in which the table of ports stands."""
    lab.start_appliance(BUILD, lab.config(polling=polling).split("[[port]]")[0] + ports(lab, kind))
    return (lab.directory / "sluiced.log").read_text()


def wakes(lab: Lab) -> float:
    return metric(lab.scrape(), "sluice_lcore_wakes_total")


def wakes_by(lab: Lab, act) -> float:
    """For each time that `act` was done, which is until TIMES rests have ended: of packets that
    came while the machine stalled only one ends a rest."""
    before, deadline = wakes(lab), time.monotonic() + 300
    for times in itertools.count(1):
        act()
        ended = wakes(lab) - before
        if ended >= TIMES:
            return ended / times
        assert time.monotonic() < deadline, f"{ended} rests ended of {times} times {TIMES} packets"


def test_a_guest_s_interrupt_ends_a_rest_and_so_does_the_next_guest_s():
    with Lab(hosts=1) as lab:
        log = start_box(lab, "vhost-user", "adaptive")
        row = r" net_vhost: .* receive interrupts, if they come +1 rx and "
        assert len(re.findall(row, log)) == 2, log

        def sum_now_and_then():
            urls = [f"vhost://{BOX_ADDRESS}:7700{lab.directory}/{rank}.sock" for rank in range(2)]
            ranks = [start(None, None, url, rank, 2, steps=TIMES, pause_ms=50, secret="lab")
                     for rank, url in enumerate(urls)]
            for rank in ranks:
                report = finish(rank)
                assert report["exit"] == 0, report

        for _ in range(2):
            wakes_by(lab, sum_now_and_then)


def test_a_packet_at_a_tap_interface_ends_a_rest():
    with Lab(hosts=1) as lab:
        log = start_box(lab, "tap", "adaptive")
        assert re.search(r" net_tap: .* its descriptor +\d+ rx and ", log), log

        def run(*command):
            assert lab.popen(None, command).wait(300) == 0, command

        run("ip", "addr", "add", "10.77.0.2/24", "dev", INTERFACE)
        ping = lambda: run("ping", "-q", "-c", str(TIMES), "-i", "0.05", BOX_ADDRESS)
        assert wakes_by(lab, ping) <= 10 * TIMES  # without looking in vain


def test_busy_polling_asks_for_no_interrupts():
    with Lab(hosts=1) as lab:
        log = start_box(lab, "vhost-user", "busy")
        assert re.search(r" net_vhost: .* nobody \(busy polling\) +1 rx and ", log), log
