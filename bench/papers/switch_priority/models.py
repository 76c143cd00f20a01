"""The published figures, our inference from them, and the models as layers to transfer. Pure.

The inference: imgs/s = 3 / T with T = 3M + c + 3M. Three workers, one image each; M is the seconds
that a model takes on the shared link, from the traces. c is what the published step without a
schedule has beyond its six transfers: a remainder, whatever it is made of.
"""
from dataclasses import dataclass

from ..traces import traces

WORKERS = 3
LINK_BPS = 1e9    # of the shared link and of each worker's, before scaling
SERVER_BPS = 1e10  # of the parameter server's
# Bytes on the wire, with preamble, checksum and gap, for a byte of payload: a full TCP segment with
# timestamps, and a result of 1,344 bytes of gradient, the larger of our packets.
TCP_HEADERS = 1538 / 1448
RESULT_HEADERS = 1502 / 1344
LEAST_URGENT_SHARE = 1 / 32  # what sluiced guarantees to the least urgent class that waits


@dataclass(frozen=True)
class Published:
    """One row of the publication, imgs/s."""

    fifo: float
    scheduled: float

    @property
    def gain(self):
        return self.scheduled / self.fifo - 1


PUBLISHED = {
    "alexnet": Published(0.24, 0.34),
    "googlenet": Published(2.136, 2.798),
    "inception_v3": Published(0.628, 0.788),
    "mobilenet_v1": Published(2.316, 2.346),  # its author withdrew this row
    "resnet50": Published(0.594, 0.77),
}
MODELS = tuple(PUBLISHED)
# A control, of which nothing is published: 64 images a step and worker, at the speed that
# GoogLeNet's c implies.
COMPUTE_BOUND = "squeezenet1_0"
COMPUTE_BOUND_BATCH = 64


@dataclass(frozen=True)
class Layer:
    """What is computed and transferred as one: a weight and the biases and norms that follow it."""

    name: str
    bytes: int        # on the wire, scaled, without headers
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Model:
    name: str
    layers: tuple       # of Layer, in forward order
    transfer_s: float   # M: seconds on an unscaled 1 Gb/s link, without headers
    compute_s: float    # c

    @property
    def bytes(self):
        return sum(layer.bytes for layer in self.layers)


def transfer_s(name):
    return traces.total_bytes(traces.load(name)) * 8 / LINK_BPS


def compute_s(name):
    """c of one worker and step: what the published step has beyond its six transfers."""
    if name in PUBLISHED:
        return WORKERS / PUBLISHED[name].fifo - 2 * WORKERS * transfer_s(name)
    macs = {model: sum(tensor.fwd_macs for tensor in traces.load(model))
            for model in (name, "googlenet")}
    return COMPUTE_BOUND_BATCH * compute_s("googlenet") * macs[name] / macs["googlenet"]


def load(name, scale):
    """The model with its bytes divided by `scale` and its compute as it is."""
    tensors = traces.load(name)
    forward, backward = traces.compute_times(tensors, compute_s(name))
    groups = []
    for index, tensor in enumerate(tensors):
        if tensor.fwd_macs > 0 or not groups:
            groups.append([])
        groups[-1].append(index)
    layers = tuple(
        Layer(tensors[group[0]].name,
              max(1, round(sum(tensors[index].bytes for index in group) / scale)),
              sum(forward[index] for index in group), sum(backward[index] for index in group))
        for group in groups)
    return Model(name, layers, transfer_s(name), compute_s(name))


def bands(layers, count):
    """The band of each layer, 0 the most urgent: forward order cut into parts of equal bytes."""
    total, before, result = sum(layer.bytes for layer in layers), 0, []
    for layer in layers:
        result.append(int(count * (before + layer.bytes / 2) / total))
        before += layer.bytes
    return result


def bound(name):
    """Most that serving one worker after the other can gain: (6M + c) / (4M + c) - 1."""
    m, c = transfer_s(name), compute_s(name)
    return (6 * m + c) / (4 * m + c) - 1
