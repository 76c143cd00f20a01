"""Every scheme at a learning rate of its own: which trials there are, tuning, running.

A rate is found by climbing a grid from a guess until both neighbours are worse, on seeds of its
own. Schemes: `sync`; a fixed k and `saina` with drop, which have a rate for each setting and late
mode; and `goodput`, `ramp` and `saina` with requeue, which have none: they take sync's, and a step
of k of n counts k/n as the product does it, in the gradient or, with Adam, in the rate, and
momentum makes up for late ones. `ramp-mean` is `ramp` with a mean taken as it is, as averaging by
weight has it. Progress is gradients that counted, in steps of all n: warm-up, evaluations and
falling rates go by it, alike for every scheme but `saina` with drop, which goes by its steps: its
warm-up is shorter.
"""
import json
import math
import os
from collections import namedtuple

import report
from papers import paper
from sluice import _torch_share

from . import experiment, stragglers, training

SETTINGS = ("none", "jitter", "persistent", "lognormal", "lognormal:5", "lognormal:10", "stalls")
FIXED = (("k=4", "requeue"), ("k=8", "requeue"), ("k=12", "requeue"), ("k=8", "drop"),
         ("k=12", "drop"))
RAMPS = (("ramp", "requeue"), ("ramp-mean", "requeue"))
TUNING_SEEDS = (100, 101)
SEEDS = (0, 1, 2)
MORE_SEEDS = tuple(range(16))  # of AGAINST_FIXED: the least of medians of three is mostly noise
STEP = 1.5  # of the grid of rates
GUESSES = {"sgd": 0.3, "momentum": 0.03, "adam": 0.01}
EQUAL_PROGRESS = 150  # sync's steps of a run under a falling rate
MOST_PROGRESS = 300
EVALUATE = 5  # in steps of all n
SHOWN = 2000  # test images of an evaluation on the way
POINT = 0.01
NEVER = 1e6  # seconds that a tuning run is charged when it does not reach the target
RATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rates.json")

# What a rate belongs to, but for the scheme and the setting.
World = namedtuple("World", "task architecture workers optimizer")
# kind: "time" to the target, or "equal" samples under a falling rate.
Trial = namedtuple("Trial", "world setting scheme mode kind seed rate")

SYNC, GOODPUT = ("sync", "drop"), ("goodput", "requeue")
SAINA, SAINA_OWN = ("saina", "requeue"), ("saina", "drop")  # the second at a rate of its own
FRESH_SEEDS = tuple(range(20, 28))  # of saina: nothing was chosen on these

# Settings of a world in which sync and goodput run, those with equal samples, those in which fixed
# k are tuned, those in which ramp runs at sync's rate, and those in which saina does.
Part = namedtuple("Part", "world settings equal fixed ramp saina", defaults=((), (), (), ()))

SOME = ("none", "jitter", "persistent", "lognormal")
PARTS = (Part(World("generated", "small", 16, "sgd"), SETTINGS,
              ("none", "jitter", "persistent", "lognormal", "lognormal:10")),
         Part(World("generated", "small", 16, "momentum"), SOME),
         Part(World("generated", "small", 16, "sgd"), (), (), SOME),
         Part(World("gratings", "small", 16, "sgd"), SOME, SOME, (), SOME),
         Part(World("generated", "small", 16, "adam"), SOME),
         Part(World("generated", "small", 8, "sgd"), SOME),
         Part(World("generated", "large", 16, "sgd"), SETTINGS, SOME, (), SOME),
         Part(World("generated", "large", 16, "momentum"), SOME),
         Part(World("generated", "small", 16, "sgd"), (), (), (), SOME),
         Part(World("generated", "large", 16, "sgd"), (), (), SOME),
         Part(World("generated", "small", 16, "adam"), (), (), SOME),
         Part(World("gratings", "small", 16, "sgd"), (), (), SOME),
         Part(World("gratings", "small", 16, "adam"), SOME))
AGAINST_FIXED = tuple(part for part in PARTS if part.fixed)  # where goodput is held against them
OPTIMIZERS = ("sgd", "momentum", "adam")
WITH_SAINA = tuple(Part(World("generated", architecture, 16, optimizer), (), saina=("jitter",))
                   for optimizer in OPTIMIZERS for architecture in experiment.PUBLISHED)
JUDGED = ((PARTS, SEEDS), (AGAINST_FIXED, MORE_SEEDS), (WITH_SAINA, FRESH_SEEDS))


def rate_key(world, setting, scheme, mode):
    parts = [*map(str, world), scheme]
    return "/".join(parts if scheme == "sync" else [*parts, mode, setting])


