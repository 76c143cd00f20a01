"""A training of 8 PyTorch ranks in the lab, whose ranks are slowed, stopped, killed and restarted.

A library for test_stragglers.py and for the bench of the same name.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lab"))
PYTHON = "/usr/bin/python3"
WORLD_SIZE = 8
SLOW, STOPPED, KILLED = 7, 6, 5
SLOWNESS = 5
WARM_UP_STEPS = 4  # the first two are k = n; not measured


class Training:
    """The ranks of one training; a context manager. `seconds` is what a step's compute takes; rank
    SLOW takes SLOWNESS times as long if `slow`. Times out with AssertionError."""

    def __init__(self, lab, name, seconds, policy, slow, build):
        self.lab, self.name, self.seconds, self.slow = lab, name, seconds, slow
        self.folder = lab.directory / name
        self.folder.mkdir()
        self.until = self.folder / "enough"
        library = os.environ.get("SLUICE_LIBRARY", str(Path(build) / "client" / "libsluice.so"))
        self.env = {
            "SLUICE_ADDRESS": lab.url, "SLUICE_JOB": name, "SLUICE_SECRET": "lab",
            "SLUICE_RUN_ID": f"{name}-{time.monotonic_ns()}", "WORLD_SIZE": str(WORLD_SIZE),
            "SLUICE_LIBRARY": library, "PYTHONPATH": str(ROOT / "client" / "python"),
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **policy}
        self.processes = [self._start(rank) for rank in range(WORLD_SIZE)]

    def _start(self, rank):
        seconds = self.seconds * (SLOWNESS if self.slow and rank == SLOW else 1)
        with self._log(rank).open("ab") as log:
            return self.lab.popen(
                rank, [PYTHON, str(Path(__file__).with_name("straggler_worker.py")), str(seconds),
                       str(self.until)],
                env={**self.env, "RANK": str(rank)}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log)

    def _log(self, rank):
        return self.folder / f"rank{rank}.log"

    def text(self, rank):
        return self._log(rank).read_text(errors="replace")

    def starts(self, rank):
        """(step, time, CPU seconds of the step before) of each step that the rank has begun."""
        rows = [line.split() for line in self.text(rank).splitlines() if line.startswith("step ")]
        return [(int(row[1]), float(row[2]), float(row[3])) for row in rows if len(row) == 4]

    def last_step(self, rank):
        return max((step for step, _, _ in self.starts(rank)), default=0)

    def await_true(self, condition, what, timeout):
        deadline = time.monotonic() + timeout
        while not condition():
            ended = [rank for rank, p in enumerate(self.processes)
                     if p.poll() not in (None, 0, -signal.SIGKILL)]
            assert not ended, f"{self.name}: rank {ended[0]} ended:\n{self.text(ended[0])[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name}: not within {timeout} s: {what}"
            time.sleep(0.02)

    def await_step(self, step, timeout=300, rank=0):
        self.await_true(lambda: self.last_step(rank) >= step, f"step {step} of rank {rank}",
                        timeout)

    def await_steps_more(self, count, timeout=300):
        self.await_step(self.last_step(0) + count, timeout)

    def signal(self, rank, number):
        os.killpg(self.processes[rank].pid, number)

    def stop_for(self, rank, steps):
        self.signal(rank, signal.SIGSTOP)
        self.await_steps_more(steps)
        self.signal(rank, signal.SIGCONT)

    def kill_and_restart(self, rank, dead_steps, steps):
        """Killed; started again when rank 0 has begun `dead_steps` more; returns when the new
        process has begun `steps` steps of its own."""
        self.signal(rank, signal.SIGKILL)
        self.processes[rank].wait(300)
        self.await_steps_more(dead_steps)
        wanted = len(self.starts(rank)) + steps
        self.processes[rank] = self._start(rank)
        self.await_true(lambda: len(self.starts(rank)) >= wanted,
                        f"{steps} steps of rank {rank} after its restart", 300)

    def finish(self, timeout=300):
        """Lets all ranks finish; what each of them says at the end."""
        self.until.touch()
        self.await_true(lambda: all(p.poll() is not None for p in self.processes), "the end",
                        timeout)
        return [json.loads(self.text(rank).splitlines()[-1]) for rank in range(WORLD_SIZE)]

    def step_seconds(self, rank=0):
        """The median time from step to step at `rank`; steps that it missed share their time."""
        rows = [row for row in self.starts(rank) if row[0] > WARM_UP_STEPS]
        times = []
        for (step, start, _), (after, end, _) in zip(rows, rows[1:]):
            times += [(end - start) / (after - step)] * (after - step)
        return statistics.median(times)

    def cpu_seconds(self):
        """The median CPU time of a step, over all ranks."""
        return statistics.median(cpu for rank in range(WORLD_SIZE)
                                 for step, _, cpu in self.starts(rank) if step > WARM_UP_STEPS)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.signal(rank, signal.SIGKILL)  # a stopped one would not hear of SIGTERM
                process.wait(300)


def fixed(k, late="drop"):
    return {"SLUICE_POLICY": "fixed", "SLUICE_K": str(k), "SLUICE_LATE": late}


def eventful(training, calm_steps=4):
    """One rank sleeps all the time, one is stopped and continued, one killed and restarted."""
    training.await_step(WARM_UP_STEPS + 2)
    training.stop_for(STOPPED, 3)
    training.await_steps_more(calm_steps)
    training.kill_and_restart(KILLED, 3, 4)
    training.await_steps_more(calm_steps)
    return training.finish()


def identical(ends):
    """Whether all replicas are bit-identical: parameters, buffers, optimizer, schedule."""
    return len({end["all"] for end in ends}) == 1 and len({end["applied"] for end in ends}) == 1
