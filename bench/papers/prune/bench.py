"""`./run bench prune_paper`: training with pruned gradients, by rule, in virtual time.

Gradients are real and so are thresholds, residuals and packets' bytes (group.cc); the network is a
rate. The page beside this file (README.md) says what each figure means and shows all of it (--long
makes its records, some minutes of one core).
"""
import os

import report
from papers import paper

DESCRIPTION = "pruning's published rules: accuracy, bytes and time of each, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))


def add_options(parser):
    paper.add_options(parser, HERE, "every rule and seed: continues the records, then redoes "
                                    "plots and tables of the page")
    parser.add_argument("--lab", action="store_true",
                        help="with 8 real ranks over shaped links (needs root, half an hour): what "
                             "the records lack of that, then plots and tables of the page")


def run(options):
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        from . import lab_page, page, settings
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None

    def show(results):
        report.table(page.HEADERS, page.rows(results))
        if lab_page.rows(results):
            report.table(lab_page.HEADERS, lab_page.rows(results))

    def write(results, folder):
        page.draw(results, folder)
        if results.lab_pairs(page.LINK, settings.DENSE):
            lab_page.draw(results, folder)
        paper.replace_generated(folder, page.text(results) + lab_page.text(results))

    def long(path):
        if options.long:
            train(path, settings.trials())
        if options.lab:
            from . import real
            real.run_missing(path, settings.lab_trials())

    paper.run("prune_paper", HERE, options,
              results_of=page.Results, figures_of=page.figures, write=write, show=show,
              long=long if options.long or options.lab else None,
              short=lambda: page.Results(short()))


def train(path, trials):
    """Appends the runs that the file lacks."""
    from . import training
    known = paper.load(path)
    with paper.open_to_append(path) as file:
        for task, seed, rule in trials:
            if f"{task}/{seed}/{rule.key}" not in known:
                paper.append(file, training.train(rule, seed, name=task))


def short():
    """What the RESULT line needs, of one seed."""
    from . import settings, training
    records = (training.train(rule, settings.SEEDS[0])
               for rule in (settings.DENSE, settings.STATIC1, settings.SIGMA[2], settings.RAW))
    return {record["key"]: record for record in records}
