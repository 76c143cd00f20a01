"""One run: real gradients of every worker, thresholds and bytes from group.cc, virtual time."""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

from papers.saina import tasks

from . import settings
from .group import Group

SMOOTHED_EVALUATIONS = 3


def initial(seed):
    """He initialisation: (weights, biases) of each layer."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(outputs, inputs, generator=generator) * math.sqrt(2 / inputs),
             torch.zeros(outputs))
            for inputs, outputs in zip(settings.LAYERS, settings.LAYERS[1:])]


def logits(layers, images):
    """images [batch, workers, pixels]; each worker has parameters of its own. A layer of all is one
    grouped convolution, which is many times as fast here as products of matrices."""
    batch, workers, _pixels = images.shape
    x = images.reshape(batch, -1, 1, 1)
    for number, (weight, bias) in enumerate(layers):
        x = F.conv2d(F.elu(x) if number else x, weight.flatten(0, 1)[:, :, None, None],
                     bias.flatten(), groups=workers)
    return x.reshape(batch, workers, -1)


def copies(layers, workers):
    return [tuple(part.expand(workers, *part.shape) for part in layer) for layer in layers]


def gradients(layers, images, labels):
    """Of each worker's mean loss, a flat row each."""
    leaves = [tuple(part.detach().requires_grad_(True) for part in layer)
              for layer in copies(layers, images.shape[1])]
    out = logits(leaves, images)
    total = F.cross_entropy(out.flatten(0, 1), labels.flatten(), reduction="sum")
    found = torch.autograd.grad(total / len(images), [part for leaf in leaves for part in leaf])
    return torch.cat([part.flatten(1) for part in found], dim=1).numpy()


def updated(layers, mean, rate_now):
    return [tuple(part - rate_now * step for part, step in zip(*pair))
            for pair in zip(layers, shaped(mean))]


def rate(step):
    """Of SGD, for a step counted from 1."""
    return settings.RATE * min(1.0, step / settings.WARM_UP_STEPS)


def shaped(row):
    """Parameters as layers, from one flat row."""
    parts = iter(torch.from_numpy(row).split([count for count, _dense in settings.tensors()]))
    return [(next(parts).reshape(outputs, inputs), next(parts))
            for inputs, outputs in zip(settings.LAYERS, settings.LAYERS[1:])]


@torch.no_grad()
def accuracy(layers, images, labels):
    out = logits(copies(layers, 1), images.flatten(1).unsqueeze(1))[:, 0]
    return float((out.argmax(dim=1) == labels).float().mean())


def accuracy_of(row, task):
    return accuracy(shaped(row), task.test_images[:settings.TEST_IMAGES],
                    task.test_labels[:settings.TEST_IMAGES])


def smoothed(values):
    """Mean of each evaluation and the two before it, as far as they exist."""
    return [float(np.mean(values[max(0, i - SMOOTHED_EVALUATIONS + 1):i + 1]))
            for i in range(len(values))]


def train(rule, seed, steps=settings.STEPS, name=settings.TASK):
    """A record: accuracy and what was sent, each EVALUATE_STEPS; CPU time of one worker's step."""
    torch.set_num_threads(1)
    task = tasks.load(name, seed)
    shards = tasks.Shards(task, settings.WORKERS, settings.BATCH, False, seed)
    layers = initial(seed)
    group = Group(settings.WORKERS, settings.tensors(), rule)
    test = task.test_images[:settings.TEST_IMAGES], task.test_labels[:settings.TEST_IMAGES]
    record = {"key": f"{name}/{seed}/{rule.key}", "steps": [], "accuracies": [], "densities": [],
              "up_bytes": [], "down_bytes": []}
    compute_ns, threshold_ns, pack_ns = [], [], []
    up = down = left = 0
    for step in range(1, steps + 1):
        batch = torch.from_numpy(np.stack([shards.next_batch(rank)
                                           for rank in range(settings.WORKERS)], axis=1))
        began = time.thread_time_ns()
        rows = gradients(layers, task.train_images[batch].flatten(2), task.train_labels[batch])
        compute_ns.append((time.thread_time_ns() - began) / settings.WORKERS)
        mean, done = group.step(rows)
        layers = updated(layers, mean, rate(step))
        threshold_ns.append(done.threshold_ns / settings.WORKERS)
        pack_ns.append(done.pack_ns / settings.WORKERS)
        up, down, left = up + done.up_bytes, down + done.down_bytes, left + done.left
        if step % settings.EVALUATE_STEPS == 0:
            record["steps"].append(step)
            record["accuracies"].append(round(accuracy(layers, *test), 4))
            record["up_bytes"].append(round(up / settings.WORKERS))
            record["down_bytes"].append(down)
            shares = settings.EVALUATE_STEPS * settings.WORKERS * group.pruned_elems
            record["densities"].append(1.0 if not shares else float(f"{left / shares:.4g}"))
            left = 0
    group.close()
    for name, values in (("compute_ns", compute_ns), ("threshold_ns", threshold_ns),
                         ("pack_ns", pack_ns)):
        record[name] = round(float(np.median(values)))
    return record


def seconds(record, link, scale=settings.STANDS_FOR_PARAMETERS / settings.PARAMETERS):
    """Virtual time at each evaluation. `scale`: how often the measured thresholds are to be taken,
    for those of the network that this one stands for."""
    out, now, last = [], 0.0, (0, 0, 0)
    threshold_s = record["threshold_ns"] * 1e-9 * scale
    for step, up, down in zip(record["steps"], record["up_bytes"], record["down_bytes"]):
        count = step - last[0]
        now += count * settings.step_s((up - last[1]) / count, (down - last[2]) / count,
                                       threshold_s, link)
        last = step, up, down
        out.append(now)
    return out


def time_to(times, accuracies, target):
    """When the smoothed accuracy first is at the target; None if never."""
    values = smoothed(accuracies)
    for i, value in enumerate(values):
        if value >= target:
            if i == 0 or value == values[i - 1]:
                return times[i]
            part = (target - values[i - 1]) / (value - values[i - 1])
            return times[i - 1] + part * (times[i] - times[i - 1])
    return None
