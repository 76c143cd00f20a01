"""One rank of a training in a lab; real.py starts it in a host of its own.

    real_worker.py JSON FOLDER    RANK, WORLD_SIZE, addresses: in the environment

It holds one job and one copy of the network a rule, and takes a step of each in turn, so that a
slow minute of the machine hits all. What it has noted is one line of JSON at the end; the last rank
leaves the parameters that it has come to in FOLDER, as copies.npz.
"""
import hashlib
import json
import os
import sys
import time

import numpy as np
import torch

import sluice
from papers.prune import group, settings, training
from papers.saina import tasks

TIMEOUT_S = 120
COUNTERS = "/sys/class/net/eth0/statistics"
AROUND_FRAME = 24  # preamble, gap and check sequence: what a link has of a frame besides


def port_bytes():
    """(sent, received) by this host's port so far, as a link has them."""
    def read(name):
        with open(f"{COUNTERS}/{name}", encoding="ascii") as file:
            return int(file.read())
    return tuple(read(f"{way}_bytes") + AROUND_FRAME * read(f"{way}_packets")
                 for way in ("tx", "rx"))


def job_options(rule):
    """Of the product, which always has error feedback: without, what is left of a gradient is all
    that the job sees, and all of it leaves."""
    if rule.name == "off":
        return {"prune": "off"}
    if not rule.feedback:
        return {"prune": "static", "prune_fraction": 1.0}
    return {"prune": rule.name, "prune_fraction": rule.fraction, "prune_sigmas": rule.sigmas,
            "prune_warmup": rule.warmup_steps}


class Trainee:
    """This rank's network, batches and job under one rule, and what it notes of each step."""

    def __init__(self, rule, task, seed, rank, workers, **options):
        self._task, self._rank = task, rank
        self._shards = tasks.Shards(task, workers, settings.BATCH, False, seed)
        self._layers = training.initial(seed)
        self._sizes = [count for count, _dense in settings.tensors()]
        self._mask = None
        if rule.name != "off" and not rule.feedback:
            self._mask = group.Group(1, settings.tensors(), rule)
        specs = [(str(number), count, "float32", False, dense)
                 for number, (count, dense) in enumerate(settings.tensors())]
        self.job = sluice.Job(specs, job=rule.key.replace(" ", "-"), averaging="weight",
                              rank=rank, world_size=workers, **job_options(rule), **options)
        self.copies = []  # of parameters
        self.late_s = 0.0  # what computing took beyond its time

    @property
    def row(self):
        return torch.cat([part.flatten() for layer in self._layers for part in layer]).numpy()

    def step(self, number, compute_s):
        due = time.monotonic() + compute_s
        batch = torch.from_numpy(self._shards.next_batch(self._rank)).unsqueeze(1)
        images = self._task.train_images[batch].flatten(2)
        mean = training.gradients(self._layers, images, self._task.train_labels[batch])[0]
        if self._mask:
            mean, _done = self._mask.step(mean[None])
        time.sleep(max(0.0, due - time.monotonic()))
        self.late_s += time.monotonic() - due
        for index, part in enumerate(np.split(mean, np.cumsum(self._sizes)[:-1])):
            self.job.submit(index, part, priority=index)
        self.job.wait_step(TIMEOUT_S)
        self._layers = training.updated(self._layers, mean, training.rate(number))
        if number % settings.EVALUATE_STEPS == 0:
            self.copies.append(self.row)

    def close(self):
        """What is known at the end."""
        stats = self.job.stats()
        self.job.close()
        return {"late_s": self.late_s, "retransmissions": stats["retransmissions"],
                "parameters": hashlib.sha256(self.row.tobytes()).hexdigest()}


def train(rules, seed, steps, compute_s, rank, workers, port=port_bytes, **options):
    """(what this rank says, the rules' Trainees)."""
    task = tasks.load(settings.TASK, seed)
    trainees = [Trainee(rule, task, seed, rank, workers, **options) for rule in rules]
    turns = [(time.monotonic(), *port())]  # where the first began, and each ended
    for number in range(1, steps + 1):
        for trainee in trainees:
            trainee.step(number, compute_s)
            turns.append((time.monotonic(), *port()))
    return {"turns": turns, "rules": [trainee.close() for trainee in trainees]}, trainees


def main():
    torch.set_num_threads(1)
    trial, folder = json.loads(sys.argv[1]), sys.argv[2]
    rules = [settings.Rule(**rule) for rule in trial.pop("rules")]
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    said, trainees = train(rules, **trial, rank=rank, workers=workers)
    if rank == workers - 1:
        np.savez(os.path.join(folder, "copies"),
                 **{rule.key: np.stack(trainee.copies) for rule, trainee in zip(rules, trainees)})
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
