"""The trials at tuned rates: cells, tables, the plot, and their figures of the RESULT line.

A ratio is sync's time to the target over the scheme's in the same seed, both at sync's best rate; 0
when the scheme never arrived. Cells are the median over seeds with the range.
"""
from papers import paper
from papers.paper import markdown

from . import stragglers, tuned
from .tables import cell, median, number

FIGURE_SETTINGS = {"goodput_jitter": "jitter", "goodput_persistent": "persistent",
                   "goodput_tail3": "lognormal", "goodput_tail10": "lognormal:10",
                   "goodput_none": "none"}
GOALS = {"goodput_jitter": 1.3, "goodput_persistent": 2.0, "goodput_tail3": 1.5,
         "goodput_tail10": 2.7, "goodput_none": 0.97, "goodput_vs_best_fixed_min": 0.9,
         "momentum_min": 0.9, "equal_samples_min": 1.25, "final_gap_points": 1.0}


class Tuned:
    """Records by question."""

    def __init__(self, records):
        self.records, self.rates = records, tuned.load_rates()

    def _record(self, world, setting, which, kind, seed):
        own = setting if which in (*tuned.FIXED, tuned.SAINA_OWN) else None
        name = tuned.rate_key(world, own, *(which if own else tuned.SYNC))
        rate = self.rates.get(name)
        return None if rate is None else self.records.get(
            tuned.key(tuned.Trial(world, setting, *which, kind, seed, rate)))

    def pairs(self, world, setting, one, other, kind="time", seeds=tuned.MORE_SEEDS):
        """The records of both in each seed that has both."""
        for seed in seeds:
            both = [self._record(world, setting, which, kind, seed) for which in (one, other)]
            if all(both):
                yield both

    def ratios(self, world, setting, which=tuned.GOODPUT, against=tuned.SYNC,
               seeds=tuned.MORE_SEEDS):
        return [(base["tta_s"] or float("inf")) / mine["tta_s"] if mine["tta_s"] else 0.0
                for base, mine in self.pairs(world, setting, against, which, seeds=seeds)]

    def best_fixed(self, world, setting):
        """(which, its median ratio to sync) of the fixed k that is fastest at its own rate."""
        found = [(which, median(self.ratios(world, setting, which))) for which in tuned.FIXED]
        found = [one for one in found if one[1] is not None]
        return max(found, key=lambda one: one[1], default=(None, None))

    def equal_ratios(self, world, setting):
        return [sync["seconds"] / mine["seconds"] for sync, mine in
                self.pairs(world, setting, tuned.SYNC, tuned.GOODPUT, "equal")]

    def gaps(self, world, setting):
        return [100 * (sync["final"] - mine["final"]) for sync, mine in
                self.pairs(world, setting, tuned.SYNC, tuned.GOODPUT, "equal")]


def _worlds(**wanted):
    worlds = dict.fromkeys(part.world for part in tuned.PARTS)
    return [world for world in worlds
            if all(getattr(world, name) == value for name, value in wanted.items())]


def figures(results):
    def of(choose, values):
        return choose((value for value in map(median, values) if value is not None), default=None)

    judged = _worlds(task="generated", workers=16, optimizer="sgd")
    found = {name: of(min, [results.ratios(world, setting) for world in judged])
             for name, setting in FIGURE_SETTINGS.items()}
    against = []
    for part in tuned.PARTS:
        for setting in part.fixed:
            which, _ = results.best_fixed(part.world, setting)
            if which is not None:
                against.append(results.ratios(part.world, setting, against=which))
    momentum = [(part.world, setting) for part in tuned.PARTS
                if part.world.optimizer == "momentum" for setting in part.settings]
    equal = [(part.world, setting) for part in tuned.PARTS for setting in part.equal]
    found["goodput_vs_best_fixed_min"] = of(min, against)
    found["momentum_min"] = of(min, [results.ratios(*which) for which in momentum])
    found["equal_samples_min"] = of(min, [results.equal_ratios(*which) for which in equal
                                          if which[1] != "none"])
    found["final_gap_points"] = of(max, [results.gaps(*which) for which in equal])
    return found


def name_of(world):
    parts = [world.task, world.architecture, f"n = {world.workers}", world.optimizer]
    return ", ".join(parts)


def goal_text(results):
    """Each figure of the RESULT line with its goal; those that miss it in bold."""
    parts = []
    for name, value in figures(results).items():
        most, goal = name == "final_gap_points", GOALS[name]
        met = value is not None and (value <= goal if most else value >= goal)
        shown = paper.number(value) if met else f"**{paper.number(value)}**"
        parts.append(f"`{name}` {shown} ({'<=' if most else '>='}{goal:g})")
    return ", ".join(parts)


