"""The page's table and picture of the trainings in the lab, from records alone."""
from papers import paper

from . import settings, training
from .page import COLOURS, final, gap, lab_speedup, ratio, sooner

HEADERS = ["link", "rule", "final accuracy, %", "virtual", "behind dense, points",
           "bytes up: dense / this", "virtual", "down", "virtual", "a step, ms",
           "a step: dense / this", "virtual", "time: dense / this", "virtual",
           "late, ms a step"]


def pace(times_of):
    """Dense's time of a step over the run's."""
    return lambda run, dense: times_of(dense)[-1] / times_of(run)[-1]


def row(results, link, rule):
    pairs = results.lab_pairs(link, rule)
    virtual = [results.pair(f"{settings.TASK}/{seed}/", rule) for seed in pairs]
    virtual = list(filter(None, virtual))

    def cell(of, digits, some=tuple(pairs.values())):
        return paper.cell([of(*pair) for pair in some], digits)

    def both(of, digits, of_virtual=None):
        return cell(of, digits), cell(of_virtual or of, digits, virtual)

    def seconds(record):
        return training.seconds(record, link, 1 / settings.lab_scale(link))

    return [link, rule.key, *both(final, 1), cell(gap, 1), *both(ratio("up_bytes"), 1),
            *both(ratio("down_bytes"), 1), cell(lambda run, _dense: run["step_ms"][0], 1),
            *both(pace(lambda record: record["times"]), 2, pace(seconds)),
            *both(lab_speedup, 2, lambda run, dense: sooner(run, dense, seconds)),
            cell(lambda run, _dense: run["late_ms"], 1)]


def rows(results):
    return [row(results, link, rule) for link in settings.LINKS for rule in settings.RULES
            if results.lab_pairs(link, rule)]


def text(results):
    """Medians: dense's time over the rule's on each link, lab and virtual."""
    found = []
    for rule in settings.RULES:
        cells = [row(results, link, rule) if results.lab_pairs(link, rule) else ["-"] * len(HEADERS)
                 for link in settings.LINKS]
        if rule.feedback and any(each[1] != "-" for each in cells):
            found.append([rule.key, *(each[at].split(" ")[0] for each in cells
                                      for at in (12, 13))])
    if not found:
        return ""
    headers = ["rule", *(name for link in settings.LINKS for name in (link + ", lab", "virtual"))]
    return "\nIn the lab:\n\n" + paper.markdown(headers, found) + (
        "\n![accuracy in the lab](lab.png)\n")


def draw(results, folder):
    """Accuracy by step and by the lab's time, virtual time dotted; first seed."""
    figure, axes = paper.figure_of(2, 2, (14, 10))
    for axis, link in zip(axes[1], settings.LINKS):
        for feedback, by_step in ((True, axes[0][0]), (False, axes[0][1])):
            for rule in settings.RULES:
                runs = results.lab_pairs(link, rule)
                if settings.SEEDS[0] not in runs or rule.feedback != feedback and (
                        rule is not settings.DENSE):
                    continue
                run = runs[settings.SEEDS[0]][0]
                where = f"{settings.TASK}/{settings.SEEDS[0]}/"
                virtual = (results.pair(where, rule) or (None,))[0]
                colour = COLOURS[rule.key.replace(", no feedback", "")]
                if link == next(iter(settings.LINKS)):
                    _curve(by_step, run, run["steps"], virtual and virtual["steps"], virtual,
                           colour, rule.key)
                if feedback:
                    _curve(axis, run, run["times"], virtual and training.seconds(
                        virtual, link, 1 / settings.lab_scale(link)), virtual, colour, rule.key)
        axis.set_title(f"by time, {link}")
        axis.set_xlabel("the lab's time, in the page's seconds")
        axis.set_xscale("log")
    for axis, title in zip(axes[0], ("with error feedback", "without")):
        axis.set_title(f"by step, {title}")
        axis.set_xlabel("step")
    for axis in axes.flat:
        axis.set_ylim(70, 100)
        axis.set_ylabel("test accuracy, %")
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right", fontsize=8)
    figure.suptitle(f"{settings.WORKERS} real ranks, first seed; dotted: virtual time; means of "
                    "three evaluations")
    paper.save(figure, folder, "lab.png", rect=(0, 0, 1, 0.98), dpi=70)


def _curve(axis, run, times, virtual_times, virtual, colour, label):
    def percent(record):
        return [100 * value for value in training.smoothed(record["accuracies"])]
    axis.plot(times, percent(run), color=colour, label=label)
    if virtual:
        axis.plot(virtual_times, percent(virtual), ":", color=colour)
