"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import paper

from . import experiment, plots, stragglers, tables, tuned_tables


def _seed_counts(results):
    """How many seeds each part of the page has, since a long run may have been cut short."""
    def count(architecture, setting, scheme, mode):
        return len(list(results.each(architecture, setting, scheme, mode)))
    parts = {stragglers.describe(setting): (setting, "ramp", "requeue")
             for setting in list(stragglers.SETTINGS) +
             [tables.setting_of_ratio(ratio) for ratio in experiment.SWEEP_RATIOS]}
    parts["s_th and c_th"] = ("jitter", "saina s=300", "drop")
    parts["rules from k = 4, 1 + Exp(0.5)"] = ("jitter", "saina-5 from=4", "requeue")
    rows = [[name] + [str(count(architecture, *which)) for architecture in experiment.ARCHITECTURES]
            for name, which in parts.items()]
    return paper.markdown(["seeds of", *experiment.ARCHITECTURES], rows)


def text(results):
    parts = ["## One timid rate for all\n",
             "Every scheme at the learning rate 0.1, the sum divided by k. Median [least .. "
             "largest] of the seeds that ran:\n", _seed_counts(results),
             "### Goals of then\n", tables.goal_table(results),
             "### Time to accuracy over s_th (c_th = 5), setting 1 + Exp(0.5)\n",
             tables.sign_table(results),
             "### Time to accuracy over c_th (s_th = 50 %), setting 1 + Exp(0.5)\n",
             tables.count_table(results)]
    for setting in stragglers.SETTINGS:
        for architecture in experiment.ARCHITECTURES:
            parts += [f"### Schemes, {stragglers.describe(setting)}, {architecture}\n",
                      tables.scheme_table(results, architecture, setting)]
        if setting in ("jitter", "persistent"):
            parts.append(f"![accuracy and k over time](curves_{setting}.png)\n")
    parts += ["### Reduction in every setting\n", "![reductions](reductions.png)\n",
              "### The best fixed k of {1, 4, 8, 12, 16}, and the rules against it\n",
              "Above 1: sooner than the best fixed k, which nobody knows beforehand.\n",
              tables.best_fixed_table(results),
              "### Lognormal step times, p99/p50 from 1.5 to 10\n", tables.sweep_table(results),
              tables.published_ratio_lines(results), "![sweep](sweep.png)\n",
              "### The tuning task, digits, setting 1 + Exp(0.5)\n",
              tables.digits_table(results),
              "### Other learning rates, setting 1 + Exp(0.5)\n",
              "Reductions are against k = 16 at the learning rate of all other runs, 0.1.\n",
              "digits:\n", tables.rate_table(results, "digits"),
              "generated:\n", tables.rate_table(results, "generated")]
    return "\n".join(parts)


def write(records, folder, task="generated"):
    results, tuned = tables.Results(records, task), tuned_tables.Tuned(records)
    paper.replace_generated(folder, tuned_tables.text(tuned) + "\n" + text(results))
    plots.all_of(results, folder)
    tuned_tables.plot(tuned, folder)
