"""The same training by real ranks in a lab: accuracy against the time of the clock on the wall.

8 processes, each in a host of its own, train through sluiced over UDP with the production client;
links are shaped. A second of the page is shorter here, computing (padded by sleep) and links alike,
so what a step computes, what it sends and how long each takes beside the other are the page's.
The rules of a trial take turns, a step each; a rule's step lasts from the moment that the last rank
was through with the rule before it until the last rank has its averages and has applied them.
"""
import dataclasses
import json
import os
import statistics
import sys
import time

import numpy as np
import report
import torch
from allreduce import sluice_env
from cores import BusyShare

import lab

from papers import paper
from papers.saina import tasks

from . import settings, training

HERE = os.path.dirname(os.path.abspath(__file__))
RUN_TIMEOUT_S = 1800


def run_missing(path, trials, steps=settings.STEPS):
    """Runs those of the trials that the records at `path` lack, and appends them there."""
    known = paper.load(path)
    with paper.open_to_append(path) as file:
        for link, seed, rules in trials:
            missing = [rule for rule in rules
                       if settings.lab_key(link, seed, rule.key) not in known]
            try:
                for record in run(link, seed, missing, steps) if missing else ():
                    paper.append(file, record)
            except lab.LabError as error:
                raise report.BenchError(str(error)) from None


def run(link, seed, rules, steps):
    report.program("dataplane/sluiced")
    print(f"{link}, seed {seed}: {', '.join(rule.key for rule in rules)}", file=sys.stderr)
    trial = {"rules": [dataclasses.asdict(rule) for rule in rules], "seed": seed, "steps": steps,
             "compute_s": settings.COMPUTE_S * settings.lab_scale(link)}
    with lab.Lab(settings.WORKERS, settings.LAB_RATES_MBPS[link]) as hosts:
        hosts.start_appliance(report.build_dir())
        folder, busy, load = str(hosts.directory), BusyShare(), os.getloadavg()[0]
        said = _ended(_started(hosts, trial, folder))
        copies = np.load(os.path.join(folder, "copies.npz"))
        found = {"busy_percent": round(busy.percent()), "load": round(load, 1)}
        return records(link, seed, rules, steps, said, copies, found)


def _started(hosts, trial, folder):
    env = {**sluice_env(hosts), "WORLD_SIZE": str(settings.WORKERS), "OMP_NUM_THREADS": "1",
           "SLUICE_BUILD": report.build_dir()}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], os.path.dirname(os.path.dirname(HERE))])
    env.pop("SLUICE_JOB")
    worker = [report.PYTHON, os.path.join(HERE, "real_worker.py"), json.dumps(trial), folder]
    return [hosts.popen(rank, worker, env={**env, "RANK": str(rank)}, stdout=-1, text=True)
            for rank in range(settings.WORKERS)]


def _ended(ranks):
    """What each rank says."""
    deadline, said = time.monotonic() + RUN_TIMEOUT_S, []
    for number, rank in enumerate(ranks):
        out, _ = rank.communicate(timeout=max(1.0, deadline - time.monotonic()))
        if rank.returncode != 0:
            raise report.BenchError(f"rank {number} ended with status {rank.returncode}; its "
                                    "message is above")
        said.append(json.loads(out))
    return said


def records(link, seed, rules, steps, said, copies, found):
    """Of each rule, with `found` in each."""
    turns = np.array([rank["turns"] for rank in said])  # [rank, turn, (time, sent, received)]
    took_s = np.diff(turns[:, :, 0].max(axis=0), prepend=turns[:, 0, 0].min())[1:]
    carried = np.diff(turns[:, :, 1:], axis=1).mean(axis=0)
    task = tasks.load(settings.TASK, seed)
    return [_record(settings.lab_key(link, seed, rule.key), settings.lab_scale(link),
                    took_s[at::len(rules)], carried[at::len(rules)],
                    [rank["rules"][at] for rank in said],
                    [training.accuracy_of(row, task) for row in copies[rule.key]],
                    {**found, "steps": list(range(1, steps + 1))[settings.EVALUATE_STEPS - 1::
                                                                 settings.EVALUATE_STEPS]})
            for at, rule in enumerate(rules)]


def _record(name, scale, took_s, carried, ends, accuracies, found):
    if len({end["parameters"] for end in ends}) != 1:
        raise report.BenchError(f"{name}: ranks have come to different parameters")

    def at_evaluations(values, digits=None):
        total = np.cumsum(values)[settings.EVALUATE_STEPS - 1::settings.EVALUATE_STEPS]
        return [round(float(value), digits) for value in total]

    return {"key": name, **found, "accuracies": [round(value, 4) for value in accuracies],
            "times": at_evaluations(took_s / scale, 3), "up_bytes": at_evaluations(carried[:, 0]),
            "down_bytes": at_evaluations(carried[:, 1]),
            "step_ms": [round(1e3 * float(value), 2)
                        for value in np.percentile(took_s, (50, 25, 75))],
            "late_ms": round(1e3 * statistics.mean(end["late_s"] for end in ends) / len(took_s), 2),
            "retransmissions": sum(end["retransmissions"] for end in ends)}
