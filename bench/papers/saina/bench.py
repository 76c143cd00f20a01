"""`./run bench saina`: the published figures again, in a short version or in full.

Trains 16 workers for real in virtual time, against the production shard and policies (switch.cc).
Without options: what the RESULT line needs, into a temporary file, for as many seeds (at least one,
at most three) as ten minutes have room for. The page beside this file (README.md) says what each
figure means and shows the full experiment (--long).
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
        from . import experiment, page, tables
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None
    os.environ["OMP_NUM_THREADS"] = "1"
    paper.run(
        "saina", HERE, options, results_of=tables.Results, figures_of=tables.figures,
        write=page.write, show=show,
        long=options.long and (
            lambda path: train(experiment.long_units(), path, options.processes)),
        short=lambda: tables.Results(train_short(options)))


def train(units, path, processes):
    from . import experiment
    try:
        return experiment.run(units, path, processes)
    except BrokenProcessPool:
        raise report.BenchError("a training process was killed; memory short? try --processes 1"
                                ) from None


def train_short(options):
    from . import experiment
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.jsonl")
        for seed in range(options.seeds):
            records = train(experiment.short_units(seed), path, options.processes)
            elapsed_s = time.monotonic() - began
            if elapsed_s + elapsed_s / (seed + 1) > SHORT_LIMIT_S:
                break
    return records


def show(results):
    from . import experiment, stragglers, tables
    rows = []
    for setting in stragglers.SETTINGS:
        for architecture in experiment.ARCHITECTURES:
            best, reduction = results.best_fixed(architecture, setting, "requeue")
            ramp = (architecture, setting, "ramp", "requeue")
            goodput = results.against_best_fixed(architecture, setting, "goodput", "requeue")
            rows.append([stragglers.describe(setting), architecture,
                         f"{best} {reduction:.2f}", tables.cell(results.reductions(*ramp)),
                         tables.cell(goodput), tables.cell(results.gaps(*ramp))])
    report.table(["setting, requeue", "network", "best fixed", "ramp vs sync",
                  "goodput vs best fixed", "ramp's final gap, points"], rows)
