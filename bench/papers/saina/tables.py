"""From records of the published rule to tables and the figures of the RESULT line.

Cells are medians over seeds. A reduction is the time that k = 16 takes to the target, its own final
accuracy minus one point, over the scheme's time to the same target in the same seed; 0 when the
scheme never reached it.
"""
import statistics

from papers import paper
from papers.paper import markdown

from . import experiment
from .experiment import SYNC, saina

NAMES = {"large": "VGG-16", "small": "SqueezeNet"}  # published
# Seconds, by s_th in permille and by c_th (0: as k).
PUBLISHED_SIGN = {300: (472.4, 771.2), 400: (448.8, 543.1), 500: (426.0, 401.0),
                  600: (555.6, 508.4), 700: (564.0, 530.3)}
PUBLISHED_COUNT = {1: (451.0, 475.5), 3: (426.3, 464.1), 5: (426.0, 401.0), 7: (451.1, 417.3),
                   9: (463.0, 434.1), 0: (423.8, 396.5)}
# (final accuracy in %, reduction)
PUBLISHED_SCHEMES = {"k=1": ((73.9, None), (70.1, 2.28)), "k=8": ((76.3, 1.51), (72.2, 2.15)),
                     saina(): ((78.0, 1.70), (72.5, 2.84))}
LABELS = {SYNC: "k=16", "k=1": "k=1", "k=8": "k=8", saina(): "SAINA",
          experiment.CLOCK: "clock"}


class Results:
    """Records by question."""

    def __init__(self, records, seeds=None):
        self.records, self.seeds = records, seeds or experiment.SEEDS

    def record(self, seed, architecture, scheme, batch=32, task=None, setting=experiment.SETTING):
        return self.records.get(experiment.key(task or experiment.TASK, seed, architecture, batch,
                                               setting, scheme))

    def each(self, architecture, scheme, *where):
        """(record, record of k = 16) of each seed that has both."""
        for seed in self.seeds:
            both = [self.record(seed, architecture, one, *where) for one in (scheme, SYNC)]
            if all(both):
                yield both

    def reductions(self, *which):
        return [sync["tta_s"] / record["tta_s"] if record["tta_s"] else 0.0
                for record, sync in self.each(*which)]

    def finals(self, *which):
        return [100 * record["final"] for record, _ in self.each(*which)]

    def seconds(self, *which):
        return [record["tta_s"] or float("inf") for record, _ in self.each(*which)]

    def last_ks(self, *which):
        """k after the planned steps."""
        at = experiment.PLANNED_STEPS // experiment.EVALUATE_STEPS - 1
        return [record["ks"][at] for record, _ in self.each(*which)]


def median(values):
    """Of an even count the mean of the middle two, but the lower one where a run never arrived."""
    if not values:
        return None
    never = 0.0 in values or float("inf") in values
    return statistics.median_low(values) if never else statistics.median(values)


def cell(values, digits=2, unit=""):
    """Median [least .. largest]."""
    if values and min(values) == float("inf"):
        return "never"

    def text(value):
        return "never" if value == float("inf") else f"{value:.{digits}f}{unit}"
    return paper.cell(values, text=text, middle=median)


def number(values, digits=2):
    """The median alone."""
    value = median(values)
    if value is None:
        return "-"
    return "never" if value in (0, float("inf")) else f"{value:.{digits}f}"


def threshold_table(results):
    """Seconds to the target by s_th (c_th = 5) and by c_th (s_th = 50 %)."""
    lines = [(f"`s_th={s // 10}%`", saina(s_th=s), PUBLISHED_SIGN[s]) for s in PUBLISHED_SIGN]
    lines += [(f"`c_th={c or 'k'}`", saina(c_th=c), PUBLISHED_COUNT[c]) for c in PUBLISHED_COUNT]
    rows = []
    for name, scheme, published in lines:
        row = [name]
        for architecture, figure_s in zip(experiment.PUBLISHED, published):
            row += [figure_s, number(results.seconds(architecture, scheme), 0)]
        rows.append(row)
    return markdown(["seconds", *_columns(experiment.PUBLISHED)], rows)


def _columns(architectures):
    """Published and ours."""
    return [name for architecture in architectures
            for name in (NAMES.get(architecture), f"`{architecture}`") if name]


def scheme_table(results):
    """Final accuracy and reduction, published and ours."""
    rows = []
    for scheme in (SYNC, "k=1", "k=8", saina(), experiment.CLOCK):
        row = [LABELS[scheme]]
        for at, architecture in enumerate(experiment.ARCHITECTURES):
            if architecture in NAMES:
                final, reduction = PUBLISHED_SCHEMES.get(scheme, (("-", None),) * 2)[at]
                row.append(f"{final}, {reduction:.2f}" if reduction else final)
            finals = results.finals(architecture, scheme)
            row.append(f"{number(finals, 1)}, {number(results.reductions(architecture, scheme))}"
                       if finals else "-")
        rows.append(row)
    return markdown(["", *_columns(experiment.ARCHITECTURES)], rows)


def batch_table(results):
    """Reductions of k = 8 and of SAINA by batch."""
    rows = [[batch, *(f"{number(results.reductions(architecture, 'k=8', batch))}, "
                      f"{number(results.reductions(architecture, saina(), batch))}"
                      for architecture in experiment.ARCHITECTURES)]
            for batch in experiment.BATCHES]
    return markdown(["batch", *(f"`{architecture}`" for architecture in experiment.ARCHITECTURES)],
                    rows)


def round_table(results):
    """By the length of a round: reduction at s_th = 50 %, k at the end, the best s_th."""
    lines = [(f"{steps}", steps, experiment.TASK)
             for steps in (*experiment.ROUNDS, experiment.FEW_ROUNDS)]
    lines.append(("epoch", experiment.SHOWN, experiment.SMALL_TASK))
    rows = []
    for name, steps, task in lines:
        row = [name]
        for architecture in experiment.PUBLISHED:
            where = architecture, saina(steps), 32, task
            times = {s: median(results.seconds(architecture, saina(steps, s), 32, task))
                     for s in experiment.SOME_THRESHOLDS}
            times = {s: time for s, time in times.items() if time}
            best = f"{min(times, key=times.get) // 10} %" if len(times) > 1 else "-"
            row.append(f"{number(results.reductions(*where))}, "
                       f"{number(results.last_ks(*where), 0)}, {best}")
        rows.append(row)
    return markdown(["round", *(f"`{architecture}`" for architecture in experiment.PUBLISHED)],
                    rows)


def skew_text(results):
    """Points of final accuracy below k = 16 where half of each shard is sorted by label."""
    def points(architecture, scheme):
        which = architecture, scheme, 32, experiment.TASK, experiment.SKEWED
        return number([100 * (sync["final"] - record["final"])
                       for record, sync in results.each(*which)], 1)
    return "; ".join(
        f"`{architecture}` " + ", ".join(points(architecture, scheme)
                                         for scheme in ("k=1", "k=8", saina()))
        for architecture in experiment.PUBLISHED)


def figures(results):
    """The published rule in the RESULT line, at the one rate for all. None: no such run."""
    return {f"saina_vs_sync_{letter}": median(results.reductions(architecture, saina()))
            for letter, architecture in zip("ab", experiment.PUBLISHED)}
