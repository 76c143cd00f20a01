"""The real run: ranks with the production client, sluiced, links shaped with htb.

Bytes, rates and the sizes of credit are divided by SCALE, compute is not, so that step times stay
what they are; packets and windows are not either. The latency is what the lab has, a few hundred
microseconds and the queues', which do not mark: what waits in rank 0's link is sampled. Every rank
holds one job a schedule and takes an iteration of each in turn, so that a slow minute of the
machine hits all. Stop-and-wait is no schedule of the client's: only the simulator has it.
"""
import json
import os
import re
import statistics
import time

import report
from allreduce import BusyShare, sluice_env

import lab

from . import settings, simulation

HERE = os.path.dirname(os.path.abspath(__file__))
SCALE = 100  # all ranks and sluiced share two cores
ITERATIONS = 24  # of each schedule, in turn
STEADY = 12     # at the end, that count
# Keywords of each schedule's job.
SCHEDULES = {"fifo": {}, "prophet": {}, "strict": {},
             "credit": {"unit_bytes": settings.DEFAULT_CREDIT.unit // SCALE,
                        "credit_bytes": settings.DEFAULT_CREDIT.credit // SCALE}}
RUN_TIMEOUT_S = 300
SAMPLE_S = 0.5


def task(setting):
    """What a rank is told."""
    tensors = [{"elem_count": max(1, tensor.bytes // 4 // SCALE), "ready_s": tensor.ready_s,
                "forward_s": tensor.forward_s} for tensor in settings.tensors(setting.model)]
    return {"tensors": tensors, "schedules": SCHEDULES, "iterations": ITERATIONS}


def _run(setting, workers):
    rate_mbps = 1000 * setting.rate_gbps / SCALE
    with lab.Lab(hosts=workers, rate_mbps=rate_mbps) as shaped:
        shaped.start_appliance(report.build_dir())
        env = sluice_env(shaped)
        env.pop("SLUICE_JOB")
        env["WORLD_SIZE"] = str(workers)
        busy = BusyShare()
        ranks = [shaped.popen(rank, [report.PYTHON, os.path.join(HERE, "real_worker.py"),
                                     json.dumps(task(setting))],
                              env={**env, "RANK": str(rank)}, stdout=-1, text=True)
                 for rank in range(workers)]
        deadline = time.monotonic() + RUN_TIMEOUT_S
        most_waiting = 0
        while ranks[0].poll() is None and time.monotonic() < deadline:
            time.sleep(SAMPLE_S)
            most_waiting = max(most_waiting, _waiting_packets(shaped))
        said = []
        for number, rank in enumerate(ranks):
            out, _ = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if rank.returncode != 0:
                raise report.BenchError(f"rank {number} of {setting} ended with status "
                                        f"{rank.returncode}; its message is above")
            said.append(json.loads(out))
        return said, {"busy_percent": round(busy.percent()), "most_waiting_packets": most_waiting}


def _waiting_packets(shaped):
    """In the queue of rank 0's link."""
    said, _ = shaped.popen(0, ["tc", "-s", "qdisc", "show", "dev", "eth0"], stdout=-1,
                           text=True).communicate()
    return max((int(count) for count in re.findall(r"backlog \S+ (\d+)p", said)), default=0)


def records():
    report.program("dataplane/sluiced")
    out = []
    try:
        for workers in simulation.LAB_WORKERS:
            for setting in simulation.LAB_SETTINGS:
                said, machine = _run(setting, workers)
                out += [_record(setting, workers, schedule, said, machine)
                        for schedule in SCHEDULES]
    except lab.LabError as error:
        raise report.BenchError(str(error)) from None
    return out


def _record(setting, workers, schedule, said, machine):
    steady = [1e3 * value for value in said[0]["seconds"][schedule][-STEADY:]]
    median_ms = statistics.median(steady)
    sent_s = 8 * said[0]["bytes_sent"][schedule] / ITERATIONS / (setting.rate_gbps * 1e9 / SCALE)
    variant = simulation.lab_name(workers)
    return {"key": simulation.key(variant, setting, schedule), "variant": variant,
            "model": setting.model, "rate_gbps": setting.rate_gbps,
            "latency_ms": setting.latency_ms, "policy": schedule,
            "iteration_ms": round(median_ms, 2),
            "least_ms": round(min(steady), 2), "most_ms": round(max(steady), 2),
            "gpu_percent": round(1e5 * setting.compute_s / median_ms, 1),
            "network_percent": round(1e5 * sent_s / median_ms, 1),  # without headers
            "retransmissions": sum(rank["retransmissions"][schedule] for rank in said),
            **machine}