def key(trial):
    return "/".join(["tuned", *map(str, trial.world), trial.setting, trial.scheme, trial.mode,
                     trial.kind, str(trial.seed), f"{trial.rate:.6g}"])


class Optimizer:
    """SGD, with momentum or without, or Adam, on one flat row. `share`: k/n, 1 for plain means."""

    def __init__(self, name):
        self._name, self._first, self._second, self._step = name, 0.0, 0.0, 0

    def apply(self, parameters, mean, rate, share):
        if self._name == "sgd":
            return parameters - rate * share * mean
        if self._name == "momentum":
            self._first = 0.9 * self._first + share * mean
            if share == 1:
                return parameters - rate * self._first
            velocity, at_once = _torch_share.catching_up(0.9, share)
            return parameters - rate * (velocity * self._first + at_once * share * mean)
        self._step += 1
        self._first = 0.9 * self._first + 0.1 * mean
        self._second = 0.999 * self._second + 0.001 * mean * mean
        first = self._first / (1 - 0.9 ** self._step)
        second = self._second / (1 - 0.999 ** self._step)
        if share != 1:
            velocity, at_once = _torch_share.catching_up(0.9, share)
            first = velocity * first + at_once * 0.1 * mean
        return parameters - rate * share * first / (second.sqrt() + 1e-8)


class Run(training.Run):
    """One trial; `progress` counts gradients in steps of all workers."""

    def __init__(self, network, task, trial):
        self.trial, self.progress = trial, 0.0
        self._optimizer = Optimizer(trial.world.optimizer)
        name, _, k = trial.scheme.partition("=")
        kind = {"k": "fixed", "ramp-mean": "ramp"}.get(name, name)
        policy = {"kind": kind, "k": int(k or 1), "late": trial.mode,
                  "planned_steps": MOST_PROGRESS}
        if name == SAINA[0]:
            policy = dict(experiment.policy_of(experiment.saina()), late=trial.mode)
        self._by_steps = (trial.scheme, trial.mode) == SAINA_OWN
        # A run of so much progress has not failed yet; that of saina's own goes by its short steps.
        self.most_progress = 2 * MOST_PROGRESS if self._by_steps else MOST_PROGRESS
        super().__init__(network, task, trial.setting, policy, trial.seed, trial.rate,
                         trial.world.workers)

    def _apply(self, mean):
        import torch
        share = self.switch.share
        self.progress += 1 if self._by_steps else share
        rate = self.learning_rate * min(1.0, self.progress / training.WARM_UP_STEPS)
        if self.trial.kind == "equal":
            rate *= max(0.0, 1 - self.progress / EQUAL_PROGRESS)
        scheme = self.trial.scheme, self.trial.mode
        counts = share if scheme in (GOODPUT, RAMPS[0], SAINA) else 1.0
        self.parameters = self._optimizer.apply(self.parameters, torch.from_numpy(mean), rate,
                                                counts)

    def accuracy(self, count=None):
        task = self.task
        return self.network.accuracy(self.parameters, task.test_images[:count],
                                     task.test_labels[:count])


def follow(run, end, target):
    """Plays to `end`, in steps of all workers, or to the target; the evaluations on the way."""
    history, due = training.History(), EVALUATE
    while run.progress < end - 1e-6:
        run.complete_step()
        if run.progress < due - 1e-6 or target is None:
            continue
        due += EVALUATE
        history.seconds.append(run.now_us / stragglers.US)
        history.accuracies.append(run.accuracy(SHOWN))
        if history.smoothed()[-1] >= target:
            break
        if not math.isfinite(run.parameters.sum().item()):
            break
    return history


def play(network, task, trial, target):
    """The trial's record. `target` ends one of time; None: it goes on to its planned end."""
    run = Run(network, task, trial)
    try:
        history = follow(run, EQUAL_PROGRESS if trial.kind == "equal" else run.most_progress,
                         target)
        seconds = run.now_us / stragglers.US
        tta = training.time_to(history, target) if target is not None else None
        return {"key": key(trial), "seconds": round(seconds, 3),
                "tta_s": None if tta is None else round(tta, 3),
                "final": round(run.accuracy(), 5) if target is None else None}
    finally:
        run.close()


