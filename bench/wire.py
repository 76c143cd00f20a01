"""The wire bench: the loss of training when gradients travel in fewer bytes.

Real PyTorch ranks, one a host of the namespace lab (tests/lab, sluiced on af_packet ports), train a
network of 3,610 parameters on scikit-learn's digits (SGD, momentum 0.9, 1,200 images to learn from,
597 to judge by), with every wire format, from the same seeds: weights, batches, and who is late. In
`all` each step waits for all (k = n); in `fastest` for all but one (k = n - 1), while a rank drawn
for each step sleeps for 20 ms, and what is late is requeued.

Counted at the end of a training: accuracy on the held-out images, cross entropy on the others, and
bytes that a rank has sent; behind is float32's accuracy less the format's, seed by seed. The mean
over the seeds, and +- the standard deviation. identical: all ranks' parameters were the same after
every training, to the bit.

What can go wrong: `fastest` depends on times, so two runs differ; `requeued` says how much was
late.
"""
import statistics

import report
import wire_rounding
from wire_rounding import spread

DESCRIPTION = "training in the lab with each wire format, k = n and k < n: accuracy against float32"


def add_options(parser):
    parser.add_argument("--seeds", type=int, default=6, metavar="N", help="at least 2 (default 6)")
    parser.add_argument("--steps", type=int, default=150, metavar="N",
                        help="of each training (default 150)")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="default 4")
    parser.add_argument("--rounding", action="store_true",
                        help="instead: how results are rounded, without the lab")


def rows_of(reports):
    """(rows of the table, {(policy, wire): mean accuracy behind float32})."""
    found = {}
    for trainings in zip(*reports):
        found.setdefault((trainings[0]["policy"], trainings[0]["wire"]), []).append(trainings)
    rows, behind = [], {}
    for (policy, wire), runs in found.items():
        first = [trainings[0] for trainings in runs]
        dense = [trainings[0] for trainings in found[policy, "float32"]]
        gaps = [wide["accuracy"] - one["accuracy"] for wide, one in zip(dense, first)]
        behind[policy, wire] = statistics.mean(gaps)
        every = [one for trainings in runs for one in trainings]
        given = sum(sum(one[name] for name in ("delivered", "requeued", "kept", "discarded"))
                    for one in every)
        rows.append([policy, wire, spread([one["accuracy"] for one in first], 2),
                     spread(gaps, 2), spread([one["loss"] for one in first], 4),
                     f"{100 * sum(one['requeued'] for one in every) / given:.1f}",
                     f"{statistics.mean(one['bytes'] for one in every) / 1e6:.2f}"])
    return rows, behind


def run(options):
    import lab as lab_module
    import wire_training
    if options.seeds < 2:
        raise report.BenchError("one seed has no spread: give --seeds 2 or more")
    try:
        import sklearn  # noqa: F401 - the ranks need it
    except ImportError:
        raise report.BenchError("scikit-learn is missing: apt install python3-sklearn") from None
    if options.rounding:
        wire_rounding.run(options)
        return
    try:
        with lab_module.Lab(hosts=options.ranks) as lab:
            lab.start_appliance(report.build_dir())
            reports = wire_training.run(lab, report.build_dir(), options.steps, options.seeds,
                                        wire_training.FORMATS, timeout=60 + 3 * options.seeds *
                                        options.steps)
    except (lab_module.LabError, AssertionError) as error:
        raise report.BenchError(str(error)) from error
    rows, behind = rows_of(reports)
    report.table(["ranks", "wire", "accuracy, %", "behind, points", "loss", "requeued, %",
                  "MB sent"], rows)
    gaps = {f"{wire}_{policy}_behind": round(gap, 3)
            for (policy, wire), gap in behind.items() if wire != "float32"}
    report.result("wire", **gaps, identical=int(wire_training.identical(reports)))
