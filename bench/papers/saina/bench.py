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
from papers import records

DESCRIPTION = "SAINA's published figures: time to accuracy of k < n, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results.jsonl")
SHORT_SEEDS = 3
SHORT_LIMIT_S = 540


def add_options(parser):
    parser.add_argument("--seeds", type=int, default=SHORT_SEEDS, metavar="N",
                        help="most seeds of the short version; it begins no seed that it could not "
                             f"end in {SHORT_LIMIT_S} s (default {SHORT_SEEDS})")
    parser.add_argument("--processes", type=int, metavar="N",
                        default=min(4, len(os.sched_getaffinity(0))),
                        help="runs at a time (default: one a core, at most 4)")
    parser.add_argument("--long", action="store_true",
                        help="the full experiment, hours: continues results.jsonl, then redoes "
                             "plots and tables of the page")
    parser.add_argument("--plots-only", action="store_true",
                        help="redo plots and tables from results.jsonl, train nothing")
    parser.add_argument("--results", default=RESULTS, metavar="FILE",
                        help="where --long and --plots-only keep their records")


def run(options):
    try:
        from . import experiment, page, tables
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.plots_only or options.long:
        if options.long:
            train(experiment.long_units(), options.results, options.processes)
        results = tables.Results(records.load(options.results))
        page.write(results, HERE)
    else:
        results = tables.Results(train_short(options))
        print_short(results)
    figures = tables.figures(results)
    missing = [name for name, value in figures.items() if value is None]
    if missing:
        raise report.BenchError(f"no runs for {', '.join(missing)}")
    report.result("saina", **{name: float(value) for name, value in figures.items()},
                  seeds=len(results.seeds))


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


def print_short(results):
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
