"""The same training by real ranks in a lab: accuracy against the time of the clock on the wall.

16 processes, each in a host of its own, train through sluiced over UDP: with StaleSynchronous, or
for sync and `ramp` with sums and requeue. A rank computes its gradient and sleeps for the rest of
what is drawn for it, SCALE of the page's seconds. Rates, seeds, draws and batches are those of
virtual time; a run goes on for longer than virtual time needs to the target.

Evaluated afterwards, after as many gradients as in virtual time, from what the last rank has read:
nobody sees the store's parameters at any moment. Where fast ranks wait for slow ones they read just
after the late gradients, so virtual time is played again for that and evaluated alike.
"""
import bisect
import json
import os

import report
from allreduce import sluice_env
from cores import process_cpu_s

import lab

from papers.saina import stragglers, tuned
from papers.saina.training import History, time_to

from . import training

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = training.WORLD.workers
SCALE = 0.15
LEAST_S, LONGER = 150, 1.25  # of virtual time: how long a run goes on
POLICIES = {"sync": {"policy": "sync"},
            "ramp": {"policy": "ramp", "late": "requeue", "planned_steps": tuned.MOST_PROGRESS}}


def limit_s(history, target):
    """How long a run in the lab goes on that in virtual time went so; None: not known yet."""
    arrived = time_to(history, target)
    return None if arrived is None else max(LEAST_S, LONGER * arrived)


def played(network, task, trial, target):
    """The record of the store in virtual time, evaluated from what the last rank reads."""
    run, copies = training.Run(network, task, trial), []
    read = run.store.read

    def noted(rank):
        row = read(rank)
        if rank == RANKS - 1:
            copies.append((run.now_us / stragglers.US, run.progress, row))
        return row

    run.store.read = noted
    history, due = History(), tuned.EVALUATE
    try:
        while run.progress < tuned.MOST_PROGRESS:
            run.complete_step()
            due = evaluate(history, due, network, task, copies)
            copies.clear()
            end_s = limit_s(history, target)
            if end_s is not None and run.now_us >= end_s * stragglers.US:
                break
        return dict(run.summary(), **curve_of(history))
    finally:
        run.close()


def evaluate(history, due, network, task, copies):
    """Adds the evaluations that are due, at this progress first, as tuned.follow() does; returns
    when the next one is."""
    import torch
    for at_s, progress, row in copies:
        if progress < due - 1e-6:
            continue
        due += tuned.EVALUATE
        history.seconds.append(at_s)
        history.accuracies.append(network.accuracy(
            torch.from_numpy(row), task.test_images[:tuned.SHOWN],
            task.test_labels[:tuned.SHOWN]))
    return due


def curve_of(history):
    return {"times": [round(value, 3) for value in history.seconds],
            "accuracies": [round(value, 5) for value in history.accuracies]}


def trial_of(setting, scheme, seed, rate, limit):
    name = f"{setting}-{scheme[0]}-{seed}".replace("=", "")
    how = ({"bound": training.bound_of(scheme[0])} if scheme in training.STORES else
           {"policy": POLICIES[scheme[0]]})
    return dict(how, name=name, setting=setting, seed=seed, rate=rate, scale=SCALE,
                limit_s=SCALE * limit)


def copies_of(trial, said, folder):
    """(seconds of virtual time since the start, progress, parameters), in order of time."""
    import numpy as np
    began = min(rank["began_s"] for rank in said)
    kept = np.load(os.path.join(folder, trial["name"] + ".npz"))
    if "bound" in trial:
        pushed = sorted(at for rank in said for at in rank["pushed_s"])
        return [((at - began) / SCALE, bisect.bisect_right(pushed, at) / len(said), row)
                for at, row in zip(kept["at_s"].tolist(), kept["rows"])]
    first = {}  # step -> when the first rank had it
    for rank in said:
        for step, at, _progress in rank["applied"]:
            first[step] = min(at, first.get(step, at))
    return [((first[step] - began) / SCALE, progress, row)
            for (step, _at, progress), row in zip(said[-1]["applied"], kept["rows"])]


