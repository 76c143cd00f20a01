"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import paper

from . import plots, tables, tuned_tables


def text(results, tuned):
    return "\n".join([
        "Seconds to the target by threshold:\n", tables.threshold_table(results),
        "Final accuracy in %, reduction of time:\n", tables.scheme_table(results),
        "Reductions of k = 8 and SAINA by batch:\n", tables.batch_table(results),
        "![accuracy over time](curves.png)\n",
        "SAINA by steps of a round (reduction, last k, best s_th); last, 1,024 images:\n",
        tables.round_table(results), "![time by s_th](sweep.png)\n",
        "Label-skewed shards, two workers at a third: points of k = 1, 8, SAINA below "
        f"k = 16: {tables.skew_text(results)}.\n",
        "At good rates, sync's time over:\n", tuned_tables.saina_table(tuned),
        f"Goals: {tuned_tables.goal_text(tuned)}.\n", "![goodput over sync](tuned.png)\n"])


def details(records):
    """What the bench prints and the page has no room for."""
    return tuned_tables.text(tuned_tables.Tuned(records))


def write(records, folder):
    results, tuned = tables.Results(records), tuned_tables.Tuned(records)
    paper.replace_generated(folder, text(results, tuned))
    plots.all_of(results, folder)
    tuned_tables.plot(tuned, folder)
