"""One training run in virtual time: real gradients, the switch's sums and its choice of k.

The workers are a heap of finish times. `drop`: a worker whose step was completed without it loses
its gradient and starts again at once, from the newest parameters. `requeue`: it contributes its
gradient to the step that is open when it is finished, waits for that step's result, and goes on
from there. Communication takes no time. Gradients are computed when the step that they are in is
completed, all of them in one call, and those that are lost never: no number depends on it.
"""
import heapq
from dataclasses import dataclass, field

import numpy as np

from . import models, stragglers, tasks
from .switch import Switch, SwitchError

WORKERS = 16
BATCH = 32
WARM_UP_STEPS = 30  # the learning rate grows linearly over the first steps
WORKERS_AT_ONCE = 8  # gradients of one call: more do not fit the cache
SMOOTHED_EVALUATIONS = 3
LEARNING_RATE = 0.1  # plain SGD; of 0.05, 0.1, 0.15 and 0.2, by k = 4 with requeue on digits


@dataclass(frozen=True)
class Budget:
    """When a run evaluates and when it ends."""

    planned_steps: int = 300   # what `ramp` is told, and where final accuracy is taken
    evaluate_steps: int = 20
    most_steps: int = 300      # go on so long while the target is not reached
    target: float = None       # accuracy to reach; None: only the final accuracy matters
    most_seconds: float = float("inf")  # of virtual time, beyond planned_steps


@dataclass
class History:
    """What a run did. Lists of evaluations, plus counts."""

    steps: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    accuracies: list = field(default_factory=list)
    ks: list = field(default_factory=list)      # of the open step at each evaluation
    included: list = field(default_factory=list)  # contributions of each rank
    lost: int = 0      # gradients finished and dropped
    requeued: int = 0  # gradients that counted in a later step than their own
    diverged: bool = False  # NaN or infinity in the parameters: never to come back

    def smoothed(self):
        """Mean of each evaluation and the two before it, as far as they exist."""
        values = np.asarray(self.accuracies)
        return [float(values[max(0, i - SMOOTHED_EVALUATIONS + 1):i + 1].mean())
                for i in range(len(values))]


class Run:
    """Workers, parameters and the switch of one run."""

    def __init__(self, network, task, setting, policy, seed, learning_rate, workers=WORKERS,
                 batch=BATCH):
        self.network, self.task = network, task
        self.late = policy["late"]
        self.learning_rate = learning_rate
        self.shards = tasks.Shards(task, workers, batch, stragglers.is_skewed(setting), seed)
        self.durations = stragglers.Durations(setting, workers, seed)
        self.parameters = network.initial(seed)
        self.switch = Switch(workers, network.parameter_count, policy)
        self.history = History(included=[0] * workers)
        self.now_us = 0
        self.step = 1
        self._versions = {}          # base step -> its parameters, while a worker computes on them
        self._base = [0] * workers
        self._batch = [None] * workers
        self._events = []            # (finish time, rank)
        for rank in range(workers):
            self._start(rank)

    def close(self):
        self.switch.close()

    def _start(self, rank):
        """The worker begins a gradient on the newest parameters."""
        self._base[rank] = self.step
        self._versions[self.step] = self.parameters
        self._batch[rank] = self.shards.next_batch(rank)
        heapq.heappush(self._events, (self.now_us + self.durations.next_us(rank), rank))

    def complete_step(self):
        """Plays until the open step is complete, and applies its result."""
        members = []  # (rank, arrival)
        needed = self.switch.k
        while len(members) < needed:
            self.now_us, rank = heapq.heappop(self._events)
            if self.late == "drop" and self._base[rank] != self.step:
                self.switch.finished(rank, self._base[rank], self.now_us)
                self.history.lost += 1
                self._start(rank)
            else:
                members.append((rank, self.now_us))
        self._contribute(members)
        step, k, ranks, mean = self.switch.result()
        if (step, k, ranks) != (self.step, needed, sorted(rank for rank, _ in members)):
            raise SwitchError(f"step {self.step}: result of step {step}, k {k}, ranks {ranks}")
        self._apply(mean)
        self.step += 1
        if self.switch.open_step != self.step:
            raise SwitchError(f"step {self.switch.open_step} is open, not {self.step}")
        for rank, _ in members:
            self._start(rank)
        alive = set(self._base)
        self._versions = {base: row for base, row in self._versions.items() if base in alive}

    def _contribute(self, members):
        gradients = self._gradients([rank for rank, _ in members])
        for i, (rank, arrival_us) in enumerate(members):
            base = self._base[rank]
            complete = self.switch.contribute(rank, base, self.step, arrival_us, gradients[i])
            if complete != (i == len(members) - 1):
                raise SwitchError(f"step {self.step} has {i + 1} members, complete: {complete}")
            self.history.included[rank] += 1
            self.history.requeued += base != self.step

    def _gradients(self, ranks):
        import torch
        parts = []
        for at in range(0, len(ranks), WORKERS_AT_ONCE):
            some = ranks[at:at + WORKERS_AT_ONCE]
            rows = torch.stack([self._versions[self._base[rank]] for rank in some])
            indices = torch.from_numpy(np.stack([self._batch[rank] for rank in some], axis=1))
            parts.append(self.network.gradients(rows, self.task.train_images[indices],
                                                self.task.train_labels[indices]))
        return torch.cat(parts).numpy()

    def _apply(self, mean):
        import torch
        rate = self.learning_rate * min(1.0, self.step / WARM_UP_STEPS)
        self.parameters = self.parameters - rate * torch.from_numpy(mean)

    def evaluate(self):
        history = self.history
        history.steps.append(self.step - 1)
        history.seconds.append(self.now_us / stragglers.US)
        history.accuracies.append(self.network.accuracy(
            self.parameters, self.task.test_images, self.task.test_labels))
        history.ks.append(self.switch.k)


def train(architecture, task, setting, policy, seed, budget, batch=BATCH):
    """Runs to planned_steps, then on while the target is ahead; returns the History."""
    network = models.Network(architecture)
    policy = dict(policy, planned_steps=budget.planned_steps)
    run = Run(network, task, setting, policy, seed, LEARNING_RATE, batch=batch)
    try:
        reached = budget.target is None
        while run.step <= budget.planned_steps or not (
                reached or run.history.diverged or run.step > budget.most_steps
                or run.now_us > budget.most_seconds * stragglers.US):
            run.complete_step()
            if (run.step - 1) % budget.evaluate_steps == 0:
                run.evaluate()
                reached = reached or run.history.smoothed()[-1] >= budget.target
                if not np.isfinite(run.parameters.sum().item()):
                    run.history.diverged = True
    finally:
        run.close()
    return run.history


def time_to(history, target):
    """Virtual seconds at which the smoothed accuracy first is at the target; None if never."""
    smoothed = history.smoothed()
    for i, value in enumerate(smoothed):
        if value >= target:
            if i == 0 or value == smoothed[i - 1]:
                return history.seconds[i]
            part = (target - smoothed[i - 1]) / (value - smoothed[i - 1])
            return history.seconds[i - 1] + part * (history.seconds[i] - history.seconds[i - 1])
    return None
