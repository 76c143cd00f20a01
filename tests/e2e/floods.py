#!/usr/bin/env python3
"""A job of two ranks beside a stranger that floods the appliance, or a host behind it.

    floods.py [--seconds 60] [--kinds join,garbage,arp,echo] [--build build]

prints, for each kind, a step's p99 under the flood through the box to the host behind it and under
the same flood to the box, and whether both ranks ended in order. Needs root. A library for
test_flood.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
KINDS = ("join", "garbage", "arp", "echo")
ATTACKER, BYSTANDER = 2, 3
HOSTS = 4
STEP_SECONDS = 0.012  # about what a step and its pause take


def mac_of(lab, address: str) -> str:
    """As the attacker's kernel finds it out."""
    ping = ["ping", "-c", "1", "-W", "10", address]
    lab.popen(ATTACKER, ping, stdout=subprocess.DEVNULL).wait(300)
    shown = lab.popen(
        ATTACKER, ["ip", "neigh", "show", address], stdout=subprocess.PIPE, text=True
    ).communicate(timeout=300)[0]
    words = shown.split()
    return words[words.index("lladdr") + 1]


class Flood:
    """A context manager: the attacker floods `address` while the body runs."""

    def __init__(self, lab, build: Path, kind: str, address: str, seconds: int):
        command = [str(build / "tests" / "e2e" / "e2e_flood"), kind]
        command += [mac_of(lab, address), address, str(seconds)]
        self.lab, self.command, self.sent = lab, command, 0

    def __enter__(self) -> "Flood":
        self.process = self.lab.popen(ATTACKER, self.command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_exc) -> None:
        self.process.terminate()
        out, _ = self.process.communicate(timeout=300)
        self.sent = json.loads(out)["sent"] if out else 0


def run_job(lab, job: str, seconds: float) -> list[dict]:
    """Two ranks, for about `seconds`; their reports."""
    from workers import finish, start, wait_joined

    steps = max(50, int(seconds / STEP_SECONDS))
    workers = [
        start(lab, rank, lab.url, rank, 2, job=job, steps=steps, elems=5_000, pause_ms=10)
        for rank in range(2)
    ]
    for worker in workers:
        wait_joined(worker)
    return [finish(worker, 60 + 20 * seconds) for worker in workers]


def measure(lab, build: Path, kind: str, address: str, seconds: float) -> tuple[list[dict], int]:
    """Reports of both ranks under the flood, and the frames sent."""
    with Flood(lab, build, kind, address, int(60 + 20 * seconds)) as flood:
        reports = run_job(lab, f"{kind}-{address}", seconds)
    return reports, flood.sent


def p99_ms(reports: list[dict]) -> float:
    return statistics.mean(report.get("step_p99_ms", float("inf")) for report in reports)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--build", default="build")
    options = parser.parse_args()
    os.environ["SLUICE_BUILD"] = options.build
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from lab import BOX_ADDRESS, Lab

    build, bad = Path(options.build), 0
    for kind in [kind for kind in options.kinds.split(",") for _ in range(options.repeat)]:
        with Lab(hosts=HOSTS) as lab:
            lab.start_appliance(build)
            behind, _ = measure(lab, build, kind, lab.address(BYSTANDER), options.seconds)
            at_box, sent = measure(lab, build, kind, BOX_ADDRESS, options.seconds)
        ends = [report["exit"] for report in behind + at_box]
        bad += any(ends)
        print(
            f"{kind:8} p99 of a step: {p99_ms(behind):7.2f} ms beside it, "
            f"{p99_ms(at_box):7.2f} ms at the box, {p99_ms(at_box) / p99_ms(behind):5.2f} x; "
            f"{sent} frames; ranks ended with {ends}",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
