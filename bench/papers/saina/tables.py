"""From records to the tables of the page and the figures of the RESULT line.

Cells are the median over seeds with the range from least to largest. A reduction is the time that
k = 16 takes to the target, its own final accuracy minus one point, divided by the scheme's time to
the same target in the same seed; 0 when the scheme never reached it in the steps that it had.
"""
import statistics

from papers import paper
from papers.paper import markdown

from . import experiment, stragglers, training

PUBLISHED_SIGN = {300: (472.4, 771.2), 400: (448.8, 543.1), 500: (426.0, 401.0),
                  600: (555.6, 508.4), 700: (564.0, 530.3)}
PUBLISHED_COUNT = {1: (451.0, 475.5), 3: (426.3, 464.1), 5: (426.0, 401.0), 7: (451.1, 417.3),
                   9: (463.0, 434.1), 0: (423.8, 396.5)}
PUBLISHED_SCHEMES = {"k=1": ((73.9, None), (70.1, 2.28)), "k=8": ((76.3, 1.51), (72.2, 2.15)),
                     "saina": ((78.0, 1.70), (72.5, 2.84))}
LABELS = {"saina": "saina, round of an epoch, one sign in 32", "saina-5": "saina, round of 5 steps",
          "saina-all": "saina, round of an epoch, all signs", "k=16": "k = 16 (sync)",
          "clock": "blind clock, +1 each 50 steps"}
SWEEP = tuple(f"lognormal:{ratio}" for ratio in experiment.SWEEP_RATIOS)


def label(scheme):
    name, *changes = scheme.split(" ")
    text = LABELS.get(name, name.replace("k=", "k = "))
    for change in changes:
        option, value = change.split("=")
        text += f", k from {value}" if option == "from" else f", learning rate 0.{int(value):03d}"
    return text.rstrip("0") if "rate" in text else text


def setting_of_ratio(ratio):
    return "lognormal" if ratio == 3 else f"lognormal:{ratio}"


class Results:
    """Records by question. `task` is the judged one unless said otherwise."""

    def __init__(self, records, task="generated"):
        self.records, self.task = records, task
        self.seeds = sorted({int(key.split("/")[1]) for key in records
                             if key.startswith(task + "/")})

    def record(self, seed, architecture, setting, scheme, mode):
        if scheme == experiment.SYNC[0]:
            mode = experiment.SYNC[1]
        return self.records.get(
            experiment.key(self.task, seed, architecture, setting, scheme, mode))

    def each(self, architecture, setting, scheme, mode):
        """(record, record of k = 16) of each seed that has both."""
        for seed in self.seeds:
            record = self.record(seed, architecture, setting, scheme, mode)
            sync = self.record(seed, architecture, setting, *experiment.SYNC)
            if record and sync:
                yield record, sync

    def reductions(self, *which):
        return [sync["tta_s"] / record["tta_s"] if record["tta_s"] else 0.0
                for record, sync in self.each(*which)]

    def finals(self, *which):
        return [100 * record["final"] for record, _ in self.each(*which)]

    def gaps(self, *which):
        """Points of final accuracy below k = 16."""
        return [100 * (sync["final"] - record["final"]) for record, sync in self.each(*which)]

    def seconds(self, *which):
        return [record["tta_s"] if record["tta_s"] else float("inf")
                for record, _ in self.each(*which)]

    def best_fixed(self, architecture, setting, mode):
        """(scheme, median reduction) of the best k of {1, 4, 8, 12, 16} on the median."""
        schemes = [experiment.SYNC[0]] + [f"k={k}" for k in experiment.FIXED]
        medians = {scheme: median(self.reductions(architecture, setting, scheme, mode))
                   for scheme in schemes}
        best = max((scheme for scheme in schemes if medians[scheme] is not None),
                   key=lambda scheme: medians[scheme], default=None)
        return best, medians.get(best)

    def against_best_fixed(self, architecture, setting, scheme, mode):
        """Time of the best fixed k over the scheme's, by seed; above 1: the scheme is faster."""
        best, _ = self.best_fixed(architecture, setting, mode)
        if best is None:
            return []
        pairs = zip(self.reductions(architecture, setting, scheme, mode),
                    self.reductions(architecture, setting, best, mode))
        return [mine / fixed if fixed else 0.0 for mine, fixed in pairs]


