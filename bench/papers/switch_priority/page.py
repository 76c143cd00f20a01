"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import paper

from . import plots, tables


QUEUES_OF = "resnet50"
QUEUES_UNDER = ("fifo", "worker", "worker_rules")


def text(results):
    return "\n".join([
        "## Results\n",
        paper.markdown(tables.THROUGHPUT_HEADERS, tables.throughput_rows(results)),
        f"Throughput against `fifo`: ours, the lab's theory; medians of {len(results.repetitions)} "
        f"repetitions, which differ by {100 * tables.largest_spread(results):.1f} % at most.\n",
        paper.markdown(["", *results.models], tables.ratio_rows(results)),
        "![throughput against fifo](gains.png)\n", "![one step](timeline.png)\n",
        f"Bytes that stood in queues, {QUEUES_OF}: mean of samples every half second (and most).\n",
        paper.markdown(tables.QUEUE_HEADERS, tables.queue_rows(results, QUEUES_OF, QUEUES_UNDER))])


def write(results, folder):
    paper.replace_generated(folder, text(results))
    plots.all_of(results, folder)