def speed_table(results):
    rows = []
    for world in _worlds():
        rate = results.rates.get(tuned.rate_key(world, None, *tuned.SYNC))
        if rate is not None:
            rows.append([name_of(world), f"{rate:.3g}"] + [
                cell(results.ratios(world, setting)) for setting in tuned.SETTINGS])
    return markdown(["task, network, workers, optimizer", "sync's rate",
                     *map(stragglers.describe, tuned.SETTINGS)], rows)


def fixed_table(results):
    rows = []
    for part in tuned.PARTS:
        for setting in part.fixed:
            best, _ = results.best_fixed(part.world, setting)
            if best is None:
                continue
            row = [name_of(part.world), stragglers.describe(setting)]
            for which in tuned.FIXED:
                rate = results.rates.get(tuned.rate_key(part.world, setting, *which))
                ratio = median(results.ratios(part.world, setting, which))
                row.append("-" if ratio is None else f"{ratio:.2f} (at {rate:.3g})")
            rows.append(row + [cell(results.ratios(part.world, setting)),
                               cell(results.ratios(part.world, setting, against=best))])
    return markdown(["task, network, workers, optimizer", "setting",
                     *(f"{scheme}, {mode}" for scheme, mode in tuned.FIXED), "goodput, untuned",
                     "goodput over the best of these"], rows)


def saina_table(results):
    """saina at a rate of its own and as the product runs it, beside goodput."""
    rows = []
    for part in tuned.WITH_SAINA:
        for setting in part.saina:
            own = results.rates.get(tuned.rate_key(part.world, setting, *tuned.SAINA_OWN))
            found = [results.ratios(part.world, setting, which, seeds=tuned.FRESH_SEEDS)
                     for which in (tuned.SAINA_OWN, tuned.SAINA, tuned.GOODPUT)]
            against = results.ratios(part.world, setting, against=tuned.SAINA,
                                     seeds=tuned.FRESH_SEEDS)
            if all(found):
                rows.append([f"{part.world.optimizer}, `{part.world.architecture}`",
                             f"{number(found[0])} at {own:.2g}", *map(number, found[1:]),
                             cell(against)])
    return markdown(["", "`saina`, drop", "`saina`, requeue", "`goodput`",
                     "`goodput`/`saina`, requeue"], rows)


def ramp_table(results):
    rows = []
    for part in tuned.PARTS:
        for setting in part.ramp:
            found = [results.ratios(part.world, setting, which) for which in tuned.RAMPS]
            if not any(found):
                continue
            rows.append([name_of(part.world), stragglers.describe(setting)] + [
                f"{cell(values)}, {sum(value == 0 for value in values)} of {len(values)} never"
                for values in found])
    return markdown(["task, network, workers, optimizer", "setting", "a step of k counts k/n",
                     "a step's mean as it is"], rows)


def equal_table(results):
    rows = [[name_of(part.world), stragglers.describe(setting),
             cell(results.equal_ratios(part.world, setting)),
             cell(results.gaps(part.world, setting))]
            for part in tuned.PARTS for setting in part.equal
            if results.equal_ratios(part.world, setting)]
    return markdown(["task, network, workers, optimizer", "setting", "sync's time over goodput's",
                     "sync's final accuracy less goodput's, points"], rows)


def text(results):
    """What the bench prints."""
    return "\n".join([
        f"Median [least .. largest] of {len(tuned.SEEDS)} seeds, of {len(tuned.MORE_SEEDS)} where "
        "fixed k of the generated task ran beside it; \"-\": not run; 0: never there.\n",
        "goodput with requeue over sync, both at sync's best rate:\n", speed_table(results),
        "Against fixed k, each at its own rate:\n", fixed_table(results),
        "ramp with requeue over sync, both at sync's best rate:\n", ramp_table(results),
        "The same samples under one falling rate:\n", equal_table(results)])


def plot(results, folder):
    worlds = [world for world in _worlds() if results.ratios(world, "jitter")]
    if not worlds:
        return
    figure, axes = paper.figure_of(1, 1, (10, 4.5))
    width = 0.8 / len(worlds)
    for place, world in enumerate(worlds):
        values = [results.ratios(world, setting) for setting in tuned.SETTINGS]
        at = [index + (place - (len(worlds) - 1) / 2) * width
              for index, value in enumerate(values) if value]
        middle = [median(value) for value in values if value]
        bars = [[most - min(value) for most, value in zip(middle, filter(None, values))],
                [max(value) - most for most, value in zip(middle, filter(None, values))]]
        axes.bar(at, middle, width, yerr=bars, capsize=2, label=name_of(world))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(tuned.SETTINGS)),
                    [stragglers.describe(setting).replace(", ", ",\n")
                     for setting in tuned.SETTINGS])
    axes.set_ylabel("sync's time to the target over goodput's")
    axes.legend(fontsize=8)
    paper.save(figure, folder, "tuned.png")
