"""Training in the lab with gradients in several formats; for test_wire_training.py and bench wire.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
FORMATS = ("float32", "bfloat16", "float16", "int8")


def run(lab, build, steps, seeds, formats, timeout):
    """What each host's rank says of its trainings: a list a rank, see wire_worker.py.
    AssertionError with a rank's output if it fails, or if one still trains after `timeout` s."""
    library = os.environ.get("SLUICE_LIBRARY", str(Path(build) / "client" / "libsluice.so"))
    env = {"SLUICE_ADDRESS": lab.url, "SLUICE_SECRET": "lab", "WORLD_SIZE": str(lab.hosts),
           "SLUICE_RUN_ID": f"wire-{time.monotonic_ns()}", "SLUICE_LIBRARY": library,
           "PYTHONPATH": str(ROOT / "client" / "python"), "OMP_NUM_THREADS": "1"}
    command = [PYTHON, str(Path(__file__).with_name("wire_worker.py")), str(steps), str(seeds),
               *formats]
    ranks = [lab.popen(rank, command, env={**env, "RANK": str(rank)}, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(lab.hosts)]
    deadline = time.monotonic() + timeout
    reports = []
    for rank, process in enumerate(ranks):
        try:
            out, err = process.communicate(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} still trains after {timeout} s") from None
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{err}"
        reports.append(json.loads(out.splitlines()[-1]))
    return reports


def identical(reports):
    """Whether after each training all replicas were the same, to the bit."""
    return all(len({one["digest"] for one in trainings}) == 1 for trainings in zip(*reports))
