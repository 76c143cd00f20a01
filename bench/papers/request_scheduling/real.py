"""The same training by real ranks in a lab, beside what virtual time says of it.

A rank computes its gradient, sleeps for the rest of what is drawn for it, a quarter of the page's
seconds, and steps: StaleSynchronous over UDP, through sluiced. Measured: when so many gradients of
all ranks have been pushed, how long ranks waited and how stale they read.
"""
import json
import os
import time

import report
from allreduce import sluice_env

import lab

from . import training

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 4
STEPS = 20  # gradients of all ranks, in steps of all
SCALE = 0.25
SEED, RATE = 0, 0.3
JOIN_S, RUN_TIMEOUT_S = 60, 120
WORLD = training.WORLD._replace(workers=RANKS)


def virtual(network, task, setting, scheme):
    run = training.Run(network, task, training.tuned.Trial(WORLD, setting, *scheme, "curve", SEED,
                                                           RATE))
    try:
        for _push in range(RANKS * STEPS):
            run.complete_step()
        return run.summary()
    finally:
        run.close()


def ranks_of(setting, scheme, limit_s):
    """What each rank says."""
    task = json.dumps({"setting": setting, "bound": training.bound_of(scheme[0]), "rate": RATE,
                       "seed": SEED, "scale": SCALE, "limit_s": limit_s})
    with lab.Lab(hosts=RANKS) as hosts:
        hosts.start_appliance(report.build_dir())
        env = {**sluice_env(hosts), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"],
                                             os.path.dirname(os.path.dirname(HERE))])
        ranks = [hosts.popen(rank, [report.PYTHON, os.path.join(HERE, "real_worker.py"), task],
                             env={**env, "RANK": str(rank)}, stdout=-1, text=True)
                 for rank in range(RANKS)]
        deadline, said = time.monotonic() + RUN_TIMEOUT_S, []
        for number, rank in enumerate(ranks):
            out, _ = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
            if rank.returncode != 0:
                raise report.BenchError(f"rank {number} ended with status {rank.returncode}; its "
                                        "message is above")
            said.append(json.loads(out))
        return said


def record(setting, scheme, expected, said):
    began = min(rank["began_s"] for rank in said)
    ends = sorted(at for rank in said for at in rank["pushed_s"])
    end = ends[RANKS * STEPS - 1]
    counts = {}
    for rank in said:
        for behind, count in rank["staleness"].items():
            counts[int(behind)] = counts.get(int(behind), 0) + count
    computing = sum(max(rank["pushed_s"]) - rank["began_s"] for rank in said)
    return {"key": training.lab_key(setting, scheme), "virtual": expected,
            "lab": {"seconds": round((end - began) / SCALE, 3),
                    "waited": round(sum(rank["suspended_s"] for rank in said) / computing, 4),
                    "staleness": round(training.mean_of(counts), 4)}}


def records():
    from papers.saina import models, tasks
    report.program("dataplane/sluiced")
    network, task = models.Network(WORLD.architecture), tasks.load(WORLD.task, SEED)
    try:
        for setting in training.SETTINGS:
            for scheme in training.STORES:
                expected = virtual(network, task, setting, scheme)
                said = ranks_of(setting, scheme, 1.2 * SCALE * expected["seconds"] + 1)
                yield record(setting, scheme, expected, said)
    except lab.LabError as error:
        raise report.BenchError(str(error)) from None
