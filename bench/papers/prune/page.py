"""The page's tables, pictures and figures, from records alone."""
import dataclasses
import statistics

from papers import paper

from . import settings, training

LINK = "100 Mb/s"
COLOURS = dict(zip((rule.key for rule in (settings.DENSE, *settings.PUBLISHED, *settings.OTHERS)),
                   ("black", "tab:blue", "tab:cyan", "tab:purple", "tab:orange", "tab:red",
                    "tab:brown", "tab:green", "tab:gray", "tab:pink", "tab:olive")))


class Results:
    """Records by rule and seed, and what is made of a run and its seed's dense run."""

    def __init__(self, records):
        self._records = records

    def pair(self, where, rule):
        """(run, dense run), if there are both; where: how their keys begin."""
        found = tuple(self._records.get(where + each.key) for each in (rule, settings.DENSE))
        return None if None in found else found

    def pairs(self, rule, task=settings.TASK):
        """Of every seed."""
        return list(filter(None, (self.pair(f"{task}/{seed}/", rule) for seed in settings.SEEDS)))

    def lab_pairs(self, link, rule):
        """Likewise in the lab, by seed."""
        found = {seed: self.pair(settings.lab_key(link, seed, ""), rule)
                 for seed in settings.LAB_SEEDS}
        return {seed: pair for seed, pair in found.items() if pair}

    def each(self, rule, of, task=settings.TASK):
        return [of(run, dense) for run, dense in self.pairs(rule, task)]


def final(run, _dense=None):
    return 100 * training.smoothed(run["accuracies"])[-1]


def gap(run, dense):
    """Points of final accuracy that dense is ahead."""
    return final(dense) - final(run)


def ratio(name):
    return lambda run, dense: dense[name][-1] / run[name][-1]


def speedup(link):
    """Dense's time to its own final accuracy less a point, over the run's; 0: never there."""
    def of(run, dense):
        return sooner(run, dense, lambda record: training.seconds(record, link))
    return of


def lab_speedup(run, dense):
    """As speedup(), by the clock on the wall."""
    return sooner(run, dense, lambda record: record["times"])


def sooner(run, dense, times_of):
    target = final(dense) / 100 - settings.POINT
    took, without = (training.time_to(times_of(record), record["accuracies"], target)
                     for record in (run, dense))
    return 0.0 if took is None else without / took


def share(run, _dense=None):
    """Of a worker's CPU time for forward and backward, what its thresholds take."""
    return 100 * run["threshold_ns"] / run["compute_ns"]


def last_density(run, _dense=None):
    return 100 * run["densities"][-1]


def figures(results):
    def median(rule, of):
        values = results.each(rule, of)
        return statistics.median(values) if values else None
    static = settings.STATIC1
    sigma_share = median(settings.SIGMA[2], share)
    raw_density = median(settings.RAW, last_density)
    in_lab = [lab_speedup(*pair) for pair in results.lab_pairs(LINK, static).values()]
    return {"static1_bytes_ratio": median(static, ratio("up_bytes")),
            "static1_down_ratio": median(static, ratio("down_bytes")),
            "static1_accuracy_gap": median(static, gap),
            "static1_speedup_100mbps": median(static, speedup(LINK)),
            "sigma_time_share": None if sigma_share is None else sigma_share / 100,
            "dynamic_raw_density": None if raw_density is None else raw_density / 100,
            **({"lab_speedup_100mbps": statistics.median(in_lab)} if in_lab else {})}


HEADERS = ["rule", "final accuracy, %", "behind dense, points", "bytes up: dense / this", "down",
           "density at the end, %", *(f"time: dense / this, {link}" for link in settings.LINKS),
           "threshold / computing, %"]


def row(results, rule):
    def cell(of, digits):
        return paper.cell(results.each(rule, of), digits)
    return [rule.key, cell(final, 1), cell(gap, 1), cell(ratio("up_bytes"), 1),
            cell(ratio("down_bytes"), 1), cell(last_density, 2),
            *(cell(speedup(link), 2) for link in settings.LINKS), cell(share, 1)]


def rows(results):
    return [row(results, rule) for rule in settings.RULES if results.pairs(rule)]


def draw(results, folder):
    """Accuracy by step, by time, and density, of the first seed."""
    figure, axes = paper.figure_of(2, 3, (18, 10))
    panels = ((axes[0][0], "accuracy by step, with error feedback", True, None),
              (axes[1][0], "accuracy by step, without", False, None),
              (axes[0][1], "accuracy by time, 100 Mb/s", True, "100 Mb/s"),
              (axes[1][1], "accuracy by time, 1 Gb/s", True, "1 Gb/s"))
    for rule in settings.RULES:
        if not results.pairs(rule):
            continue
        run, _dense = results.pairs(rule)[0]
        colour = COLOURS[rule.key.replace(", no feedback", "")]
        line = "--" if rule in settings.OTHERS else "-"
        accuracies = [100 * value for value in training.smoothed(run["accuracies"])]
        for axis, _title, feedback, link in panels:
            if rule.feedback == feedback or rule is settings.DENSE:
                times = training.seconds(run, link) if link else run["steps"]
                axis.plot(times, accuracies, line, color=colour, label=rule.label)
        if rule is not settings.DENSE:
            densities = [max(100 * value, 1e-3) for value in run["densities"]]
            axes[0 if rule.feedback else 1][2].plot(run["steps"], densities, line,
                                                     color=colour)
    for axis, title, _feedback, link in panels:
        axis.set_title(title)
        axis.set_ylim(70, 100)
        axis.set_ylabel("test accuracy, %")
        axis.set_xlabel("virtual time, s" if link else "step")
        if link:
            axis.set_xscale("log")
    for axis, title in ((axes[0][2], "with"), (axes[1][2], "without")):
        axis.set_title(f"density of pruned tensors, {title} error feedback")
        axis.set_yscale("log")
        axis.set_ylabel("elements that leave, % (least shown: 0.001)")
        axis.set_xlabel("step")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=6)
    figure.suptitle(f"{settings.WORKERS} workers, first seed; curves are means of three "
                    "evaluations; below 70 % is cut off")
    paper.save(figure, folder, "curves.png", rect=(0, 0.07, 1, 1), dpi=70)


PAGE_HEADERS = ["rule", "behind dense", "no feedback", "gratings", "bytes up", "down", "density, %",
                *settings.LINKS, "threshold, %"]


def page_row(results, rule):
    def middle(of, digits, rule=rule, task=settings.TASK):
        values = results.each(rule, of, task)
        return paper.number(statistics.median(values), digits) if values else "-"
    without = dataclasses.replace(rule, feedback=False)
    return [rule.key, middle(gap, 1), middle(gap, 1, without),
            middle(gap, 1, task=settings.OTHER_TASK), middle(ratio("up_bytes"), 1),
            middle(ratio("down_bytes"), 1), middle(last_density, 2),
            *(middle(speedup(link), 2) for link in settings.LINKS), middle(share, 0)]


def text(results):
    found = [page_row(results, rule) for rule in settings.RULES
             if rule.feedback and results.pairs(rule)]
    return paper.markdown(PAGE_HEADERS, found) + "\n![accuracy and density](curves.png)\n"
