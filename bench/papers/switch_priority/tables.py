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
    "fifo": "fifo, no schedule", "worker": "worker priority", "layer": "layer priority",
    "layer_no_barrier": "layer priority, no barrier", "fifo_no_barrier": "no barrier, one class",
    "multicast_pull": "multicast pull", "aggregation_stored": "aggregation, stored",
    "aggregation": "aggregation, streamed"}
REORDERING = tuple(name for name, policy in POLICIES.items() if policy.reorders_only)
AGGREGATION_GOAL = 2.7


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

    def best_reordering(self, model):
        """(policy, ratio) of the best policy that only reorders, on the median; or None."""
        medians = [(statistics.median(ratios), policy) for policy in REORDERING
                   if (ratios := self.ratios(model, policy))]
        if not medians:
            return None
        ratio, policy = max(medians)
        return policy, ratio


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


def goal_rows(results):
    rows = []
    for model in models.MODELS:
        best = results.best_reordering(model)
        if best is None:
            continue
        policy, ratio = best
        goal = models.goal(model)
        rows.append([model, f"{100 * models.PUBLISHED[model].gain:.1f} %",
                     f"{100 * models.bound(model):.1f} %", f"{100 * goal:.1f} %",
                     f"{100 * (ratio - 1):.1f} %", LABELS[policy],
                     "yes" if ratio - 1 >= goal else "**no**"])
    return rows


GOAL_HEADERS = ["model", "published gain", "bound", "goal", "ours", "by", "met"]


def aggregation_rows(results):
    rows = []
    for model in models.MODELS:
        ratios = results.ratios(model, "aggregation")
        if ratios:
            rows.append([model, cell(results.ratios(model, "aggregation_stored")),
                         number(predicted_ratio(model, "aggregation_stored")), cell(ratios),
                         number(predicted_ratio(model, "aggregation")), AGGREGATION_GOAL,
                         "yes" if statistics.median(ratios) >= AGGREGATION_GOAL else "**no**"])
    return rows


AGGREGATION_HEADERS = ["model", "stored", "theory", "streamed", "theory", "goal", "met"]


def queue_rows(results, model):
    """Where the bytes stood: mean of the repetitions' means, and the most that was seen."""
    rows = []
    for policy in experiment.NAMES:
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


def parameter_rows():
    rows = []
    for model in models.MODELS + (models.COMPUTE_BOUND,):
        loaded = models.load(model, 1)
        rows.append([model, f"{loaded.bytes / 1e6:.1f}", f"{loaded.transfer_s:.3f}",
                     f"{loaded.compute_s:.3f}", len(loaded.layers),
                     f"{max(layer.bytes for layer in loaded.layers) / loaded.bytes * 100:.0f} %"])
    return rows


PARAMETER_HEADERS = ["model", "bytes, 10^6", "M, s", "c, s", "layers", "largest layer"]


def figures(results):
    """Of the RESULT line: throughput against fifo; None where nothing was measured."""
    values = {}
    for model in models.MODELS:
        best = results.best_reordering(model)
        values[model] = best and best[1]
    ratios = [results.ratios(model, "aggregation") for model in models.MODELS]
    values["aggregation_min"] = (min(statistics.median(each) for each in ratios)
                                 if all(ratios) else None)
    return values
