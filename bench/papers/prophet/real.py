"""The real run: two ranks with the production client, sluiced, links shaped with htb.

Bytes and rates are divided by SCALE, compute is not, so that step times stay what they are; the
latency is what the lab has, a few hundred microseconds and the queues'. Every rank holds one job a
schedule and takes an iteration of each in turn, so that a slow minute of the machine hits all.
The client's own sizes are used: units of 1 MiB and a credit of 4 MiB, SCALE times as many at full
size. Stop-and-wait is no schedule of the client's: only the simulator has it.
"""
import json
import os
import statistics
import time

import report
from allreduce import BusyShare, sluice_env

import lab

from . import settings, simulation

HERE = os.path.dirname(os.path.abspath(__file__))
SCALE = settings.LAB_SCALE
RANKS = 2
ITERATIONS = 24  # of each schedule, in turn
STEADY = 12     # at the end, that count
SETTINGS = tuple(settings.Setting("resnet50", rate, 1.0) for rate in (1, 3))
SCHEDULES = ("fifo", "credit", "prophet", "strict")
RUN_TIMEOUT_S = 300
VARIANT = "lab"


def task(setting):
    """What a rank is told."""
    tensors = [{"elem_count": max(1, tensor.bytes // 4 // SCALE), "ready_s": tensor.ready_s,
                "forward_s": tensor.forward_s} for tensor in settings.tensors(setting.model)]
    return {"tensors": tensors, "schedules": SCHEDULES, "iterations": ITERATIONS}


def _run(setting):
    rate_mbps = 1000 * setting.rate_gbps / SCALE
    with lab.Lab(hosts=RANKS, rate_mbps=rate_mbps) as shaped:
        shaped.start_appliance(report.build_dir())
        env = sluice_env(shaped)
        env.pop("SLUICE_JOB")
        env["WORLD_SIZE"] = str(RANKS)
        busy = BusyShare()
        ranks = [shaped.popen(rank, [report.PYTHON, os.path.join(HERE, "real_worker.py"),
                                     json.dumps(task(setting))],
                              env={**env, "RANK": str(rank)}, stdout=-1, text=True)
                 for rank in range(RANKS)]
        deadline = time.monotonic() + RUN_TIMEOUT_S
        said = []
        for number, rank in enumerate(ranks):
            out, _ = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if rank.returncode != 0:
                raise report.BenchError(f"rank {number} of {setting} ended with status "
                                        f"{rank.returncode}; its message is above")
            said.append(json.loads(out))
        return said, busy.percent()


def records():
    report.program("dataplane/sluiced")
    out = []
    try:
        for setting in SETTINGS:
            said, busy_percent = _run(setting)
            out += [_record(setting, schedule, said, busy_percent) for schedule in SCHEDULES]
    except lab.LabError as error:
        raise report.BenchError(str(error)) from None
    return out


def _record(setting, schedule, said, busy_percent):
    steady = [1e3 * value for value in said[0]["seconds"][schedule][-STEADY:]]
    record = {"key": simulation.key(VARIANT, setting, schedule), "variant": VARIANT,
              "model": setting.model, "rate_gbps": setting.rate_gbps,
              "latency_ms": setting.latency_ms, "policy": schedule,
              "iteration_ms": round(statistics.median(steady), 2),
              "least_ms": round(min(steady), 2), "most_ms": round(max(steady), 2),
              "retransmissions": sum(rank["retransmissions"][schedule] for rank in said),
              "busy_percent": round(busy_percent)}
    if schedule == "prophet":
        record["plan"] = said[0]["plan"]
    return record
