"""The page's pictures, from records alone."""
import statistics

from papers import paper

from . import experiment, models, tables

SHOWN = tuple(name for name in experiment.NAMES if name != "fifo")
PHASES = (("pull", "tab:blue"), ("compute", "lightgray"), ("push", "tab:orange"))


def gains(results, folder):
    """Throughput against fifo of every policy: published, ours, the fluid model's."""
    figure, axes = paper.figure_of(2, 3, (20, 8.5))
    for axis, model in zip(axes.flat, results.models):
        places = range(len(SHOWN))
        ours = [results.ratios(model, policy) for policy in SHOWN]
        middles = [statistics.median(ratios) if ratios else 0 for ratios in ours]
        errors = [[middle - min(ratios, default=0) for middle, ratios in zip(middles, ours)],
                  [max(ratios, default=0) - middle for middle, ratios in zip(middles, ours)]]
        axis.bar([place - 0.2 for place in places], middles, 0.38, yerr=errors, capsize=2,
                 color="tab:blue", error_kw={"linewidth": 0.8}, label="ours")
        axis.bar([place + 0.2 for place in places],
                 [tables.predicted_ratio(model, policy) for policy in SHOWN], 0.38,
                 color="lightgray", label="theory")
        axis.axhline(1, color="black", linewidth=0.8)
        if model in models.PUBLISHED:
            axis.axhline(1 + models.PUBLISHED[model].gain, color="tab:red", linestyle=":",
                         label="published, with its schedule")
        axis.set_xticks(places, [tables.LABELS[policy].replace(", ", ",\n").replace(" p", "\np")
                                 for policy in SHOWN], fontsize=7)
        axis.set_title(model)
        axis.set_ylabel("throughput / fifo")
        axis.grid(axis="y", alpha=0.3)
    axes[0][0].legend(loc="upper left")
    paper.save(figure, folder, "gains.png")


def timeline(results, folder, model="resnet50"):
    """Who pulls, computes and pushes when, in one step of three policies."""
    policies = ("fifo", "worker", "multicast_pull")
    figure, axes = paper.figure_of(len(policies), 1, (11, 6.5), sharex=True)
    for axis, policy in zip(axes, policies):
        records = [record for _, record in results.each(model, policy)]
        for worker, (pulled, pushing, pushed) in enumerate(records[0]["timeline"]):
            edges = (0, pulled, pushing, pushed)
            for (phase, colour), start, end in zip(PHASES, edges, edges[1:]):
                axis.barh(worker, end - start, left=start, height=0.7, color=colour,
                          label=phase if worker == 0 else None)
        axis.set_yticks(range(models.WORKERS),
                        [f"worker {worker}" for worker in range(models.WORKERS)])
        axis.set_title(tables.LABELS[policy], fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[1].legend(loc="upper right")
    axes[-1].set_xlabel(f"seconds of one step of {model}; a pull lasts until the worker has the "
                        "whole model, a push until the server has all gradients")
    paper.save(figure, folder, "timeline.png")


def all_of(results, folder):
    gains(results, folder)
    timeline(results, folder)
