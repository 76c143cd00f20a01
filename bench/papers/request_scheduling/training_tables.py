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

    def lab_runs(self, setting, scheme):
        """seed -> record, of real ranks."""
        keys = {seed: training.lab_key(setting, scheme, seed) for seed in training.SEEDS}
        return {seed: self.records[key] for seed, key in keys.items() if key in self.records}

    def beside(self, setting, scheme):
        """What the lab's records are held against: seed -> record, evaluated alike."""
        if scheme not in training.STORES:
            return self.runs(setting, scheme)
        keys = {seed: training.read_key(setting, scheme, seed) for seed in training.SEEDS}
        return {seed: self.records[key] for seed, key in keys.items() if key in self.records}

    def arrivals(self, runs):
        """seed -> seconds to the seed's target; None: never."""
        return {seed: time_to(History(seconds=run["times"], accuracies=run["accuracies"]),
                              self.target(seed)) for seed, run in runs.items()}

    def times(self, setting, scheme):
        return self.arrivals(self.runs(setting, scheme))


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


LAB_HEADERS = ["stragglers", "", "s to the target: virtual", "lab", "sync's time / its: virtual",
               "lab", f"mean accuracy until {EARLY_S} s: virtual", "lab",
               "lab / virtual, s for as many gradients", "waiting: virtual", "lab",
               "staleness: virtual", "lab", "busy cores"]


def lab_row(results, setting, scheme):
    runs, curves = results.lab_runs(setting, scheme), results.beside(setting, scheme)
    paces = []
    for seed, run in runs.items():
        both = min(len(run["times"]), len(curves[seed]["times"])) - 1
        paces.append(run["times"][both] / curves[seed]["times"][both])

    def middle(records, name, text):
        values = [record[name] for record in records.values() if name in record]
        return text(statistics.median(values)) if values else ""

    def pair(function):
        return [function(curves), function(runs)]

    def ratios(some):
        own, sync = results.arrivals(some), results.arrivals(
            (results.lab_runs if some is runs else results.runs)(setting, tuned.SYNC))
        return paper.cell([sync[seed] / own[seed] if sync[seed] and own[seed] else 0.0
                           for seed in own if seed in sync])

    return [stragglers.describe(setting), name_of(scheme),
            *pair(lambda some: seconds(results.arrivals(some).values())), *pair(ratios),
            *pair(lambda some: percent(map(early, some.values()))), paper.cell(paces, 3),
            *pair(lambda some: middle(some, "waited", lambda value: f"{100 * value:.0f} %")),
            *pair(lambda some: middle(some, "staleness", lambda value: f"{value:.1f}")),
            middle(runs, "cores", lambda value: f"{value:.2f}")]


def text(results):
    parts = ["## Training with stragglers\n"]
    for setting in training.SETTINGS:
        rows = [row(results, setting, scheme) for scheme in training.SCHEMES
                if results.runs(setting, scheme)]
        parts += [f"### {stragglers.describe(setting)}\n", paper.markdown(HEADERS, rows)]
    parts.append("![accuracy over virtual time](training.png)\n")
    rows = [lab_row(results, setting, scheme) for setting in training.SETTINGS
            for scheme in training.SCHEMES if results.lab_runs(setting, scheme)]
    if rows:
        parts += ["### 16 real ranks in a lab\n", paper.markdown(LAB_HEADERS, rows),
                  "![accuracy over the lab's time](lab.png)\n"]
    return "\n".join(parts)


def plot(results, folder):
    """Virtual time, with every seed; and the lab's beside it, with the first."""
    figure, axes = paper.figure_of(1, len(training.SETTINGS), (13, 5.5), sharey=True)
    for axis, setting in zip(axes, training.SETTINGS):
        for scheme, colour in zip(training.SCHEMES, COLOURS):
            for seed, run in results.runs(setting, scheme).items():
                first = seed == training.SEEDS[0]
                draw(axis, run, scheme, colour, width=1.6 if first else 0.5, label=first,
                     linestyle="--" if scheme == training.STORES[0] else "-")
        finish(axis, setting, "virtual time, s")
    save(figure, axes, folder, "training.png")
    if not any(results.lab_runs(setting, scheme) for setting in training.SETTINGS
               for scheme in training.SCHEMES):
        return
    figure, axes = paper.figure_of(1, len(training.SETTINGS), (13, 5.5), sharey=True)
    for axis, setting in zip(axes, training.SETTINGS):
        for scheme, colour in zip(training.SCHEMES, COLOURS):
            runs, curves = results.lab_runs(setting, scheme), results.beside(setting, scheme)
            seed = next(iter(runs), None)
            if seed is None:
                continue
            until = runs[seed]["times"][-1]
            draw(axis, runs[seed], scheme, colour, width=1.6, label=True)
            draw(axis, curves[seed], scheme, colour, width=1.2, linestyle=":", until=until)
        finish(axis, setting, "time in the lab, in the page's seconds (dotted: virtual time)")
    save(figure, axes, folder, "lab.png")


def draw(axis, run, scheme, colour, width, label=False, linestyle="-", until=float("inf")):
    shown = [(at, 100 * accuracy) for at, accuracy in zip(run["times"], run["accuracies"])
             if at <= until]
    axis.plot(*zip(*shown), color=colour, linewidth=width, alpha=1 if width > 1 else 0.5,
              linestyle=linestyle,
              label=name_of(scheme).replace("`", "") if label else None)


def finish(axis, setting, time):
    axis.set_title(stragglers.describe(setting))
    axis.set_xlabel(time)
    axis.set_ylim(LEAST_ACCURACY, 100)
    axis.grid(alpha=0.3)


def save(figure, axes, folder, name):
    axes[0].set_ylabel("test accuracy, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels))
    paper.save(figure, folder, name, rect=(0, 0.07, 1, 1))