def median(values):
    """Of an even count the mean of the middle two, but the lower one where a run never arrived."""
    if not values:
        return None
    never = 0.0 in values or float("inf") in values
    return statistics.median_low(values) if never else statistics.median(values)


def cell(values, digits=2, unit=""):
    if values and min(values) == float("inf"):
        return "never"

    def text(value):
        return "never" if value == float("inf") else f"{value:.{digits}f}{unit}"
    return paper.cell(values, text=text, middle=median)


def reduction_cell(values):
    if not values:
        return "-"
    if not any(values):
        return "never"
    reached = sum(value > 0 for value in values)
    text = cell(values) + " x"
    return text if reached == len(values) else f"{text}, {reached}/{len(values)} reached"


def _threshold_table(results, name, published, scheme_of, title):
    headers = [title, "VGG-16, published", "large, drop", "large, requeue",
               "SqueezeNet, published", "small, drop", "small, requeue"]

    def cells(scheme, figures):
        row = []
        for architecture, figure in zip(experiment.ARCHITECTURES, figures):
            row.append("" if figure is None else f"{figure:.1f} s")
            row += [cell(results.seconds(architecture, "jitter", scheme, mode), 0, " s")
                    for mode in experiment.MODES]
        return row
    rows = [[name(value)] + cells(scheme_of(value), figures)
            for value, figures in published.items()]
    for scheme in ("saina-5", "ramp", "goodput", "clock", "k=8", "k=16"):
        rows.append([label(scheme)] + cells(scheme, (None, None)))
    return markdown(headers, rows)


def sign_table(results):
    return _threshold_table(
        results, lambda s: f"saina, s_th {s // 10} %", PUBLISHED_SIGN,
        lambda s: "saina" if s == 500 else f"saina s={s}", "time to accuracy")


def count_table(results):
    return _threshold_table(
        results, lambda c: f"saina, c_th {c or '= k'}", PUBLISHED_COUNT,
        lambda c: "saina" if c == 5 else f"saina c={c}", "time to accuracy")


def scheme_table(results, architecture, setting):
    """Every scheme in both late modes, beside the published figures where there are some."""
    column = experiment.ARCHITECTURES.index(architecture)
    headers = ["scheme", "published: final, reduction", "drop: final accuracy",
               "drop: reduction", "requeue: final accuracy", "requeue: reduction"]
    rows = []
    for scheme in (experiment.SYNC[0],) + experiment.SCHEMES + experiment.FROM_FLOOR:
        published = ""
        if setting == "jitter" and scheme in PUBLISHED_SCHEMES:
            final, reduction = PUBLISHED_SCHEMES[scheme][column]
            published = f"{final} %, " + (f"{reduction} x" if reduction else "-")
        row = [label(scheme), published]
        for mode in experiment.MODES:
            which = (architecture, setting, scheme, mode)
            row += [cell(results.finals(*which), 1, " %"),
                    reduction_cell(results.reductions(*which))]
        rows.append(row)
    return markdown(headers, rows)


def digits_table(results):
    """The tuning task, for completeness: a target of 517 test samples is a coarse one."""
    shown = Results(results.records, "digits")
    headers = ["scheme", "network", "drop: final accuracy", "drop: reduction",
               "requeue: final accuracy", "requeue: reduction"]
    rows = []
    for scheme in ("k=16", "k=4", "k=8", "ramp", "goodput"):
        for architecture in experiment.ARCHITECTURES:
            row = [label(scheme), architecture]
            for mode in experiment.MODES:
                which = (architecture, "jitter", scheme, mode)
                row += [cell(shown.finals(*which), 1, " %"),
                        reduction_cell(shown.reductions(*which))]
            rows.append(row)
    return markdown(headers, rows)


def best_fixed_table(results):
    headers = ["setting", "network", "late mode", "best fixed k", "its reduction",
               "goodput against it", "ramp against it", "saina of 5 steps against it",
               "the same, k from 4"]
    rows = []
    for setting in stragglers.SETTINGS:
        for architecture in experiment.ARCHITECTURES:
            for mode in experiment.MODES:
                best, reduction = results.best_fixed(architecture, setting, mode)
                if best is None:
                    continue
                row = [stragglers.describe(setting), architecture, mode, best.replace("k=", ""),
                       f"{reduction:.2f} x"]
                row += [cell(results.against_best_fixed(architecture, setting, scheme, mode))
                        for scheme in ("goodput", "ramp", "saina-5", "saina-5 from=4")]
                rows.append(row)
    return markdown(headers, rows)


