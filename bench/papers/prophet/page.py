"""Writes the generated part of the page: tables between two marks in README.md, and the plot."""
from papers import paper

from . import plots, tables


def text(results):
    parts = ["## Results\n",
             "**3 Gb/s, 1 ms**: ms per iteration, GPU / network utilisation in percent.\n",
             tables.time_table(results), "![schedules](schedules.png)\n",
             "**Assumptions changed**, ResNet-50, 3 Gb/s, 1 ms: time over strict's.\n",
             tables.variant_table(results),
             "**The rate changes**, Gb/s: iterations until Prophet's time stays within 0.1 % of "
             "its last; the longest over strict's.\n",
             tables.change_table(results)]
    lab = tables.lab_table(results)
    if lab:
        parts += ["**Real ranks**, ResNet-50: median over strict's; packets waiting at most.\n",
                  lab]
    return "\n".join(parts)


def write(results, folder):
    paper.replace_generated(folder, text(results))
    plots.schedules(results, folder)