def record(trial, said, history, cpu_s):
    gradients = sum(len(rank["pushed_s"]) for rank in said)
    seconds = max(max(rank["pushed_s"]) - rank["began_s"] for rank in said)
    found = {"rate": trial["rate"], "gradients": gradients,
             "cores": round(cpu_s / seconds, 3),  # busy with it
             "late_s": round(sum(rank["late_s"] for rank in said) / gradients, 6),
             **curve_of(history)}
    if "bound" not in trial:
        return dict(found, resyncs=sum(rank["resyncs"] for rank in said))
    counts = {}
    for rank in said:
        for behind, count in rank["staleness"].items():
            counts[int(behind)] = counts.get(int(behind), 0) + count
    spent = sum(max(rank["pushed_s"]) - rank["began_s"] for rank in said)
    return dict(found, waited=round(sum(rank["suspended_s"] for rank in said) / spent, 4),
                staleness=round(training.mean_of(counts), 4))


def started(hosts, folder):
    env = {**sluice_env(hosts), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], os.path.dirname(os.path.dirname(HERE))])
    worker = [report.PYTHON, os.path.join(HERE, "real_worker.py"), folder]
    return [hosts.popen(rank, worker, env={**env, "RANK": str(rank)}, stdin=-1, stdout=-1,
                        text=True)
            for rank in range(RANKS)]


def ask(ranks, trial):
    """What each rank says of a trial."""
    for rank in ranks:
        rank.stdin.write(json.dumps(trial) + "\n")
        rank.stdin.flush()
    said = []
    for number, rank in enumerate(ranks):
        line = rank.stdout.readline()
        if not line:
            raise report.BenchError(f"rank {number} ended with status {rank.wait(5)}; its message "
                                    "is above")
        said.append(json.loads(line))
    return said


class Lab:
    """The tasks, and the network; processes that train once something is to run."""

    def __init__(self):
        from papers.saina import models
        self.network = models.Network(training.WORLD.architecture)
        self._tasks, self._hosts, self._ranks = {}, None, []

    def task(self, seed):
        from papers.saina import tasks
        if seed not in self._tasks:
            self._tasks[seed] = tasks.load(training.WORLD.task, seed)
        return self._tasks[seed]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self._hosts is not None:
            self._hosts.__exit__(*error)

    def _start(self):
        report.program("dataplane/sluiced")
        self._hosts = lab.Lab(hosts=RANKS).__enter__()
        self._switch = self._hosts.start_appliance(report.build_dir()).pid
        self._folder = str(self._hosts.directory)
        self._ranks = started(self._hosts, self._folder)

    def run(self, trial):
        """The record of a trial."""
        if self._hosts is None:
            self._start()
        before = process_cpu_s(self._switch)
        said = ask(self._ranks, trial)
        spent = process_cpu_s(self._switch) - before + sum(rank["cpu_s"] for rank in said)
        history = History()
        evaluate(history, tuned.EVALUATE, self.network, self.task(trial["seed"]),
                 copies_of(trial, said, self._folder))
        return record(trial, said, history, spent)


def run_missing(path):
    """Runs what the records at `path` lack, and appends it there."""
    from papers import paper
    from .training_tables import Training
    known = Training(paper.load(path))
    with paper.open_to_append(path) as file, Lab() as hosts:
        def note(key, found):
            known.records[key] = dict(found, key=key)
            paper.append(file, known.records[key])

        for seed in training.SEEDS:
            for setting in training.SETTINGS:
                for scheme in training.SCHEMES:
                    try:
                        run_one(known, hosts, note, setting, scheme, seed)
                    except lab.LabError as error:
                        raise report.BenchError(str(error)) from None


def run_one(known, hosts, note, setting, scheme, seed):
    if seed not in known.runs(setting, scheme):
        raise report.BenchError(f"{setting}, {scheme[0]}: not trained in virtual time yet, which "
                                "--long does")
    rate, target = known.rate(setting, scheme), known.target(seed)
    key = training.read_key(setting, scheme, seed)
    if scheme in training.STORES and key not in known.records:
        note(key, played(hosts.network, hosts.task(seed),
                         training.curve(setting, scheme, seed, rate), target))
    key = training.lab_key(setting, scheme, seed)
    if key not in known.records:
        curve = known.beside(setting, scheme)[seed]
        history = History(seconds=curve["times"], accuracies=curve["accuracies"])
        note(key, hosts.run(trial_of(setting, scheme, seed, rate,
                                     limit_s(history, target) or curve["seconds"])))
