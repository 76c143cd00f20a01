"""`./run bench saina`: the published figures again, from records and from some runs of today.

Trains workers for real in virtual time, against the production shard and policies (switch.cc).
Without options: one in thirty of the judged records, drawn by the date, is run again and has to
come out the same; the figures are those of all records, with today's runs in their place. --long
runs what the records lack. The page beside this file (README.md) says what each figure means.
"""
import datetime
import os
from concurrent.futures.process import BrokenProcessPool

import report
from papers import paper

DESCRIPTION = "SAINA's published figures: time to accuracy of k < n, in virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))


def add_options(parser):
    from . import redo
    parser.add_argument("--day", type=datetime.date.fromisoformat, default=datetime.date.today(),
                        metavar="DATE", help="draw the runs of this day (default: today)")
    parser.add_argument("--most", type=int, default=redo.MOST, metavar="N",
                        help=f"run at most so many of them (default {redo.MOST})")
    paper.add_processes(parser)
    paper.add_options(parser, HERE, "the full experiment, hours: continues the records, then "
                                    "redoes plots and tables of the page")


def run(options):
    try:
        from . import page, tables, tuned_tables
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None
    os.environ["OMP_NUM_THREADS"] = "1"
    other = []  # keys of the runs that did not come to their records
    paper.run(
        "saina", HERE, options, results_of=lambda records: records,
        figures_of=lambda records: {**tables.figures(tables.Results(records)),
                                    **tuned_tables.figures(tuned_tables.Tuned(records))},
        write=page.write, show=lambda records: print(page.details(records)),
        long=options.long and train_long, short=lambda: redone(options, other))
    if other:
        raise report.BenchError(f"{len(other)} runs did not come to their records")


def train_long(path):
    import torch

    from . import experiment, redo, tuned
    torch.set_num_threads(1)
    if redo.NUMERICS not in paper.load(path):
        with paper.open_to_append(path) as file:
            paper.append(file, {"key": redo.NUMERICS, "value": redo.numerics()})
    experiment.run(path)
    for parts, seeds in tuned.JUDGED:
        tuned.run(path, parts, seeds, tunes=True)


def redone(options, other):
    """All records, with those drawn for the day run again. `other` gets the keys of those that
    came out otherwise, on a machine of the kind that the records come from."""
    from . import redo
    records = paper.load(options.results)
    judged = redo.judged(records)
    keys = redo.draw(judged, options.day, most=options.most)
    try:
        fresh = redo.run(keys, records, options.processes)
    except BrokenProcessPool:
        raise report.BenchError("a training process was killed; memory short? try --processes 1"
                                ) from None
    differ, mine = redo.compare(fresh, records), redo.numerics()
    theirs = records[redo.NUMERICS]["value"]
    print(f"{len(fresh)} of {len(judged)} judged runs, drawn for {options.day}, run again: "
          f"{len(fresh) - len(differ)} came to their records, bit for bit")
    if mine == theirs:
        other += differ
    elif differ:
        print(f"the records come from {theirs}; {mine} rounds otherwise")
    return {**records, **fresh}
