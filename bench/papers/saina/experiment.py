"""Which runs there are, and running them: by unit, into a file that a later call continues.

A unit is every run of one (task, seed, architecture, setting): the synchronous run first, because
its final accuracy minus one point is the target of the others. A record is one JSON line; its key
names the run. An interrupted experiment loses the unit that was under way and nothing else.
"""
import concurrent.futures
import multiprocessing
import sys
from collections import namedtuple

from papers import paper

from . import models, stragglers

PLANNED_STEPS = 300
EVALUATE_STEPS = 20
MOST_STEPS = 2 * PLANNED_STEPS
POINT = 0.01

ARCHITECTURES = ("large", "small")
MODES = ("drop", "requeue")
FIXED = (1, 4, 8, 12)
SWEEP_RATIOS = (1.5, 2, 5, 10)  # 3 is the setting "lognormal"
SIGN_THRESHOLDS = (300, 400, 500, 600, 700)
COUNT_THRESHOLDS = (1, 3, 5, 7, 9, 0)  # 0: as k

Unit = namedtuple("Unit", "task seed architecture setting schemes")  # schemes: (scheme, mode)

SYNC = ("k=16", "drop")  # its late mode never matters: nobody is late


def epoch_steps(task):
    """Steps in which k = 16 passes over the training set once."""
    return 16 if task != "digits" else 2


def policy_of(scheme, mode, task):
    """The switch's options for a scheme's name, and a learning rate where it names one.

    A name and its changes: "k=8", "saina s=300", "saina-5 from=4", "k=16 lr=200" (thousandths).
    """
    name, *changes = scheme.split(" ")
    published = {"kind": "saina", "k": 1, "sign_stride": 32, "round_steps": epoch_steps(task)}
    kind, _, k = name.partition("=")
    policy = {
        "k": lambda: {"kind": "fixed", "k": int(k)},
        "saina": lambda: published,
        "saina-all": lambda: dict(published, sign_stride=1),
        "saina-5": lambda: dict(published, sign_stride=1, round_steps=5),
        "ramp": lambda: {"kind": "ramp"},
        "goodput": lambda: {"kind": "goodput"},
        "clock": lambda: {"kind": "clock", "k": 1, "clock_steps": 50},
    }[kind]()
    if name == SYNC[0]:
        policy = {"kind": "sync"}
    for change in changes:
        option, value = change.split("=")
        policy.update({"s": {"s_th_permille": int(value)}, "c": {"c_th": int(value)},
                       "from": {"k": int(value)},
                       "lr": {"learning_rate": int(value) / 1000}}[option])
    return dict(policy, late=mode)


RULES = ("saina", "saina-all", "saina-5", "ramp", "goodput", "clock")
# With requeue, k = 1 fails; these two start where ramp and goodput have their floor.
FROM_FLOOR = ("saina-5 from=4", "clock from=4")
SCHEMES = tuple(f"k={k}" for k in FIXED) + RULES
LEARNING_RATES = (50, 150, 200, 400)  # thousandths, beside the one that all runs have


def _both_modes(schemes):
    return [(scheme, mode) for mode in MODES for scheme in schemes]


def main_units(seed, task="generated"):
    schemes = _both_modes(SCHEMES) + [(scheme, "requeue") for scheme in FROM_FLOOR]
    return [Unit(task, seed, architecture, setting, schemes)
            for setting in stragglers.SETTINGS for architecture in ARCHITECTURES]


def rate_units(seed, task):
    """What other learning rates would have done for k = 16 and for the smallest k of the rules."""
    schemes = [(f"k=16 lr={rate}", "drop") for rate in LEARNING_RATES]
    if task == "digits":
        schemes += [(f"k=4 lr={rate}", "requeue") for rate in LEARNING_RATES]
        schemes += _both_modes(("k=4", "k=8", "ramp", "goodput"))
    return [Unit(task, seed, architecture, "jitter", schemes) for architecture in ARCHITECTURES]


def threshold_units(seed, task="generated"):
    """s_th at c_th = 5 and c_th at s_th = 50 %; the pair that both have is the scheme saina."""
    schemes = [f"saina s={s}" for s in SIGN_THRESHOLDS if s != 500]
    schemes += [f"saina c={c}" for c in COUNT_THRESHOLDS if c != 5]
    return [Unit(task, seed, architecture, "jitter", _both_modes(schemes))
            for architecture in ARCHITECTURES]


