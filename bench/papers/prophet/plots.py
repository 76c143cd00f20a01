"""The page's pictures, from records alone."""
from papers import paper

from . import settings, tables

MOST = 1.9  # times strict: what is longer is cut off and says so
BARS = ((settings.FIFO, "fifo", "tab:gray"),
        (settings.STOP_AND_WAIT, "stop+wait\n160 kB", "tab:orange"),
        (settings.STOP_AND_WAIT_TENSOR, "stop+wait\ntensors", "tab:olive"),
        (settings.DEFAULT_CREDIT, "credit,\n4/16 MB", "tab:blue"),
        (settings.PROPHET, "prophet", "tab:purple"),
        (settings.STRICT, "strict", "tab:red"))


def _bars(axis, results, setting):
    strict_ms = results.ms(setting, settings.STRICT)
    limit_ms = MOST * strict_ms
    for place, (policy, _label, colour) in enumerate(BARS):
        ms = results.ms(setting, policy)
        axis.bar(place, min(ms, limit_ms), color=colour, width=0.7)
        axis.text(place, min(ms, limit_ms), f"{ms:.0f}", ha="center", va="bottom", fontsize=8)
        predicted = tables.predicted_ms(setting, policy)
        if predicted <= limit_ms:
            axis.plot([place - 0.42, place + 0.42], [predicted] * 2, color="black", linewidth=1)
    for ms, style in ((1e3 * setting.communication_s, "--"), (1e3 * setting.compute_s, ":")):
        axis.axhline(ms, color="tab:green", linestyle=style, linewidth=1)
    axis.set_ylim(0, 1.08 * limit_ms)
    axis.set_xticks(range(len(BARS)), [label for _policy, label, _colour in BARS], fontsize=7)
    bound = ", network-bound" if setting.network_bound else ""
    axis.set_title(f"{setting.rate_gbps:g} Gb/s, {setting.latency_ms:g} ms{bound}", fontsize=10)


def model(results, folder, name):
    """One picture a model: a column a rate, a row a latency."""
    figure, axes = paper.figure_of(len(settings.LATENCIES_MS), len(settings.RATES_GBPS), (15, 7.5))
    for setting in settings.SETTINGS:
        if setting.model != name:
            continue
        row = settings.LATENCIES_MS.index(setting.latency_ms)
        column = settings.RATES_GBPS.index(setting.rate_gbps)
        _bars(axes[row][column], results, setting)
        if column == 0:
            axes[row][column].set_ylabel("ms per iteration")
    figure.suptitle(f"{name}: ms per iteration, bars over {MOST:g} x strict cut off; black: fluid "
                    "model; green dashed: bytes / rate, dotted: compute")
    paper.save(figure, folder, f"{name}.png", rect=(0, 0, 1, 0.97))


def all_of(results, folder):
    for name in settings.MODELS:
        model(results, folder, name)
