"""A port that is offered more than it sends: shares, marks, drops and their metrics.

Two hosts flood a third one through a port that is shaped far below what they send: class 16 (CS5)
and best effort, class 56, which has a guaranteed share and says that it understands marks.
"""

import ast
import re
import subprocess
import sys
import time

import pytest
from lab import Lab, missing, stop
from workers import BUILD, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

URGENT, CHOSEN = 16, 56
CS5, BEST_EFFORT_ECT, CS7 = 0xA0, 0x02, 0xE0
SHARE = 0.2
RATE_MBPS = 10
ENOUGH_BYTES = 1_000_000  # of both, to see their shares

FLOOD = """
import socket, sys, time
address, tos = sys.argv[1], int(sys.argv[2])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
end, frame = time.monotonic() + 300, bytes(1400)  # if nobody stops it
while time.monotonic() < end:
    for _ in range(20):
        out.sendto(frame, (address, 9))
    time.sleep(0.001)
"""
COUNT_MARKS = """
import socket, sys, time
into = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
into.bind(("", 9))
into.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
into.settimeout(3)
print("ready", flush=True)
seen = {}
try:
    while True:
        _, extra, _, _ = into.recvmsg(2048, 64)
        tos = extra[0][2][0]
        seen[tos] = seen.get(tos, 0) + 1
except TimeoutError:
    print(seen)
"""


def classes(lab):
    """{(metric, class): value} of the full port."""
    rows = re.findall(
        r'^sluice_port_(\w+)\{port="host1",class="(\d+)"\} (\S+)$', lab.scrape(), re.M
    )
    return {(name, int(number)): float(value) for name, number, value in rows}


def sent_between(early, late):
    """{class: bytes} that the port sent of the two that flood it; None if one of them, of which no
    more waited before, may have had nothing to send meanwhile."""
    sent = {number: late["tx_class_bytes_total", number] - early["tx_class_bytes_total", number]
            for number in (URGENT, CHOSEN)}
    had = all(early["queue_class_bytes", number] > sent[number] for number in sent)
    return sent if had else None


@pytest.fixture(scope="module")
def flooded():
    """The bytes that both classes sent while both had some, what the metrics said in the flood,
    pings meanwhile, marks that arrived, and what the metrics said once nothing was left."""
    with Lab(hosts=3) as lab:
        config = lab.config(extra=f"[[class]]\nindex = {CHOSEN}\nshare = {SHARE}\n").replace(
            'name = "host1"\n',
            f'name = "host1"\nrate_mbps = {RATE_MBPS}\nqueue_kib = 1024\nmark_above_kib = 128\n',
        )
        lab.start_appliance(BUILD, config)
        counter = lab.popen(
            1, [sys.executable, "-c", COUNT_MARKS], stdout=subprocess.PIPE, text=True
        )
        assert counter.stdout.readline() == "ready\n"
        floods = [
            lab.popen(host, [sys.executable, "-c", FLOOD, lab.address(1), str(tos)])
            for host, tos in ((2, CS5), (0, BEST_EFFORT_ECT))
        ]
        wait_until(lambda: all(classes(lab).get(("dropped_class_packets_total", number), 0) > 0
                               for number in (URGENT, CHOSEN)), 300, "an overloaded port")
        pings = lab.popen(
            0,
            ["ping", "-Q", str(CS7), "-c", "50", "-i", "0.1", "-W", "5", lab.address(1)],
            stdout=subprocess.PIPE,
            text=True,
        ).communicate(timeout=300)[0]
        sent, last, deadline = {URGENT: 0, CHOSEN: 0}, classes(lab), time.monotonic() + 300
        while sum(sent.values()) < ENOUGH_BYTES:
            assert time.monotonic() < deadline, f"both classes had enough for {sent} bytes alone"
            time.sleep(0.2)
            early, last = last, classes(lab)
            between = sent_between(early, last)
            if between is not None:
                late = last
                sent = {number: sent[number] + between[number] for number in sent}
        for flood in floods:
            stop(flood)
        marks = ast.literal_eval(counter.communicate(timeout=300)[0])
        yield sent, late, pings, marks, classes(lab)


def test_a_chosen_class_gets_its_share_of_bytes_although_more_urgent_traffic_overflows(flooded):
    sent, late, *_ = flooded
    assert late["dropped_class_packets_total", URGENT] > 0, "the port was not overloaded"
    assert SHARE * 0.95 < sent[CHOSEN] / sum(sent.values()) < SHARE * 1.3, sent


def test_the_most_urgent_lose_nothing_on_a_full_port(flooded):
    _, late, pings, *_ = flooded
    # While the box stands still the ring of the other port overflows, which has one of the floods.
    answers = int(re.search(r"(\d+) received", pings)[1])
    assert 0 < answers <= late["tx_class_packets_total", 0], pings
    assert late["dropped_class_packets_total", 0] == 0


def test_frames_are_marked_and_arrive_marked_only_if_their_sender_understands_it(flooded):
    _, late, _, marks, _ = flooded
    assert late["marked_class_packets_total", CHOSEN] > 0
    assert late["marked_class_packets_total", URGENT] == 0
    assert marks.get(0x03, 0) > 0 and 0x03 | CS5 not in marks, marks


def test_depth_and_waiting_time_of_each_class_are_on_the_page(flooded):
    _, late, _, _, over = flooded
    assert late["queue_class_packets", URGENT] > 0 and late["queue_class_bytes", URGENT] > 0
    for number in (URGENT, CHOSEN):
        # A page is read while frames leave: the two may differ on the one amid the flood.
        assert over["wait_seconds_count", number] == over["tx_class_packets_total", number]
        assert late["wait_seconds_count", number] > 0
    mean = late["wait_seconds_sum", URGENT] / late["wait_seconds_count", URGENT]
    assert 0.05 < mean < 10, "a MiB at 8 Mb/s takes a second"
