"""`./run bench saina`: the published figures again, in a short version or in full.

Trains workers for real in virtual time, against the production shard and policies (switch.cc).
Without options: some worlds of the full experiment once more, at the learning rates of rates.json,
for as many seeds (at least one, at most three) as ten minutes have room for. The figures are over
all worlds and seeds: what was not run now, the records of the full experiment (--long) give, and a
line says how many of the new runs come to the records' figures. The page beside this file
(README.md) says what each figure means.
"""
import os
import tempfile
import time
from concurrent.futures.process import BrokenProcessPool

import report
from papers import paper

DESCRIPTION = "SAINA's published figures: time to accuracy of k < n, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))
SHORT_SEEDS = 3
SHORT_LIMIT_S = 540


def add_options(parser):
    parser.add_argument("--seeds", type=int, default=SHORT_SEEDS, metavar="N",
                        help="most seeds of the short version; it begins no seed that it could not "
                             f"end in {SHORT_LIMIT_S} s (default {SHORT_SEEDS})")
    paper.add_processes(parser)
    paper.add_options(parser, HERE, "the full experiment, hours: continues the records, then "
                                    "redoes plots and tables of the page")


def run(options):
    try:
        from . import page, tables, tuned_tables
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None
    os.environ["OMP_NUM_THREADS"] = "1"
    paper.run(
        "saina", HERE, options, results_of=lambda records: records,
        figures_of=lambda records: {**tables.figures(tables.Results(records)),
                                    **tuned_tables.figures(tuned_tables.Tuned(records))},
        write=page.write, show=lambda records: show(tuned_tables.Tuned(records)),
        long=options.long and (lambda path: train_long(path, options.processes)),
        short=lambda: train_short(options))


def train(units, path, processes):
    from . import experiment
    try:
        return experiment.run(units, path, processes)
    except BrokenProcessPool:
        raise report.BenchError("a training process was killed; memory short? try --processes 1"
                                ) from None


def train_long(path, processes):
    from . import experiment, tuned
    train(experiment.long_units(), path, processes)
    tuned.run(path, tuned.PARTS, tuned.SEEDS, tunes=True)
    tuned.run(path, tuned.AGAINST_FIXED, tuned.MORE_SEEDS, tunes=False)


def train_short(options):
    import torch

    from . import experiment, tuned
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.jsonl")
        for done, seed in enumerate(tuned.SEEDS[:options.seeds], start=1):
            train(experiment.short_units(seed), path, options.processes)
            records = tuned.run(path, tuned.SHORT_PARTS, (seed,), tunes=False)
            elapsed_s = time.monotonic() - began
            if elapsed_s + elapsed_s / done > SHORT_LIMIT_S:
                break
    return complete(records, paper.load(options.results))


def complete(fresh, records):
    """The full experiment's records, with those of today in the place of the same runs."""
    known = [key for key in fresh if key in records]
    same = sum(fresh[key] == records[key] for key in known)
    print(f"{len(fresh)} runs now, {same} of {len(known)} that the full experiment has too came to "
          f"its figures; the other {len(records) - len(known)} runs are its records")
    return {**records, **fresh}


def show(results):
    from . import stragglers, tuned, tuned_tables
    rows = [[tuned_tables.name_of(part.world), stragglers.describe(setting),
             tuned_tables.cell(results.ratios(part.world, setting)),
             tuned_tables.cell(results.equal_ratios(part.world, setting)),
             tuned_tables.cell(results.gaps(part.world, setting))]
            for part in tuned.PARTS for setting in part.settings
            if results.ratios(part.world, setting)]
    report.table(["task, network, workers, optimizer", "setting", "goodput over sync",
                  "equal samples", "final gap, points"], rows)
