"""`./run bench switch_priority`: priorities for parameter-server traffic, as published in 2018.

The published network in namespaces, with two `sluiced` as its switches; TCP traffic replayed from
the models' traces under each policy; compute is sleep. Rates and bytes are divided by 40, compute
is not, so a step takes as long as the published one. Without options: the four policies that the
RESULT line needs, some four minutes, into a temporary file. The page beside this file says what
each policy does and shows the full experiment (--long).

What can go wrong: on a machine whose cores are busy a switch wakes up late and a step takes longer,
under every policy; the column "busy" shows it, "own" is the share of this bench's own programs.
"""
import os
import tempfile

import report
from papers import paper

DESCRIPTION = "priorities in the switch for parameter-server training, published figures again"
HERE = os.path.dirname(os.path.abspath(__file__))
SHORT_POLICIES = ("fifo", "worker", "worker_rules", "aggregation")
SHORT_STEPS = 2
LONG_REPETITIONS = 3


def add_options(parser):
    paper.add_options(parser, HERE, "all policies and repetitions: continues the records, then "
                                    "redoes plots and tables of the page")
    parser.add_argument("--repetitions", type=int, default=LONG_REPETITIONS, metavar="N",
                        help=f"of --long (default {LONG_REPETITIONS})")
    parser.add_argument("--labs", type=int, default=2, metavar="N",
                        help="labs at a time (default 2); each takes a tenth of two cores or less")


def run(options):
    from . import experiment, models, page, tables
    if not options.plots_only:
        for built in ("dataplane/sluiced", "client/libsluice.so"):
            report.program(built)
    everything = experiment.units(models.MODELS + (models.COMPUTE_BOUND,), experiment.NAMES,
                                  options.repetitions)

    def short():
        with tempfile.TemporaryDirectory() as folder:
            return tables.Results(experiment.run(
                experiment.units(models.MODELS, SHORT_POLICIES, 1),
                os.path.join(folder, paper.RECORDS), options.labs, SHORT_STEPS))
    paper.run("switch_priority", HERE, options, results_of=tables.Results,
              figures_of=tables.figures, write=page.write, show=show, short=short,
              long=options.long and (lambda path: experiment.run(everything, path, options.labs)))


def show(results):
    from . import tables
    for model in results.models:
        print(f"{model}: median [least .. largest] of {len(results.repetitions)} repetitions")
        report.table(tables.MODEL_HEADERS, tables.model_rows(results, model))
        print()
    report.table(["", *results.models], tables.ratio_rows(results))
