#!/usr/bin/env python3
"""Bad company for a test run: other work on the processors, and processes stopped at random.

    tests/lab/company.py ./run test

runs the command beside `--load` busy processes and now and then stops one of the command's
processes for up to STOP_S seconds. Its status is the command's.

A process is stopped as a debugger stops it (ptrace), and not by SIGSTOP: the SIGCONT that ended it
would also continue a process that a test has stopped meanwhile. Linux alone, as a parent of the
processes or as root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
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


# ptrace(2) and waitpid(2): Python has neither.
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WAIT_FOR_THREADS = 0x40000000  # __WALL
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def ask(request: int, thread: int) -> bool:
    return _ptrace(request, thread, None, None) == 0


def await_stop(thread: int) -> None:
    """That a thread that was asked to has stopped, or has ended: nobody else hears of that end."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(thread, WAIT_FOR_THREADS)


def threads_of(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()}
    return set()


@contextlib.contextmanager
def held(pid: int) -> Iterator[None]:
    """Stops all threads of a process, whatever else stops, continues or ends it meanwhile."""
    seized: list[int] = []
    looked_at: set[int] = set()
    try:
        while fresh := threads_of(pid) - looked_at:
            looked_at |= fresh
            for thread in fresh:
                if not ask(PTRACE_SEIZE, thread):
                    continue  # it has ended
                seized.append(thread)
                ask(PTRACE_INTERRUPT, thread)
                await_stop(thread)
        yield
    finally:
        # The first thread of a process ends for its parent when the others have.
        for thread in sorted(seized, key=lambda each: each == pid):
            if not ask(PTRACE_DETACH, thread):
                await_stop(thread)


def stop_one(root: int, draw: random.Random) -> None:
    pids = descendants(root)
    if not pids:
        return
    with held(draw.choice(pids)):
        time.sleep(draw.uniform(0, STOP_S))


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
