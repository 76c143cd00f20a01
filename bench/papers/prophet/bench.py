"""`./run bench prophet`: iteration times under five ways to schedule, in virtual time.

Without options: every policy in the network-bound settings and in the one that has published
figures, under three minutes, nothing kept. The page beside this file (README.md) says what the
figures mean and shows the full experiment (--long).
"""
import os

import report

DESCRIPTION = "Prophet's figures: iteration time of five schedules, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results.jsonl")


def add_options(parser):
    parser.add_argument("--processes", type=int, metavar="N",
                        default=min(4, len(os.sched_getaffinity(0))),
                        help="runs at a time (default: one a core, at most 4)")
    parser.add_argument("--long", action="store_true",
                        help="every setting and side run, 15 minutes: into results.jsonl, then "
                             "plots and tables of the page")
    parser.add_argument("--lab", action="store_true",
                        help="with real ranks over shaped links, 4 minutes, needs root: into "
                             "results.jsonl, then plots and tables of the page")
    parser.add_argument("--plots-only", action="store_true",
                        help="redo plots and tables from results.jsonl")
    parser.add_argument("--results", default=RESULTS, metavar="FILE",
                        help="where --long, --lab and --plots-only keep their records")


def main_runs(every):
    from . import settings, simulation
    published = settings.Setting("resnet50", 3, 1.0)
    return [(setting, policy, simulation.MAIN) for setting in settings.SETTINGS
            for policy in settings.POLICIES
            if every or setting.network_bound or setting == published]


def side_runs():
    from . import settings, simulation, tables
    runs = [(setting, policy, simulation.LAYERS) for setting in settings.SETTINGS
            for policy in tables.SIDE_POLICIES]
    runs += [(setting, policy, variant) for setting in simulation.JITTER_SETTINGS
             for variant in simulation.JITTERS for policy in tables.SIDE_POLICIES]
    return runs + [(setting, policy, simulation.SESSION)
                   for setting in simulation.SESSION_SETTINGS
                   for policy in simulation.SESSION_POLICIES]


def run(options):
    from . import simulation, tables
    if not (options.long or options.lab or options.plots_only):
        entries = simulation.records(main_runs(every=False), options.processes)
        return finish(tables.Results({simulation.key(entry): entry for entry in entries}))
    if options.long:
        simulation.save(options.results,
                        simulation.records(main_runs(every=True) + side_runs(),
                                           options.processes))
    if options.lab:
        from . import real
        simulation.save(options.results, real.records())
    results = tables.Results(simulation.load(options.results))
    try:
        from . import page
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None
    page.write(results, HERE)
    return finish(results)


def finish(results):
    from . import settings, tables
    rows = []
    for setting in settings.SETTINGS:
        best = results.best_credit(setting)
        if best is None:
            continue
        times = [results.ms(setting, policy) for policy in tables.SIDE_POLICIES]
        rows.append([("* " if setting.network_bound else "") + str(setting)] +
                    [f"{ms:.1f}" for ms in times] + [f"{best[1]:.1f}"])
    print("ms per iteration, mean of the last 12 of 24 iterations; *: network-bound")
    report.table(["setting"] + [policy.name for policy in tables.SIDE_POLICIES] +
                 [tables.BEST_CREDIT], rows)
    figures = tables.figures(results)
    missing = [name for name, value in figures.items() if value is None]
    if missing:
        raise report.BenchError(f"no runs for {', '.join(missing)}")
    # Four places: where the link is busy all the time, the schedules differ by less than a percent.
    report.result("prophet", **{name: f"{value:.4f}" for name, value in figures.items()})