def sweep_units(seed, task="generated"):
    schemes = _both_modes(("k=4", "k=8", "saina", "saina-5", "ramp", "goodput"))
    return [Unit(task, seed, architecture, f"lognormal:{ratio}", schemes)
            for ratio in SWEEP_RATIOS for architecture in ARCHITECTURES]


def long_units():
    """The judged tables first; the last seeds of the side tables last."""
    parts = [main_units(seed) for seed in range(5)]
    parts += [threshold_units(seed) for seed in range(3)] + [sweep_units(0)]
    parts += [rate_units(seed, task) for seed in range(3) for task in ("generated", "digits")]
    parts += [sweep_units(1), sweep_units(2), threshold_units(3), threshold_units(4),
              sweep_units(3), sweep_units(4)]
    return [unit for part in parts for unit in part]


def short_units(seed):
    """What the RESULT line needs of these runs: the published rule."""
    return [Unit("generated", seed, architecture, "jitter", [("saina", "drop")])
            for architecture in ARCHITECTURES]


def key(task, seed, architecture, setting, scheme, mode):
    return f"{task}/{seed}/{architecture}/{setting}/{scheme}/{mode}"


def target_of(sync_record):
    return sync_record["final"] - POINT


def _record(unit, scheme, mode, history, target):
    from . import training
    at_end = history.steps.index(PLANNED_STEPS)
    final = history.smoothed()[at_end]
    if target is None:
        target = final - POINT
    seconds = training.time_to(history, target)
    return {
        "key": key(unit.task, unit.seed, unit.architecture, unit.setting, scheme, mode),
        "final": round(final, 5),
        "tta_s": None if seconds is None else round(seconds, 2),
        "steps": history.steps,
        "seconds": [round(value, 1) for value in history.seconds],
        "accuracies": [round(value, 4) for value in history.accuracies],
        "ks": history.ks, "phis": history.phis, "flips": history.flips,
        "included": history.included, "lost": history.lost, "requeued": history.requeued,
    }


def run_unit(unit, known):
    """Records of the unit's runs that `known` (key -> record) lacks. Runs in a worker process."""
    import torch
    from . import tasks, training
    torch.set_num_threads(1)
    task, records = tasks.load(unit.task, unit.seed), []

    def run(scheme, mode, target, most_seconds):
        name = key(unit.task, unit.seed, unit.architecture, unit.setting, scheme, mode)
        if name in known:
            return known[name]
        budget = training.Budget(PLANNED_STEPS, EVALUATE_STEPS, MOST_STEPS, target, most_seconds)
        history = training.train(unit.architecture, task, unit.setting,
                                 policy_of(scheme, mode, unit.task), unit.seed, budget)
        records.append(_record(unit, scheme, mode, history, target))
        return records[-1]

    sync = run(*SYNC, None, 0)
    for scheme, mode in unit.schemes:
        run(scheme, mode, target_of(sync), sync["seconds"][-1])
    return records


def _related(unit, records):
    prefix = f"{unit.task}/{unit.seed}/{unit.architecture}/{unit.setting}/"
    return {name: record for name, record in records.items() if name.startswith(prefix)}


def run(units, path, processes):
    """Runs what the file at `path` lacks, appends it there, and returns all of its records."""
    from tqdm import tqdm
    records = paper.load(path)
    runs = sum(1 + len(unit.schemes) for unit in units)
    context = multiprocessing.get_context("spawn")
    with paper.open_to_append(path) as file, \
            concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool, \
            tqdm(total=runs, unit="run", file=sys.stderr, mininterval=2) as progress:
        waiting, todo = {}, list(reversed(units))
        while todo or waiting:
            # A unit is handed out late, so that it sees the synchronous run of an earlier one.
            while todo and len(waiting) < processes:
                unit = todo.pop()
                waiting[pool.submit(run_unit, unit, _related(unit, records))] = unit
            done, _ = concurrent.futures.wait(waiting, return_when="FIRST_COMPLETED")
            for future in done:
                unit = waiting.pop(future)
                for record in future.result():
                    records[record["key"]] = record
                    paper.append(file, record)
                progress.update(1 + len(unit.schemes))
    return records


def parameter_counts():
    return {name: models.Network(name).parameter_count for name in ARCHITECTURES}
