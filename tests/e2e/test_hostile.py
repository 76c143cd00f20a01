"""Strangers, forgers and noise: each packet is counted under a reason, and no sum changes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab, missing
from workers import BUILD, finish, start, wait_joined

HEADER = Path(__file__).resolve().parents[2] / "aggregator" / "wire" / "header.h"
VERSION = re.search(r"kVersion = (\d+);", HEADER.read_text())[1]

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# Runs in a host's namespace: random datagrams, and mutated copies of a real packet's head, to all
# ports. Sizes only grow, so a reply, however late, must not be longer than the datagrams of the
# moment. Bounded in count and time. Prints how many replies were longer than what was sent.
NOISE = """
import random, select, socket, struct, sys, time

draw = random.Random(int(sys.argv[1]))
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("0.0.0.0", 0))
types = [*range(1, 12), *range(16, 23), *range(32, 37), 255]
versions = [int(sys.argv[2])] * 3 + [1]
longer = sent = replies = 0
end = time.monotonic() + 6


def datagram(size):
    kind = draw.randrange(3)
    if kind == 0 or size < 16:
        return draw.randbytes(size)
    fake = (draw.randrange(4), draw.randrange(4), draw.getrandbits(64))
    head = struct.pack("<HBBHHQ", 0x51C5, draw.choice(versions), draw.choice(types), *fake)
    data = bytearray(head + draw.randbytes(size - 16))
    if kind == 2:
        data[draw.randrange(size)] ^= 1 << draw.randrange(8)
    return bytes(data)


for size in [0, 1, 15, 16, 30, 34, 47, 50, 72, 73, 216, 300, 1416]:
    for batch in range(40):
        for _ in range(45):
            sock.sendto(datagram(size), ("10.77.0.1", draw.choice([7700, 7701, 7702, 53])))
            sent += 1
        while select.select([sock], [], [], 0.002)[0]:
            try:
                reply = sock.recv(65536)
            except ConnectionRefusedError:
                continue
            replies += 1
            longer += len(reply) > size
        if time.monotonic() > end:
            break
print(f"sent={sent} replies={replies} longer={longer}")
"""


def counters(page: str) -> dict[str, float]:
    values = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            values[name] = float(value)
    return values


def total(values: dict[str, float], part: str) -> float:
    return sum(value for name, value in values.items() if part in name)


def test_noise_is_counted_and_changes_no_sum():
    with Lab(hosts=3) as lab:
        box = lab.start_appliance(BUILD)
        workers = [
            start(lab, rank, lab.url, rank, 2, steps=60, pause_ms=80, elems=40_000)
            for rank in range(2)
        ]
        for worker in workers:
            wait_joined(worker)
        noise = [
            lab.popen(
                2, [sys.executable, "-c", NOISE, str(seed), VERSION],
                stdout=subprocess.PIPE, text=True
            )
            for seed in (1, 2)
        ]
        said = [process.communicate(timeout=300)[0] for process in noise]
        assert all("longer=0" in line for line in said), said
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report
        assert box.poll() is None
        values = counters(lab.scrape())
        sent = sum(int(line.split()[0].split("=")[1]) for line in said)
        bad = sum(
            total(values, f'reason="{reason}"')
            for reason in (
                "bad_magic",
                "truncated",
                "bad_type",
                "bad_length",
                "bad_cookie",
                "unknown_job",
                "bad_field",
                "bad_version",
                "bad_stream",
                "bad_rank",
                "unsupported",
                "join",
                "join_refused",
                "not_ours",
            )
        )
        # A box that gets no processor for a moment does not read all.
        assert bad >= 0.1 * sent, f"{bad} of {sent} noise packets counted: {said}"
        read = [total(values, f'reason="{reason}"') for reason in ("bad_type", "unknown_job")]
        assert all(read), f"none got past its version: draw the right one ({values})"


def test_two_runs_under_one_name_follow_each_other_with_exact_sums():
    """What the first run still had in flight must not enter the second one's sums."""
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)
        for run_id in (1, 2):
            workers = [
                start(
                    lab, rank, lab.url, rank, 2, job="again", steps=5, elems=10_000, run_id=run_id
                )
                for rank in range(2)
            ]
            for worker in workers:
                report = finish(worker)
                assert report["exit"] == 0, report
