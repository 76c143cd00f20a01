"""The page's part on training: a table and pictures, from records alone."""
import statistics

from papers import paper
from papers.saina import stragglers, tuned
from papers.saina.training import History, time_to

from . import training

HEADERS = ["virtual", "lab", "waiting", "staleness"]
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


def row(results, setting, scheme):
    """A scheme's cells of HEADERS: how much sooner than sync it is at the target, and of virtual
    time the medians of the rest."""
    def sooner(runs, sync):
        own, other = results.arrivals(runs), results.arrivals(sync)
        ratios = [other[seed] / own[seed] if other[seed] and own[seed] else 0.0
                  for seed in own if seed in other]
        return (f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
                if ratios else "")

    def middle(name, text):
        values = [run[name] for run in runs.values() if name in run]
        return text.format(statistics.median(values)) if values else ""

    runs = results.runs(setting, scheme)
    return [sooner(results.beside(setting, scheme) or runs, results.runs(setting, tuned.SYNC)),
            sooner(results.lab_runs(setting, scheme), results.lab_runs(setting, tuned.SYNC)),
            middle("waited", "{:.0%}"), middle("staleness", "{:.1f}")]


def text(results):
    headers = [""] + [f"{stragglers.describe(setting)}: {header}" if place == 0 else header
                      for setting in training.SETTINGS for place, header in enumerate(HEADERS)]
    rows = [[name_of(scheme)] + [cell for setting in training.SETTINGS
                                 for cell in row(results, setting, scheme)]
            for scheme in training.SCHEMES
            if all(results.runs(setting, scheme) for setting in training.SETTINGS)]
    return ("## Training with stragglers\n\nSync's time to the target / the scheme's: median of "
            "three seeds (least–largest).\n\n" + paper.markdown(headers, rows)
            + "\n![the store's accuracy over virtual time](training.png)\n"
            "\n![accuracy over the lab's time](lab.png)\n")


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
