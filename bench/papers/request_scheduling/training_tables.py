"""The page's part on training: a table a setting and a picture, from records alone."""
import statistics

from papers import paper
from papers.saina import stragglers, tuned
from papers.saina.training import History, time_to

from . import training

EARLY_S = 150
HEADERS = ["", "rate", "s to the target", "sync's time / its", f"mean accuracy until {EARLY_S} s",
           "accuracy at the end", "end, s", "waiting", "staleness"]
COLOURS = ("black", "tab:red", "tab:gray", "tab:blue", "tab:cyan", "tab:green", "tab:purple")
LEAST_ACCURACY = 80  # %, of the axis


def name_of(scheme):
    kind, _, bound = scheme[0].partition("=")
    if kind == "B":
        return "asynchronous" if bound == "none" else f"B = {bound}"
    return {"sync": "sync", "ramp": "`ramp`, requeue"}[kind]


class Training:
    def __init__(self, records):
        self.records = records
        self.rates = {**tuned.load_rates(), **tuned.load_rates(training.RATES)}

    def rate(self, setting, scheme):
        one = scheme == training.STORES[0]
        return self.rates.get(tuned.rate_key(training.WORLD, "none" if one else setting, *scheme))

    def runs(self, setting, scheme):
        """seed -> record."""
        rate = self.rate(setting, scheme)
        if rate is None:
            return {}
        keys = {seed: tuned.key(training.curve(setting, scheme, seed, rate))
                for seed in training.SEEDS}
        return {seed: self.records[key] for seed, key in keys.items() if key in self.records}

    def target(self, seed):
        trial = tuned.Trial(training.WORLD, "none", *tuned.SYNC, "target", seed,
                            tuned.training.LEARNING_RATE)
        return self.records[tuned.key(trial)]["final"] - tuned.POINT

    def times(self, setting, scheme):
        """seed -> seconds to the seed's target; None: never."""
        return {seed: time_to(History(seconds=run["times"], accuracies=run["accuracies"]),
                              self.target(seed))
                for seed, run in self.runs(setting, scheme).items()}


def percent(values):
    return paper.cell([100 * value for value in values], text=lambda value: f"{value:.1f} %")


def seconds(values):
    """Median and range; a run that never arrives is the longest."""
    worst = float("inf")
    return paper.cell([worst if value is None else value for value in values],
                      text=lambda value: "never" if value == worst else f"{value:.0f}")


def early(run):
    """Mean accuracy of the evaluations of the first EARLY_S seconds."""
    return statistics.mean(accuracy for at, accuracy in zip(run["times"], run["accuracies"])
                           if at <= EARLY_S)


def row(results, setting, scheme):
    runs, times = results.runs(setting, scheme), results.times(setting, scheme)
    sync = results.times(setting, tuned.SYNC)
    ratios = [sync[seed] / times[seed] if sync[seed] and times[seed] else 0.0
              for seed in times if seed in sync]
    own = [run for run in runs.values() if "waited" in run]
    return [name_of(scheme), f"{results.rate(setting, scheme):.3g}", seconds(times.values()),
            paper.cell(ratios), percent(map(early, runs.values())),
            percent(run["final"] for run in runs.values()),
            paper.cell([run["seconds"] for run in runs.values()], 0),
            f"{100 * statistics.median(run['waited'] for run in own):.0f} %" if own else "",
            f"{statistics.median(run['staleness'] for run in own):.1f}" if own else ""]


LAB_HEADERS = ["stragglers", "", "s: virtual", "lab", "lab / virtual", "waiting: virtual", "lab",
               "staleness: virtual", "lab"]


def lab_row(record, setting, scheme):
    expected, found = record["virtual"], record["lab"]
    return [stragglers.describe(setting).replace("16", "4"), name_of(scheme),
            f"{expected['seconds']:.1f}", f"{found['seconds']:.1f}",
            f"{found['seconds'] / expected['seconds']:.3f}", f"{100 * expected['waited']:.0f} %",
            f"{100 * found['waited']:.0f} %", f"{expected['staleness']:.2f}",
            f"{found['staleness']:.2f}"]


def text(results):
    parts = ["## Training with stragglers\n"]
    for setting in training.SETTINGS:
        rows = [row(results, setting, scheme) for scheme in training.SCHEMES
                if results.runs(setting, scheme)]
        parts += [f"### {stragglers.describe(setting)}\n", paper.markdown(HEADERS, rows)]
    parts.append("![accuracy over virtual time](training.png)\n")
    rows = [lab_row(results.records[key], setting, scheme) for setting in training.SETTINGS
            for scheme in training.STORES
            if (key := training.lab_key(setting, scheme)) in results.records]
    if rows:
        parts += ["### Four real ranks in a lab\n", paper.markdown(LAB_HEADERS, rows)]
    return "\n".join(parts)


def plot(results, folder):
    figure, axes = paper.figure_of(1, len(training.SETTINGS), (13, 5.5), sharey=True)
    for axis, setting in zip(axes, training.SETTINGS):
        for scheme, colour in zip(training.SCHEMES, COLOURS):
            for seed, run in results.runs(setting, scheme).items():
                first = seed == training.SEEDS[0]
                axis.plot(run["times"], [100 * value for value in run["accuracies"]], color=colour,
                          linewidth=1.6 if first else 0.5, alpha=1 if first else 0.5,
                          linestyle="--" if scheme == training.STORES[0] else "-",
                          label=name_of(scheme).replace("`", "") if first else None)
        axis.set_title(stragglers.describe(setting))
        axis.set_xlabel("virtual time, s")
        axis.set_ylim(LEAST_ACCURACY, 100)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels))
    paper.save(figure, folder, "training.png", rect=(0, 0.07, 1, 1))
