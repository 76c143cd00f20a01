"""The page's pictures of the published rule, from records alone."""
from papers import paper

from . import experiment, tables
from .experiment import SYNC, saina

STYLES = {SYNC: ("black", "-"), "k=1": ("tab:gray", ":"), "k=8": ("tab:brown", "--"),
          saina(): ("tab:blue", "-")}
ROUND_COLOURS = {1: "tab:green", 2: "tab:blue", 3: "tab:purple"}


def curves(results, folder):
    """Accuracy over virtual time of the first seed, by network and batch."""
    seed = results.seeds[0]
    shape = len(experiment.ARCHITECTURES), len(experiment.BATCHES)
    figure, axes = paper.figure_of(*shape, (14, 10), sharex=True, sharey="row")
    for row, architecture in zip(axes, experiment.ARCHITECTURES):
        least = 100
        for axis, batch in zip(row, experiment.BATCHES):
            for scheme, (colour, line) in STYLES.items():
                record = results.record(seed, architecture, scheme, batch)
                if record:
                    accuracies = [100 * value for value in record["accuracies"]]
                    axis.plot(record["seconds"], accuracies, line, color=colour,
                              label=tables.LABELS[scheme])
                    least = min(least, record["final"] * 100)
            axis.set_title(f"{architecture}, batch {batch}")
            axis.grid(alpha=0.3)
        row[0].set_ylabel("test accuracy, %")
        row[0].set_ylim(least - 6, 100)
    for axis in axes[-1]:
        axis.set_xlabel("virtual time, s")
        axis.set_xlim(0, 600)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4)
    paper.save(figure, folder, "curves.png", rect=(0, 0.04, 1, 1), dpi=60)


def _over_least(times):
    return [time / min(times) for time in times]


def sweep(results, folder):
    """Time over that of the best s_th, by s_th, for each length of a round."""
    figure, axes = paper.figure_of(1, 2, (11, 4.5), sharey=True)
    for column, (axis, architecture) in enumerate(zip(axes, experiment.PUBLISHED)):
        lines = [(f"{steps} step{'s' * (steps > 1)}", steps, experiment.TASK, colour, "-")
                 for steps, colour in ROUND_COLOURS.items()]
        lines.append(("an epoch, 1,024 images", experiment.SHOWN, experiment.SMALL_TASK,
                      "tab:orange", "--"))
        for name, steps, task, colour, line in lines:
            times = {s / 10: tables.median(results.seconds(architecture, saina(steps, s), 32, task))
                     for s in experiment.SIGN_THRESHOLDS}
            times = {percent: time for percent, time in times.items() if time}
            if times:
                axis.plot(list(times), _over_least(times.values()), line, color=colour,
                          marker="o", markersize=4, label=f"round of {name}")
        published = [times[column] for times in tables.PUBLISHED_SIGN.values()]
        axis.plot([s / 10 for s in tables.PUBLISHED_SIGN], _over_least(published), "k:",
                  marker="s", markersize=4, label="published")
        axis.set_title(f"{architecture}; published: {tables.NAMES[architecture]}", fontsize=10)
        axis.set_xlabel("s_th, %")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("time to accuracy over the least")
    axes[0].legend(fontsize=8)
    paper.save(figure, folder, "sweep.png", dpi=70)


def all_of(results, folder):
    curves(results, folder)
    sweep(results, folder)
