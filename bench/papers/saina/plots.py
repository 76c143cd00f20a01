"""The page's pictures, from records alone."""
from papers import paper

from . import experiment, stragglers
from .tables import label, median, setting_of_ratio

PUBLISHED = {"large": (1.70, "dotted: 1.70 x, published for VGG-16"),
             "small": (2.84, "dotted: 2.84 x, published for SqueezeNet")}
STYLES = {"k=16": ("black", "-"), "k=4": ("tab:gray", ":"), "k=8": ("tab:brown", ":"),
          "saina": ("tab:blue", "-"), "saina-5": ("tab:cyan", "--"), "ramp": ("tab:red", "-"),
          "goodput": ("tab:green", "-"), "clock": ("tab:purple", "--")}
LEAST_ACCURACY = 80  # %, of the axis: a run that diverges leaves it for good


def curves(results, folder, setting="jitter"):
    """Accuracy over virtual time of the first seed, and the k that each rule chose."""
    seed = results.seeds[0]
    figure, axes = paper.figure_of(2, 4, (17, 8), sharex=True)
    for row, architecture in enumerate(experiment.ARCHITECTURES):
        for column, mode in enumerate(experiment.MODES):
            top, bottom = axes[row][2 * column], axes[row][2 * column + 1]
            for scheme, (colour, line) in STYLES.items():
                record = results.record(seed, architecture, setting, scheme, mode)
                if record is None:
                    continue
                accuracies = [100 * value for value in record["accuracies"]]
                top.plot(record["seconds"], accuracies, line, color=colour, label=label(scheme))
                if not scheme.startswith("k="):
                    bottom.plot(record["seconds"], record["ks"], line, color=colour)
            top.set_title(f"{architecture}, {mode}: accuracy")
            top.set_ylabel("test accuracy, %")
            top.set_ylim(LEAST_ACCURACY, 99)
            bottom.set_title(f"{architecture}, {mode}: k")
            bottom.set_ylim(0, 17)
            for axis in (top, bottom):
                axis.set_xlabel("virtual time, s")
                axis.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4)
    figure.suptitle(f"{stragglers.describe(setting)}, seed {seed}; "
                    f"rules that are not on an accuracy axis stayed below {LEAST_ACCURACY} %")
    paper.save(figure, folder, f"curves_{setting}.png", rect=(0, 0.08, 1, 1))


def bars(results, folder):
    """Reduction against k = 16 of every scheme in every setting; bars are medians."""
    schemes = ("k=4", "k=8", "saina", "saina-5", "ramp", "goodput", "clock")
    figure, axes = paper.figure_of(2, 2, (15, 8.5), sharey=True)
    width = 0.8 / len(schemes)
    for row, architecture in enumerate(experiment.ARCHITECTURES):
        for column, mode in enumerate(experiment.MODES):
            axis = axes[row][column]
            for i, scheme in enumerate(schemes):
                samples = [results.reductions(architecture, setting, scheme, mode)
                           for setting in stragglers.SETTINGS]
                middles = [median(sample) or 0 for sample in samples]
                low = [middle - min(sample, default=0)
                       for middle, sample in zip(middles, samples)]
                high = [max(sample, default=0) - middle
                        for middle, sample in zip(middles, samples)]
                places = [place + (i - (len(schemes) - 1) / 2) * width
                          for place in range(len(samples))]
                axis.bar(places, middles, width * 0.95, yerr=(low, high), capsize=1.5,
                         color=STYLES[scheme][0], error_kw={"linewidth": 0.8},
                         label=label(scheme))
            axis.axhline(1, color="black", linewidth=0.8)
            ratio, name = PUBLISHED[architecture]
            axis.axhline(ratio, color="tab:blue", linestyle=":", linewidth=1)
            axis.set_xticks(range(len(stragglers.SETTINGS)),
                            [stragglers.describe(name).replace(", ", ",\n")
                             for name in stragglers.SETTINGS], fontsize=9)
            axis.set_title(f"{architecture}, {mode}; {name}", fontsize=10)
            axis.grid(axis="y", alpha=0.3)
        axes[row][0].set_ylabel("time of k = 16 / time (no bar: never reached)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4)
    paper.save(figure, folder, "reductions.png", rect=(0, 0.08, 1, 1))


def sweep(results, folder):
    """Reduction over the heaviness of the tail, with the published ratios marked."""
    ratios = sorted(experiment.SWEEP_RATIOS + (3,))
    figure, axes = paper.figure_of(2, 2, (12, 8.5), sharex=True)
    for row, architecture in enumerate(experiment.ARCHITECTURES):
        for column, mode in enumerate(experiment.MODES):
            axis = axes[row][column]
            for scheme in ("k=4", "k=8", "saina", "saina-5", "ramp", "goodput"):
                points = []
                for ratio in ratios:
                    sample = results.reductions(architecture, setting_of_ratio(ratio), scheme,
                                                mode)
                    if sample:
                        points.append((ratio, median(sample), min(sample), max(sample)))
                if not points:
                    continue
                colour, line = STYLES[scheme]
                x, middle, low, high = zip(*points)
                axis.plot(x, middle, line, color=colour, marker="o", markersize=4,
                          label=label(scheme))
                axis.fill_between(x, low, high, color=colour, alpha=0.1)
            published, name = PUBLISHED[architecture]
            axis.axhline(published, color="tab:blue", linestyle=":", linewidth=1)
            axis.set_ylim(bottom=-0.2)
            axis.set_xscale("log")
            axis.set_xticks(ratios, [str(ratio) for ratio in ratios])
            axis.minorticks_off()
            axis.set_title(f"{architecture}, {mode}; {name}", fontsize=10)
            axis.set_xlabel("p99/p50 of the lognormal step time")
            axis.set_ylabel("time of k = 16 / time (0: never reached)")
            axis.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=3)
    paper.save(figure, folder, "sweep.png", rect=(0, 0.09, 1, 1))


def all_of(results, folder):
    curves(results, folder, "jitter")
    curves(results, folder, "persistent")
    bars(results, folder)
    sweep(results, folder)
