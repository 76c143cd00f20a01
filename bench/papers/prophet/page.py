"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import paper

from . import plots, settings, simulation, tables


def text(results):
    parts = ["## Results\n", "### The published figures\n",
             "ResNet-50 at 3 Gb/s with 1 ms completion latency.\n",
             tables.published_table(results)]
    for model in settings.MODELS:
        forward_s, backward_s = settings.compute_s(model)
        parts += [f"### {model}, batch {settings.BATCHES[model]}: forward {1e3 * forward_s:.0f} ms,"
                  f" backward {1e3 * backward_s:.0f} ms\n",
                  "ms per iteration, in brackets the fluid model's; bold: network-bound.\n",
                  tables.time_table(results, model), f"![{model}]({model}.png)\n"]
    parts += ["### Ratios\n", "Time over strict's; the last three columns: over prophet's.\n",
              tables.ratio_table(results),
              "### Gradients ready layer by layer, not in ten steps\n",
              "ms per iteration, in brackets over strict's.\n",
              tables.variant_table(results, (simulation.LAYERS,)),
              "### Four workers whose compute varies\n",
              "Each worker's compute in each iteration is drawn anew, evenly from 1 +- 5 % or "
              "20 %; the same draws for every policy; mean of 48 iterations, in brackets over "
              "strict's.\n",
              tables.variant_table(results, simulation.JITTERS),
              "### The whole session\n",
              tables.session_table(results, simulation.SESSION_SETTINGS,
                                   simulation.SESSION_POLICIES)]
    lab = tables.lab_table(results)
    if lab:
        parts += ["### Real ranks over shaped links\n", lab]
    plan = results.entry(settings.Setting("resnet50", 3, 1.0), settings.PROPHET)
    parts += ["### Prophet's plan\n", "`describe_plan()` after the run at 3 Gb/s and 1 ms:\n",
              "```\n" + plan["plan"].rstrip() + "\n```\n"]
    return "\n".join(parts)


def write(results, folder):
    paper.replace_generated(folder, text(results))
    plots.all_of(results, folder)