def sweep_table(results):
    headers = ["p99/p50", "network", "late mode", "k = 4", "k = 8", "saina, epoch",
               "saina, 5 steps", "ramp", "goodput"]
    rows = []
    for ratio in sorted(experiment.SWEEP_RATIOS + (3,)):
        for architecture in experiment.ARCHITECTURES:
            for mode in experiment.MODES:
                rows.append([str(ratio), architecture, mode] + [
                    reduction_cell(results.reductions(architecture, setting_of_ratio(ratio),
                                                      scheme, mode))
                    for scheme in ("k=4", "k=8", "saina", "saina-5", "ramp", "goodput")])
    return markdown(headers, rows)


def published_ratio_lines(results):
    """Where on the sweep `saina` as published shows the published reductions."""
    lines = []
    for architecture, column in zip(experiment.ARCHITECTURES, (0, 1)):
        wanted = PUBLISHED_SCHEMES["saina"][column][1]
        points = [(ratio, median(results.reductions(architecture, setting_of_ratio(ratio),
                                                    "saina", "drop")))
                  for ratio in sorted(experiment.SWEEP_RATIOS + (3,))]
        points = [point for point in points if point[1] is not None]
        place = "nowhere on this axis"
        for (low, below), (high, above) in zip(points, points[1:]):
            if below <= wanted <= above:
                at = low + (wanted - below) / (above - below) * (high - low)
                place = f"at p99/p50 = {at:.1f}"
                break
        lines.append(f"- {architecture}, `saina` as published, drop: the published {wanted:.2f} x "
                     f"falls {place}.")
    return "\n".join(lines) + "\n"


def rate_table(results, task):
    """Other learning rates: what k = 16 gains and where the smallest k with requeue stays."""
    shown = Results(results.records, task)
    default = int(1000 * training.LEARNING_RATE)
    headers = ["learning rate", "network", "k = 16: final accuracy", "k = 16: reduction",
               "k = 4, requeue: final accuracy", "k = 4, requeue: reduction"]
    rows = []
    for rate in sorted(experiment.LEARNING_RATES + (default,)):
        suffix = "" if rate == default else f" lr={rate}"
        for architecture in experiment.ARCHITECTURES:
            row = [f"{rate / 1000:g}", architecture]
            for scheme, mode in (("k=16", "drop"), ("k=4", "requeue")):
                which = (architecture, "jitter", scheme + suffix, mode)
                row += [cell(shown.finals(*which), 1, " %"),
                        reduction_cell(shown.reductions(*which))]
            rows.append(row)
    return markdown(headers, rows)


def figures(results):
    """The published rule in the RESULT line, at the one rate for all. None: no such run."""
    return {f"saina_vs_sync_{letter}":
            median(results.reductions(architecture, "jitter", "saina", "drop"))
            for letter, architecture in zip("ab", experiment.ARCHITECTURES)}


def goal_table(results):
    """The goals that were set beforehand, by setting and network, and whether they are met."""
    rows = []

    def row(goal, setting, architecture, values, met):
        middle = median(values)
        if middle is not None:
            rows.append([goal, stragglers.describe(setting), architecture, cell(values),
                         "yes" if met(middle) else "**no**"])
    for setting in ("jitter", "persistent", "lognormal"):
        for architecture in experiment.ARCHITECTURES:
            row("ramp, requeue: reduction at least 2", setting, architecture,
                results.reductions(architecture, setting, "ramp", "requeue"),
                lambda value: value >= 2)
    for mode in reversed(experiment.MODES):
        for setting in stragglers.SETTINGS:
            for architecture in experiment.ARCHITECTURES:
                row(f"goodput, {mode}: at least 0.9 of the best fixed k", setting, architecture,
                    results.against_best_fixed(architecture, setting, "goodput", mode),
                    lambda value: value >= 0.9)
    for setting in stragglers.SETTINGS:
        for architecture in experiment.ARCHITECTURES:
            if not stragglers.is_skewed(setting):
                row("ramp, requeue: at most 1 point below sync at the end", setting,
                    architecture, results.gaps(architecture, setting, "ramp", "requeue"),
                    lambda value: value <= 1)
    return markdown(["goal", "setting", "network", "median [least .. largest]", "met"], rows)
