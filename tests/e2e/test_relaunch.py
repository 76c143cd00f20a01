"""A run that is killed whole and started at once under the name that the dead run still holds.

No port is closed in order: every rank gets SIGKILL, and the next run's ranks start at once.
Their joins wait until the dead have not answered, without an error, and then the job runs.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import Lab, missing
from workers import BUILD, finish, start, wait_joined

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
# A script as srun starts it: nothing about ranks but what SLURM says.
SCRIPT = """
import json, sys, time
import numpy, sluice
steps = int(sys.argv[1])
begin = time.monotonic()
job = sluice.Job([("weight", 5000, "float32")])
print("JOINED", flush=True)
joined = time.monotonic() - begin
for step in range(1, steps + 1):
    data = numpy.full(5000, job.rank + step, numpy.float32)
    job.submit("weight", data)
    job.end_step()
    job.wait_step(timeout=300)
    mean = sum(rank + step for rank in range(job.world_size)) / job.world_size
    assert (data == mean).all(), (step, data[0], mean)
job.close()
print(json.dumps({"ok": True, "rank": job.rank, "joined_s": joined}))
"""


def kill_all(processes):
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_run_killed_whole_and_started_at_once_waits_and_runs():
    with Lab(hosts=RANKS) as lab:
        lab.start_appliance(BUILD)

        def launch(run_id, steps):
            return [
                start(lab, rank, lab.url, rank, RANKS, run_id=run_id, steps=steps, elems=40_000)
                for rank in range(RANKS)
            ]

        run = launch(1, steps=1_000_000)
        for run_id in (2, 3, 4):
            for worker in run:
                wait_joined(worker)
            time.sleep(0.2)  # in mid-step
            kill_all(run)
            run = launch(run_id, steps=1_000_000)
        for worker in run:
            wait_joined(worker)
        kill_all(run)
        for worker in launch(5, steps=5):
            report = finish(worker)
            assert report["exit"] == 0, report


def test_a_healthy_run_is_not_displaced_by_another_one():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)
        run = [start(lab, r, lab.url, r, 2, run_id=1, steps=150, pause_ms=50) for r in range(2)]
        for worker in run:
            wait_joined(worker)
        report = finish(start(lab, 0, lab.url, 0, 2, run_id=2))
        assert report["exit"] == 3, report
        assert "is in use by run 0000000000000001" in report["error"], report
        for worker in run:
            assert finish(worker)["exit"] == 0


def test_slurms_variables_are_all_that_a_requeued_job_needs():
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SLUICE_", "SLURM_", "TORCHELASTIC_", "MASTER_"))
        and key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    with Lab(hosts=RANKS) as lab:
        lab.start_appliance(BUILD)

        def launch(steps, **slurm):
            """What `srun -n 3` gives each task, of one job of SLURM."""
            library = os.environ.get("SLUICE_LIBRARY", BUILD.resolve() / "client" / "libsluice.so")
            run = []
            for rank in range(RANKS):
                given = {
                    **kept,
                    "SLUICE_ADDRESS": lab.url,
                    "SLUICE_SECRET": "lab",
                    "SLUICE_LIBRARY": str(library),
                    "PYTHONPATH": str(ROOT / "client" / "python"),
                    "SLURM_JOB_ID": "4711",
                    "SLURM_STEP_ID": "0",
                    "SLURM_PROCID": str(rank),
                    "SLURM_LOCALID": "0",
                    "SLURM_NTASKS": str(RANKS),
                    **slurm,
                }
                line = [f"{key}={value}" for key, value in given.items()]
                run.append(
                    lab.popen(
                        rank,
                        ["env", "-i", *line, sys.executable, "-B", "-c", SCRIPT, str(steps)],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            return run

        first = launch(1_000_000)
        for worker in first:
            wait_joined(worker)
        kill_all(first)
        # As after `scontrol requeue`: the same job id, and the restart counted.
        second = [finish(worker) for worker in launch(5, SLURM_RESTART_COUNT="1")]
        assert [report.get("rank") for report in second] == list(range(RANKS)), second
        assert all(report["exit"] == 0 for report in second), second
