"""Cables between a lab's hosts and its box: long, lossy, with short queues.

A process in user space (cable.c, built as `lab_cable`) carries every frame between the two ends of
each link, as sluiced's own fault-injecting port and the kernel's shapers can't: they have no delay.
The draws repeat with the seed, but which frame gets which draw depends on the order of arrival.

    with Lab(hosts=4, cabled=True, rate_mbps=200) as lab, \\
            cables.laid(lab, build_dir, Cable(mbps=200, round_trip_ms=30, loss=0.1)) as counts:
        ...
    counts["there"]["lost"]  # "there": from the hosts, "back": to them; all cables together
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

START_S = STOP_S = 30.0


@dataclass(frozen=True)
class Cable:
    """What every cable does, in each of its two ways."""

    mbps: int = 0  # of the wire, 24 bytes a frame besides its own; 0: no limit
    round_trip_ms: float = 0.0
    queue: int = 1000  # frames that may wait; what comes then is dropped
    loss: float = 0.0  # percent of the frames
    burst: int = 1  # frames that are lost in a row, on average
    jitter_ms: float = 0.0  # up to so much more delay, and frames stay in order
    reorder: float = 0.0  # percent of the frames, which others pass
    reorder_ms: float = 0.0  # how long such a frame is held back at most
    duplicate: float = 0.0  # percent of the frames
    seed: int = 1

    def arguments(self, mtu: int) -> list[str]:
        values = {
            "mbps": self.mbps, "delay_us": self.round_trip_ms * 500, "queue": self.queue,
            "loss_ppm": self.loss * 1e4, "burst": self.burst, "jitter_us": self.jitter_ms * 1e3,
            "reorder_us": self.reorder_ms * 1e3, "reorder_ppm": self.reorder * 1e4,
            "duplicate_ppm": self.duplicate * 1e4, "seed": self.seed, "mtu": mtu,
        }
        return [f"{name}={round(value)}" for name, value in values.items()]


@contextlib.contextmanager
def laid(lab, build_dir: str | Path, cable: Cable):
    """Frames are carried while the block runs. Yields what is filled at its end: the process's
    counters. `late` frames left over 1 ms after their time and `overrun` ones were lost by the
    process itself: with many of either, this machine is too slow for the rate."""
    ends = [end for host in range(lab.hosts) for end in (f"near{host}", f"far{host}")]
    program = Path(build_dir) / "tests" / "lab" / "lab_cable"
    process = lab.popen(lab.hosts, [str(program), *cable.arguments(lab.mtu), *ends],
                        stdout=-1, text=True)
    counts: dict[str, dict[str, int]] = {}
    try:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{program} did not start; its message is above")
        yield counts
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=STOP_S)
        counts.update(json.loads(said or "{}"))