class Bench:
    """Runs trials that are not among the records yet, and appends them. `play`: see above."""

    def __init__(self, records, note, play=play):
        self.records, self._note, self._play = records, note, play
        self._tasks, self._networks = {}, {}

    def record(self, trial):
        """The record of a trial that has run."""
        return self.records.get(key(trial))

    def run(self, trial):
        found = self.record(trial)
        if found is None:
            from . import models, tasks
            world = trial.world
            task = self._tasks.setdefault((world.task, trial.seed), None)
            if task is None:
                task = self._tasks[world.task, trial.seed] = tasks.load(world.task, trial.seed)
            network = self._networks.setdefault(world.architecture,
                                                models.Network(world.architecture))
            target = None if trial.kind != "time" else self.target(world, trial.seed)
            found = self._play(network, task, trial, target)
            self.records[found["key"]] = found
            self._note(found)
        return found

    def target(self, world, seed):
        """Accuracy of plain sync at the old, timid rate after 300 steps, less a point."""
        return self.run(target_trial(world, seed))["final"] - POINT

    def tune(self, world, setting, scheme, mode, guess):
        """The rate of the grid with the least time to the target, summed over tuning seeds."""
        costs = {}

        def cost(place):
            if place not in costs:
                runs = [self.run(Trial(world, setting, scheme, mode, "time", seed,
                                       guess * STEP ** place)) for seed in TUNING_SEEDS]
                costs[place] = sum(run["tta_s"] or NEVER for run in runs)
            return costs[place]

        at = 0
        while True:
            better = min((at - 1, at, at + 1), key=cost)
            if better == at or cost(better) == cost(at):
                break
            at = better
        if cost(at) >= NEVER:
            raise report.BenchError(f"{rate_key(world, setting, scheme, mode)}: no rate near "
                                    f"{guess:g} reaches the target with all tuning seeds")
        return guess * STEP ** at


def target_trial(world, seed):
    plain = World(world.task, world.architecture, 16, "sgd")
    return Trial(plain, "none", *SYNC, "target", seed, training.LEARNING_RATE)


def own_rates(part):
    """(setting, scheme, mode) of the schemes that are tuned for each setting of a part."""
    return ([(setting, *which) for setting in part.fixed for which in FIXED] +
            [(setting, *SAINA_OWN) for setting in part.saina])


def trials_of(part, rates, seeds):
    """The judged trials of a part, as far as their rates are known."""
    world, found = part.world, []
    rate = rates.get(rate_key(world, None, *SYNC))
    for kind, settings, schemes in (("time", part.settings, (SYNC, GOODPUT)),
                                    ("equal", part.equal, (SYNC, GOODPUT)),
                                    ("time", part.fixed, (SYNC, GOODPUT)),
                                    ("time", part.ramp, (SYNC, *RAMPS)),
                                    ("time", part.saina, (SYNC, GOODPUT, SAINA))):
        found += [Trial(world, setting, *which, kind, seed, rate) for seed in seeds
                  for setting in settings for which in schemes if rate is not None]
    for setting, *which in own_rates(part):
        rate = rates.get(rate_key(world, setting, *which))
        found += [Trial(world, setting, *which, "time", seed, rate) for seed in seeds
                  if rate is not None]
    return found


def judged(rates):
    """key -> trial of all that judge, and of their targets."""
    trials = [trial for parts, seeds in JUDGED for part in parts
              for trial in trials_of(part, rates, seeds)]
    return {key(trial): trial for trial in
            trials + [target_trial(trial.world, trial.seed) for trial in trials]}


def load_rates(path=RATES):
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def save_rates(rates, path=RATES):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(rates, file, indent=1, sort_keys=True)
        file.write("\n")


def tune(bench, part, rates):
    """Finds the part's rates that are not known yet, and writes them down."""
    world, name = part.world, rate_key(part.world, None, *SYNC)
    if name not in rates:
        rates[name] = bench.tune(world, "none", *SYNC, GUESSES[world.optimizer])
        save_rates(rates)
    for setting, scheme, mode in own_rates(part):
        own = rate_key(world, setting, scheme, mode)
        if own in rates:
            continue
        share = int(scheme[2:]) / world.workers if mode == "requeue" else 1
        rates[own] = bench.tune(world, setting, scheme, mode, rates[name] * share)
        save_rates(rates)


def run(path, parts, seeds, tunes):
    """Runs what the file at `path` lacks, appends it there, and returns all of its records.
    `tunes`: rates that are not committed are found first."""
    import sys

    from tqdm import tqdm
    records, rates = paper.load(path), load_rates()
    with paper.open_to_append(path) as file, \
            tqdm(unit="trial", file=sys.stderr, mininterval=2) as progress:
        def note(record):
            paper.append(file, record)
            progress.update(1)

        bench = Bench(records, note)
        for part in parts:
            progress.set_description("/".join(map(str, part.world)))
            if tunes:
                tune(bench, part, rates)
            for trial in trials_of(part, rates, seeds):
                bench.run(trial)
    return records
