"""Writes the generated part of the page: tables between two marks in README.md, and the plots."""
from papers import paper

from . import models, plots, tables


def text(results):
    parts = ["## Results\n",
             f"Median [least .. largest] of {len(results.repetitions)} repetitions.\n",
             "### Goals\n", paper.markdown(tables.GOAL_HEADERS, tables.goal_rows(results)),
             paper.markdown(tables.AGGREGATION_HEADERS, tables.aggregation_rows(results)),
             "![throughput against fifo](gains.png)\n", "![one step](timeline.png)\n",
             "### What each model transfers and computes\n",
             paper.markdown(tables.PARAMETER_HEADERS, tables.parameter_rows())]
    for model in results.models:
        note = ", the compute-bound case" if model == models.COMPUTE_BOUND else ""
        parts += [f"### {model}{note}\n",
                  paper.markdown(tables.MODEL_HEADERS, tables.model_rows(results, model))]
    parts += ["### Where the queues stood, resnet50\n",
              "Mean of samples every half second (and the most that was seen).\n",
              paper.markdown(tables.QUEUE_HEADERS, tables.queue_rows(results, "resnet50"))]
    return "\n".join(parts)


def write(results, folder):
    paper.replace_generated(folder, text(results))
    plots.all_of(results, folder)
