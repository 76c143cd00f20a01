#!/usr/bin/env python3
"""Bad company for a test run: other work on the processors, and processes stopped at random.

    tests/lab/company.py ./run test

runs the command beside `--load` busy processes and now and then stops one of the command's
processes for up to STOP_S seconds. Its status is the command's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

STOP_S, BETWEEN_S = 2.0, 1.0
BUSY = "while True: pass"


def descendants(root: int) -> list[int]:
    """Of a process, but those that a test has stopped itself, and those whose parent has ended."""
    children: dict[int, list[tuple[int, str]]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, rest = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(rest[1]), []).append((pid, rest[0]))
    found, left = [], [root]
    while left:
        below = children.get(left.pop(), [])
        found += [pid for pid, state in below if state not in "TZ"]
        left += [pid for pid, _ in below]
    return found


def stop_one(root: int, draw: random.Random) -> None:
    pids = descendants(root)
    if not pids:
        return
    pid = draw.choice(pids)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(draw.uniform(0, STOP_S))
        finally:
            os.kill(pid, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(options.load)]
    try:
        process = subprocess.Popen(options.command)
        while process.poll() is None:
            stop_one(process.pid, draw)
            time.sleep(draw.uniform(0, BETWEEN_S))
        return process.returncode
    finally:
        for each in busy:
            each.kill()


if __name__ == "__main__":
    sys.exit(main())
