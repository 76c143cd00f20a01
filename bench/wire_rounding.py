"""The rounding of results, `wire --rounding`: one process, no lab, production's rules in NumPy.

Four ranks train the network of the wire bench; what they send is rounded to nearest, and a rank
keeps what that loses. The mean of it is rounded once more on its way back: unbiased (what the
appliance does), to nearest with a residual of its own (a float an element there), or to nearest and
no more. Counted: the sum of the results over all steps less the sum of the means that they stand
for, over the latter (norms); then loss and accuracy as in the wire bench, behind results that are
not rounded. The mean over the seeds, and +- the standard deviation.
"""
import statistics

import report

RANKS, BATCH, TRAINED, CHUNK_ELEMS = 4, 32, 1200, 1340
RESULTS = ("unbiased", "residual", "nearest")
# Of floats: bits of the mantissa, and the exponent of the smallest normal number.
FLOATS = {"bfloat16": (7, -126), "float16": (10, -14)}


def units_of(numpy, values, wire):
    """The distance of the format's numbers at each value."""
    if wire in FLOATS:
        bits, least = FLOATS[wire]
        _, exponents = numpy.frexp(values)
        return numpy.ldexp(1.0, numpy.maximum(exponents - 1, least) - bits)
    # The smallest power of two that brings all of a chunk to at most 127.
    units = numpy.ones_like(values)
    for at in range(0, len(values), CHUNK_ELEMS):
        most = max(float(numpy.abs(values[at:at + CHUNK_ELEMS]).max()), 1e-30)
        units[at:at + CHUNK_ELEMS] = 2.0 ** numpy.ceil(numpy.log2(most / 127))
    return units


def rounded(numpy, values, wire, dice=0.5):
    units = units_of(numpy, values, wire)
    return numpy.floor(values / units + dice) * units


class Sums:
    """What a box makes of the gradients of all ranks, step by step."""

    def __init__(self, numpy, wire, way, seed, count):
        self.numpy, self.wire, self.way = numpy, wire, way
        self.dice = numpy.random.default_rng(seed)
        self.left = numpy.zeros((RANKS, count))  # of what each rank has sent
        self.residual, self.exact, self.given = numpy.zeros((3, count))

    def add(self, gradients):
        if self.way is None:
            return gradients.mean(0)
        values = gradients + self.left
        sent = self.numpy.stack([rounded(self.numpy, one, self.wire) for one in values])
        self.left = values - sent
        mean = sent.mean(0)
        value = mean + self.residual
        dice = self.dice.random(len(mean)) if self.way == "unbiased" else 0.5
        result = rounded(self.numpy, value, self.wire, dice)
        if self.way == "residual":
            self.residual = value - result
        self.exact += mean
        self.given += result
        return result

    def error(self):
        norm = self.numpy.linalg.norm
        return float(norm(self.given - self.exact) / norm(self.exact)) if self.way else 0.0


def train(torch, numpy, data, wire, way, seed, steps):
    """(error of the results, loss, accuracy in %)."""
    images, labels = data
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    trained, held = order[:TRAINED], order[TRAINED:]
    net = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loss_of = torch.nn.functional.cross_entropy
    sums = Sums(numpy, wire, way, seed, sum(p.numel() for p in net.parameters()))
    for _step in range(steps):
        gradients = []
        for batch in trained[torch.randint(TRAINED, (RANKS, BATCH))]:
            optimizer.zero_grad()
            loss_of(net(images[batch]), labels[batch]).backward()
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]).numpy())
        mean = torch.from_numpy(sums.add(numpy.stack(gradients).astype(float))).float()
        torch.nn.utils.vector_to_parameters(mean, [p.grad for p in net.parameters()])
        optimizer.step()
    with torch.no_grad():
        loss = float(loss_of(net(images[trained]), labels[trained]))
        right = (net(images[held]).argmax(1) == labels[held]).float().mean()
    return sums.error(), loss, 100 * float(right)


def spread(values, digits):
    return f"{statistics.mean(values):.{digits}f} +- {statistics.stdev(values):.{digits}f}"


def run(options):
    import numpy
    import torch
    from sklearn.datasets import load_digits
    torch.set_num_threads(1)
    found = load_digits()
    data = torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target)
    rows, figures, exact = [], {}, None
    for wire, way in [("float32", None)] + [(w, way) for w in ("bfloat16", "float16", "int8")
                                            for way in RESULTS]:
        ends = [train(torch, numpy, data, wire, way, seed, options.steps)
                for seed in range(options.seeds)]
        exact = exact or ends
        errors, losses, right = zip(*ends)
        behind = [wide[2] - one for wide, one in zip(exact, right)]
        rows.append([wire, way or "", spread([1e4 * error for error in errors], 2),
                     spread(losses, 5), spread(right, 2), spread(behind, 2)])
        if way in ("unbiased", "residual"):
            figures[f"{wire}_{way}_error"] = statistics.mean(errors)
    report.table(["wire", "result", "error, 1e-4", "loss", "accuracy, %", "behind, points"], rows)
    report.result("wire_rounding", **figures)
