"""`./run bench prophet`: iteration times under five ways to schedule, in virtual time.

Without options: every policy in the network-bound settings and in the one that the tables show, and
Prophet on links that change, two minutes, nothing kept. The page beside this file (README.md) says
what the figures mean and shows the full experiment (--long).
"""
import os

import report
from papers import paper

DESCRIPTION = "Prophet against other schedules: iteration times, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))


def add_options(parser):
    paper.add_processes(parser)
    paper.add_options(parser, HERE, "every setting and side run, 5 minutes: into the records, "
                                    "then plot and tables of the page")
    parser.add_argument("--lab", action="store_true",
                        help="with real ranks over shaped links, 6 minutes, needs root: into the "
                             "records, then plot and tables of the page")


def main_runs(every):
    from . import settings, simulation
    return [(setting, policy, simulation.MAIN) for setting in settings.SETTINGS
            for policy in settings.POLICIES
            if every or setting.network_bound or setting == settings.SHOWN] + \
        [(setting, settings.PROPHET, simulation.change_to(after))
         for setting, after in simulation.CHANGES]


def side_runs():
    from . import settings, simulation
    return [(settings.SHOWN, policy, variant) for variant in simulation.SIDE_VARIANTS
            for policy in settings.SIDE_POLICIES] + \
        [(settings.SHOWN, policy, simulation.SESSION) for policy in simulation.SESSION_POLICIES]


def run(options):
    from . import page, simulation, tables

    def long(path):
        entries = []
        if options.long:
            entries += simulation.records(main_runs(every=True) + side_runs(), options.processes)
        if options.lab:
            from . import real
            entries += real.records()
        with paper.open_to_append(path) as file:
            for entry in entries:
                paper.append(file, entry)

    def short():
        entries = simulation.records(main_runs(every=False), options.processes)
        return tables.Results({entry["key"]: entry for entry in entries})
    paper.run("prophet", HERE, options, results_of=tables.Results, figures_of=tables.figures,
              write=page.write, short=short, show=show,
              long=long if options.long or options.lab else None)


def show(results):
    from . import settings, tables
    rows = []
    for setting in settings.SETTINGS:
        best = results.best_credit(setting)
        if best is None:
            continue
        times = [results.ms(setting, policy) for policy in tables.POLICIES]
        rows.append([("* " if setting.network_bound else "") + str(setting)] +
                    [f"{ms:.1f}" for ms in times] + [f"{best[1]:.1f}"])
    print("ms per iteration, at the end of each run; *: network-bound")
    report.table(["setting"] + [policy.name for policy in tables.POLICIES] +
                 [tables.BEST_CREDIT], rows)
