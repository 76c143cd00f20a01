"""One rank of trainings in a lab, one after the other; real.py starts it in a host of its own.

    real_worker.py FOLDER    RANK, WORLD_SIZE, addresses: in the environment

A trial is a line of JSON on stdin, what is said of it one on stdout. The last rank also leaves what
parameters it has come to in FOLDER, as NAME.npz.
"""
import json
import os
import signal
import sys
import time

import numpy as np
import torch

import sluice
import sluice.torch
from papers.saina import models, stragglers, tasks
from papers.saina.training import BATCH, WARM_UP_STEPS

GRACE_S = 60  # that a trial may take longer than it should before this process ends


class Layer(torch.nn.Module):
    """The network's parameters, one flat row, are one layer of the store."""

    def __init__(self, network, seed):
        super().__init__()
        self.network, self.row = network, torch.nn.Parameter(network.initial(seed))

    def forward(self, images):
        return self.network.logits(self.row.unsqueeze(0), images.unsqueeze(1))[:, 0]


class Trainee:
    """A rank's gradients, each of which takes the time that is drawn for it, and what it notes."""

    def __init__(self, trial, rank, workers, data):
        self.trial, self.rank, self._data = trial, rank, data
        self.keeps_copies = rank == workers - 1  # never one of the slow
        self.shards = tasks.Shards(data, workers, BATCH, stragglers.is_skewed(trial["setting"]),
                                   trial["seed"])
        self.durations = stragglers.Durations(trial["setting"], workers, trial["seed"])
        self.model = Layer(models.Network("small"), trial["seed"])
        self.copies = []    # of parameters
        self.copied_s = []  # when they were
        self.pushed_s = []
        self.late_s = 0.0   # what gradients took beyond what was drawn for them

    def begin(self):
        self.began_s, self._cpu_s = time.monotonic(), time.process_time()

    def goes_on(self):
        return time.monotonic() < self.began_s + self.trial["limit_s"]

    def rate(self, progress):
        return self.trial["rate"] * min(1.0, progress / WARM_UP_STEPS)

    def keep_copy(self):
        if self.keeps_copies:
            self.copied_s.append(time.monotonic())
            self.copies.append(self.model.row.detach().numpy().copy())

    def compute(self):
        """The next gradient, in the parameters' .grad."""
        drawn_s = self.trial["scale"] * self.durations.next_us(self.rank) / stragglers.US
        due = time.monotonic() + drawn_s
        indices = torch.from_numpy(self.shards.next_batch(self.rank))
        self.model.row.grad = None
        torch.nn.functional.cross_entropy(self.model(self._data.train_images[indices]),
                                          self._data.train_labels[indices]).backward()
        time.sleep(max(0.0, due - time.monotonic()))
        self.pushed_s.append(time.monotonic())
        self.late_s += self.pushed_s[-1] - due

    def said(self, **more):
        return dict(more, began_s=self.began_s, pushed_s=self.pushed_s, late_s=self.late_s,
                    cpu_s=time.process_time() - self._cpu_s)


def train_store(trainee, **options):
    trial = trainee.trial
    optimizer = torch.optim.SGD(trainee.model.parameters(), lr=trial["rate"])
    with sluice.torch.StaleSynchronous(trainee.model, optimizer, bound=trial["bound"],
                                       optimizer_at="store", job=trial["name"],
                                       **options) as stale:
        stale.flush()
        stale.store.barrier()
        trainee.begin()
        while trainee.goes_on():
            stale.flush()  # a gradient's time begins when its parameters are here
            trainee.keep_copy()
            optimizer.param_groups[0]["lr"] = trainee.rate(len(trainee.pushed_s) + 1)
            trainee.compute()
            optimizer.step()
        return trainee.said(suspended_s=stale.suspended_s, staleness=stale.staleness)


class Replica:
    """Sums instead of a store: every rank has the parameters, and applies each step's average."""

    def __init__(self, trainee, **options):
        self._trainee = trainee
        self.row = trainee.model.row
        self.mean = torch.empty_like(self.row)
        self.step = 0          # applied last
        self.progress = 0.0    # in steps of all ranks
        self.applied = []      # (step, time, progress)
        self.resyncs = 0
        self.job = sluice.Job([("row", len(self.row), "float32")], job=trainee.trial["name"],
                              **trainee.trial["policy"], **options)

    def train(self):
        trainee = self._trainee
        self.job.barrier()
        trainee.begin()
        while True:
            turn = self.job.next_turn()
            if turn.kind == "compute":
                if not trainee.goes_on():
                    self.job.finish()
                    break
                trainee.compute()
                self.job.submit("row", self.row.grad, self.mean)
            elif turn.kind == "catch_up":
                self.job.catch_up("row", self.mean)
            elif turn.kind == "apply":
                self._apply(turn.step)
            elif turn.kind == "save":
                self._serve()
            else:
                state = torch.frombuffer(turn.data, dtype=torch.float32)
                self.row.data.copy_(state[:-1])
                self.progress = float(state[-1])
                self.step = turn.step
                self.resyncs += 1
        return trainee.said(applied=self.applied, resyncs=self.resyncs)

    def _serve(self):
        state = np.append(self.row.detach().numpy(), np.float32(self.progress))
        try:
            self.job.send_state(state.tobytes(), self.step)
        except sluice.InvalidArgument:
            # The awaited step may have ended meanwhile: its state is given once it is applied.
            if self.job.stats()["steps_done"] <= self.step:
                raise

    def _apply(self, step):
        self.step = step
        self.progress = float(np.float32(self.progress + self.job.report(step).share))
        # The mean has the step's share already, where not all are needed.
        self.row.data.sub_(self.mean, alpha=self._trainee.rate(self.progress))
        self.applied.append((step, time.monotonic(), self.progress))
        self._trainee.keep_copy()


def train_sums(trainee, **options):
    replica = Replica(trainee, **options)
    with replica.job:
        return replica.train()


def train(trainee, **options):
    """What this rank says of the trial."""
    return (train_store if "bound" in trainee.trial else train_sums)(trainee, **options)


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    data = {}
    for line in sys.stdin:
        trial = json.loads(line)
        signal.alarm(int(trial["limit_s"] + GRACE_S))
        if trial["seed"] not in data:
            data[trial["seed"]] = tasks.load("generated", trial["seed"])
        trainee = Trainee(trial, rank, workers, data[trial["seed"]])
        said = train(trainee)
        if trainee.keeps_copies:
            np.savez(os.path.join(folder, trial["name"]), rows=np.stack(trainee.copies),
                     at_s=trainee.copied_s)
        signal.alarm(0)
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
