"""From records to the tables of the page and the figures of the RESULT line.

A run's step is the mean of its measured steps. A cell is the median over repetitions, with the
range from least to largest; a ratio is taken inside one repetition, fifo's step over the policy's.
"""
import functools
import statistics

from papers.paper import cell, number

from . import experiment, fluid, models, replay
from .programs import POLICIES

LABELS = {
    "fifo": "fifo, no schedule", "worker": "worker priority",
    "worker_rules": "worker priority by rules", "layer": "layer priority",
    "layer_no_barrier": "layer priority, no barrier", "fifo_no_barrier": "no barrier, one class",
    "multicast_pull": "multicast pull", "aggregation_stored": "aggregation, stored",
    "aggregation": "aggregation, streamed"}


@functools.lru_cache(maxsize=None)
def predicted_s(model_name, policy_name, of_lab=False):
    """A step by the fluid model. `of_lab`: with headers and the least urgent class's share."""
    model = models.load(model_name, 1)
    if policy_name in experiment.AGGREGATIONS:
        headers = models.RESULT_HEADERS if of_lab else 1.0
        return fluid.aggregation_s(model, experiment.AGGREGATIONS[policy_name], headers)
    policy = POLICIES[policy_name]
    lab = (models.TCP_HEADERS, models.LEAST_URGENT_SHARE) if of_lab else ()
    return fluid.Fluid(model, policy, replay.band_count(policy), *lab).step_s()


def predicted_ratio(model_name, policy_name, of_lab=False):
    return (predicted_s(model_name, "fifo", of_lab)
            / predicted_s(model_name, policy_name, of_lab))


def published_imgs(model_name, policy_name):
    """The publication does not name its rule; worker priority explains its figures."""
    published = models.PUBLISHED.get(model_name)
    if published is None:
        return None
    return {"fifo": published.fifo, "worker": published.scheduled}.get(policy_name)


class Results:
    """Records by question."""

    def __init__(self, records):
        self.records = records
        self.repetitions = sorted({int(key.split("/")[2]) for key in records})
        self.models = [name for name in models.MODELS + (models.COMPUTE_BOUND,)
                       if any(key.startswith(name + "/") for key in records)]

    def each(self, model, policy):
        for repetition in self.repetitions:
            record = self.records.get(experiment.key(model, policy, repetition))
            if record:
                yield repetition, record

    def steps(self, model, policy):
        """Seconds of a step, one value a repetition."""
        return [statistics.mean(record["step_s"]) for _, record in self.each(model, policy)]

    def imgs(self, model, policy):
        return [models.WORKERS / step_s for step_s in self.steps(model, policy)]

    def ratios(self, model, policy):
        """Throughput against fifo in the same repetition."""
        fifo = dict(self.each(model, "fifo"))
        return [statistics.mean(fifo[repetition]["step_s"]) / statistics.mean(record["step_s"])
                for repetition, record in self.each(model, policy) if repetition in fifo]


MODEL_HEADERS = ["policy", "imgs/s published", "ours", "theory", "of the lab",
                 "against fifo: published", "ours", "theory", "of the lab", "busy %", "own %",
                 "resent"]


def model_rows(results, model):
    """One row a policy: published, ours, prediction."""
    images = models.COMPUTE_BOUND_BATCH if model == models.COMPUTE_BOUND else 1
    rows = []
    for policy in experiment.NAMES:
        records = [record for _, record in results.each(model, policy)]
        if not records:
            continue
        published = published_imgs(model, policy)
        published_ratio = published and published / models.PUBLISHED[model].fifo
        rows.append([
            LABELS[policy], number(published, 3),
            cell([images * value for value in results.imgs(model, policy)], 3),
            number(images * models.WORKERS / predicted_s(model, policy), 3),
            number(images * models.WORKERS / predicted_s(model, policy, True), 3),
            number(published_ratio), cell(results.ratios(model, policy)),
            number(predicted_ratio(model, policy)), number(predicted_ratio(model, policy, True)),
            f"{statistics.median(record['busy'] for record in records):.0f}",
            f"{statistics.median(record['own_busy'] for record in records):.0f}",
            sum(record["retransmits"] for record in records)])
    return rows


def ratio_rows(results):
    """Published, inferred, and a row a policy: ours beside the lab's theory, by model."""
    rows = [["published"] + [f"{1 + models.PUBLISHED[model].gain:.2f}"
                             if model in models.PUBLISHED else "-" for model in results.models],
            ["inferred: one worker first"] + [f"{1 + models.bound(model):.2f}"
                                              for model in results.models]]
    for policy in experiment.NAMES[1:]:
        cells = [f"{statistics.median(ratios):.2f}, {predicted_ratio(model, policy, True):.2f}"
                 if (ratios := results.ratios(model, policy)) else "-" for model in results.models]
        if any(text != "-" for text in cells):
            rows.append([LABELS[policy], *cells])
    return rows


def largest_spread(results):
    """Of a ratio over its repetitions, for one of its median."""
    return max((max(ratios) - min(ratios)) / statistics.median(ratios)
               for model in results.models for policy in experiment.NAMES
               if (ratios := results.ratios(model, policy)))


def throughput_rows(results):
    """imgs/s of the two rows that are published, and what is inferred of a model."""
    return [[model, f"{models.load(model, 1).bytes / 1e6:.1f}", f"{models.transfer_s(model):.3f}",
             f"{models.compute_s(model):.3f}", published.fifo, published.scheduled,
             *(number(statistics.median(images), 3) if images else "-" for images in (
                 results.imgs(model, "fifo"), results.imgs(model, "worker")))]
            for model, published in models.PUBLISHED.items()]


THROUGHPUT_HEADERS = ["model", "MB", "M, s", "c, s", "published: none", "scheduled", "ours: fifo",
                      "worker"]


def queue_rows(results, model, policies):
    """Where the bytes stood: mean of the repetitions' means, and the most that was seen."""
    rows = []
    for policy in policies:
        places = {}
        for _, record in results.each(model, policy):
            for place, (mean, most) in record["queues"].items():
                places.setdefault(place, []).append((mean, most))
        if not places:
            continue
        hosts = [value for place, values in places.items() if "." not in place for value in values]
        rows.append([LABELS[policy]] + [_queue_cell(places.get(place, []))
                                        for place in ("sw0.trunk", "sw1.trunk")]
                    + [_queue_cell(hosts)])
    return rows


def _queue_cell(values):
    if not values:
        return "0"
    means, most = zip(*values)
    return f"{statistics.mean(means) / 1e3:.0f} ({max(most) / 1e3:.0f})"


QUEUE_HEADERS = ["policy", "sw0 towards sw1, kB", "sw1 towards sw0, kB", "a host's own, kB"]


def figures(results):
    """Of the RESULT line: throughput against fifo; None where nothing was measured."""
    def median(model, policy):
        ratios = results.ratios(model, policy)
        return statistics.median(ratios) if ratios else None

    def least(policy):
        medians = [median(model, policy) for model in models.MODELS]
        return None if None in medians else min(medians)
    return {**{model.removesuffix("_v1"): median(model, "worker") for model in models.MODELS},
            "rules_min": least("worker_rules"), "aggregation_min": least("aggregation")}
