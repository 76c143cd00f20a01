"""The page's picture, from records alone."""
from papers import paper

from . import settings, tables

MOST = 1.6  # times strict: what is longer is cut off, and its number stands there
COLOURS = ("tab:gray", "tab:orange", "tab:olive", "tab:blue", "tab:purple")


def _bars(axis, results, of_panel):
    width = 0.85 / len(COLOURS)
    for place, setting in enumerate(of_panel):
        for number, (policy, colour) in enumerate(zip(tables.POLICIES, COLOURS)):
            ratio = results.against_strict(setting, policy)
            at = place + (number - (len(COLOURS) - 1) / 2) * width
            axis.bar(at, min(ratio, MOST) - 1, bottom=1, color=colour, width=width,
                     label=tables.NAMES[number] if place == 0 else None)
            if ratio > MOST:
                axis.text(at, MOST, f"{ratio:.1f}", ha="center", va="bottom", fontsize=7)
    axis.axhline(1, color="tab:red", linewidth=1)
    axis.set_ylim(0.98, MOST + 0.06)
    axis.set_xticks(range(len(of_panel)),
                    [setting.model + ("*" if setting.network_bound else "")
                     for setting in of_panel], fontsize=8)


def schedules(results, folder):
    """A column a rate, a row a latency: time over strict's by model."""
    figure, axes = paper.figure_of(len(settings.LATENCIES_MS), len(settings.RATES_GBPS), (16, 7),
                                   sharey=True)
    for row, latency_ms in zip(axes, settings.LATENCIES_MS):
        for axis, rate_gbps in zip(row, settings.RATES_GBPS):
            _bars(axis, results, [settings.Setting(model, rate_gbps, latency_ms)
                                  for model in settings.MODELS])
            axis.set_title(f"{rate_gbps:g} Gb/s, {latency_ms:g} ms", fontsize=10)
        row[0].set_ylabel("time over strict's")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center",
                  ncol=len(COLOURS), fontsize=9)
    figure.suptitle("Iteration time over that of per-packet strict priority; *: network-bound")
    paper.save(figure, folder, "schedules.png", rect=(0, 0.04, 1, 0.98))
