"""Training over a parameter store with stragglers: real gradients, virtual time, the task, seeds,
stragglers and tuning of the SAINA page, beside its sync and its `ramp` with requeue.

The store runs SGD, a push counts 1/n, communication takes no time. As in ../saina a rate is found
by climbing a grid until both neighbours are slower, on seeds that judge nothing, and progress is
gradients that counted, in steps of all n. Gradients are computed when one of them is needed, all
that workers are busy with in one call: no number depends on it.
"""
import heapq
import math
import os
import sys

from papers import paper
from papers.saina import stragglers, tuned
from papers.saina.training import BATCH, WARM_UP_STEPS

from .store import Store

RATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rates.json")
WORLD = tuned.World("generated", "small", 16, "sgd")
SETTINGS = ("jitter", "persistent")
BOUNDS = (0, 1, 3, 10, None)
RAMP = ("ramp", "requeue")
SEEDS = tuned.SEEDS
AT_ONCE = 16  # gradients of one call
MOST_PROGRESS = 150  # in steps of all workers: where a run ends, and final accuracy is taken


def scheme_of(bound):
    return ("B=none" if bound is None else f"B={bound}", "store")


STORES = tuple(scheme_of(bound) for bound in BOUNDS)
SCHEMES = (tuned.SYNC, RAMP, *STORES)


def bound_of(scheme):
    value = scheme.partition("=")[2]
    return None if value == "none" else int(value)


class Run:
    """One trial over the store; what tuned.follow() asks of a run."""

    def __init__(self, network, task, trial):
        from papers.saina import tasks
        self.network, self.task, self.trial = network, task, trial
        workers = trial.world.workers
        self.bound = bound_of(trial.scheme)
        self.shards = tasks.Shards(task, workers, BATCH, stragglers.is_skewed(trial.setting),
                                   trial.seed)
        self.durations = stragglers.Durations(trial.setting, workers, trial.seed)
        self.store = Store(workers, self.bound, network.layer_sizes(),
                           network.initial(trial.seed).numpy())
        self.now_us, self.pushes = 0, 0
        self.waited_us, self.staleness = 0, {}  # of all workers; iterations behind: how often
        self.iterations = [0] * workers  # whole ones
        self._ended_us = [0] * workers
        self._begun, self._gradients = {}, {}  # by rank: parameters and batch; their gradient
        self._events = []                      # (finish time, rank)
        self._start_ready()

    def close(self):
        self.store.close()

    @property
    def progress(self):
        return self.pushes / len(self.iterations)

    @property
    def parameters(self):
        import torch
        return torch.from_numpy(self.store.parameters())

    def accuracy(self, count=None):
        return self.network.accuracy(self.parameters, self.task.test_images[:count],
                                     self.task.test_labels[:count])

    def _start_ready(self):
        import torch
        for rank in self.store.ready():
            ahead = self.iterations[rank] - min(self.iterations)
            if self.bound is not None and ahead > self.bound:
                raise AssertionError(f"rank {rank} reads {ahead} iterations ahead of another")
            staleness = self.store.staleness(rank)
            self.staleness[staleness] = self.staleness.get(staleness, 0) + 1
            self.waited_us += self.now_us - self._ended_us[rank]
            self._begun[rank] = (torch.from_numpy(self.store.read(rank)),
                                 torch.from_numpy(self.shards.next_batch(rank)))
            heapq.heappush(self._events, (self.now_us + self.durations.next_us(rank), rank))

    def _compute(self):
        import torch
        ranks = sorted(self._begun)
        for at in range(0, len(ranks), AT_ONCE):
            some = ranks[at:at + AT_ONCE]
            rows, batches = zip(*(self._begun[rank] for rank in some))
            indices = torch.stack(batches, dim=1)
            gradients = self.network.gradients(torch.stack(rows), self.task.train_images[indices],
                                               self.task.train_labels[indices])
            self._gradients.update(zip(some, gradients.numpy()))
        self._begun.clear()

    def complete_step(self):
        """The next gradient that is ready."""
        self.now_us, rank = heapq.heappop(self._events)
        if rank not in self._gradients:
            self._compute()
        self.pushes += 1
        rate = self.trial.rate * min(1.0, math.ceil(self.progress) / WARM_UP_STEPS)
        self.store.push(rank, rate, self._gradients.pop(rank))
        self.iterations[rank] += 1
        self._ended_us[rank] = self.now_us
        self._start_ready()

    def summary(self):
        """Virtual seconds, share of the workers' time that they waited, mean staleness of reads."""
        return {"seconds": round(self.now_us / stragglers.US, 3),
                "waited": round(self.waited_us / (len(self.iterations) * self.now_us), 5),
                "staleness": round(mean_of(self.staleness), 4)}


def mean_of(counts):
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def play(network, task, trial, target):
    """The trial's record: one of time ends at the target, one of kind "curve" goes on."""
    if trial.kind == "target":
        return tuned.play(network, task, trial, target)
    run = (Run if trial.mode == "store" else tuned.Run)(network, task, trial)
    try:
        history = tuned.follow(run, MOST_PROGRESS, math.inf if target is None else target)
        record = {"key": tuned.key(trial), "seconds": round(run.now_us / stragglers.US, 3)}
        if trial.kind == "time":
            tta = tuned.training.time_to(history, target)
            return dict(record, tta_s=None if tta is None else round(tta, 3))
        record.update(final=round(run.accuracy(), 5),
                      times=[round(value, 3) for value in history.seconds],
                      accuracies=[round(value, 5) for value in history.accuracies])
        if trial.mode == "store":
            record.update(run.summary())
        return record
    finally:
        run.close()


def rate_of(bench, rates, setting, scheme):
    """The scheme's rate in the setting, tuned where it is not known. Neither sync nor B = 0 depends
    on who is late: they have one."""
    if scheme == tuned.SYNC:
        return tuned.load_rates()[tuned.rate_key(WORLD, None, *scheme)]
    setting = "none" if scheme == STORES[0] else setting
    name = tuned.rate_key(WORLD, setting, *scheme)
    if name not in rates:
        guess = rate_of(bench, rates, setting, tuned.SYNC)
        if scheme in STORES[1:]:
            guess = rate_of(bench, rates, setting, STORES[STORES.index(scheme) - 1])
        rates[name] = bench.tune(WORLD, setting, *scheme, guess)
        tuned.save_rates(rates, RATES)
    return rates[name]


def curve(setting, scheme, seed, rate):
    return tuned.Trial(WORLD, setting, *scheme, "curve", seed, rate)


def lab_key(setting, scheme, seed):
    """Of real.py's records."""
    return f"lab/{setting}/{scheme[0]}/{seed}"


def read_key(setting, scheme, seed):
    """Of what is laid beside them: the store in virtual time, evaluated from a rank's reads."""
    return f"read/{setting}/{scheme[0]}/{seed}"


def run(path):
    """Runs what the file at `path` lacks and appends it there."""
    import torch
    from tqdm import tqdm
    torch.set_num_threads(1)
    records, rates = paper.load(path), tuned.load_rates(RATES)
    with paper.open_to_append(path) as file, \
            tqdm(unit="trial", file=sys.stderr, mininterval=2) as progress:
        def note(record):
            paper.append(file, record)
            progress.update(1)

        bench = tuned.Bench(records, note, play)
        for seed in SEEDS:
            bench.target(WORLD, seed)
        for setting in SETTINGS:
            for scheme in SCHEMES:
                rate = rate_of(bench, rates, setting, scheme)
                for seed in SEEDS:
                    bench.run(curve(setting, scheme, seed, rate))
