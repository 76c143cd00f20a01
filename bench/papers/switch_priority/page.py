"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import generated

from . import models, plots, tables


def text(results):
    parts = ["## Results\n",
             f"Median [least .. largest] of {len(results.repetitions)} repetitions.\n",
             "### Goals\n", tables.markdown(tables.GOAL_HEADERS, tables.goal_rows(results)),
             tables.markdown(tables.AGGREGATION_HEADERS, tables.aggregation_rows(results)),
             "![throughput against fifo](gains.png)\n", "![one step](timeline.png)\n",
             "### What each model transfers and computes\n",
             tables.markdown(tables.PARAMETER_HEADERS, tables.parameter_rows())]
    for model in results.models:
        note = ", the compute-bound case" if model == models.COMPUTE_BOUND else ""
        parts += [f"### {model}{note}\n",
                  tables.markdown(tables.MODEL_HEADERS, tables.model_rows(results, model))]
    parts += ["### Where the queues stood, resnet50\n",
              "Mean of samples every half second (and the most that was seen).\n",
              tables.markdown(tables.QUEUE_HEADERS, tables.queue_rows(results, "resnet50"))]
    return "\n".join(parts)


def write(results, folder):
    generated.replace(folder, text(results))
    plots.all_of(results, folder)
