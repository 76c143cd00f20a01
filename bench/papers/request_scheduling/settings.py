"""The settings of the runs: the slide's inputs (B, L, I, W, f_l, b_l, t_l).

Layers are the modules of the models in ../traces. A layer's forward pass takes its share of the
model's MACs, backward twice that; a layer's time on the link is its share of the bytes. Only the
ratio of communication to computing matters, so a model's compute is 100 ms an iteration and the
link's rate follows from the ratio.
"""
import math
from dataclasses import dataclass

from papers.traces import traces

MODELS = tuple(traces.models())
RATIOS = (0.5, 1.0, 2.0)  # all bytes once through a link, over forward and backward
BOUNDS = (0, 1, 2, 5)
POLICIES = ("stalest", "fifo", "filo")
PUSH_AT = ("backward", "step")
COMPUTE_S = 0.1
LATENCY_S = 0.0002
WORKERS, ITERATIONS = 8, 40
UNITS = 64  # a layer has as many as its share of the bytes, at least 1


@dataclass(frozen=True)
class Workers:
    """How the workers differ: everybody's compute varies by `jitter`; the first `slow` take
    `factor` times as long."""

    name: str
    jitter: float = 0.05
    slow: int = 0
    factor: float = 1.0


HOMOGENEOUS = Workers("homogeneous")
VARYING = Workers("varying", jitter=0.3)
SLOW = Workers("one slow", slow=1, factor=2.0)
WORKER_KINDS = (HOMOGENEOUS, VARYING, SLOW)


@dataclass(frozen=True)
class Setting:
    model: str
    ratio: float
    bound: int
    workers: Workers

    @property
    def key(self):
        return f"{self.model}/{self.ratio:g}/{self.bound}/{self.workers.name}"


SETTINGS = tuple(Setting(model, ratio, bound, workers) for model in MODELS for ratio in RATIOS
                 for bound in BOUNDS for workers in WORKER_KINDS)
SHORT = tuple(setting for setting in SETTINGS if setting.ratio == 1 and setting.bound <= 1
              and setting.workers == HOMOGENEOUS)


@dataclass(frozen=True)
class Layer:
    units: int
    unit_s: float
    forward_s: float
    backward_s: float


def layers(model, ratio):
    """One a module, in forward order."""
    tensors = traces.load(model)
    forward, backward = traces.compute_times(tensors, COMPUTE_S)
    total = traces.total_bytes(tensors)
    modules = {}  # name: bytes, forward, backward
    for tensor, forward_s, backward_s in zip(tensors, forward, backward):
        row = modules.setdefault(tensor.name.rpartition(".")[0], [0, 0.0, 0.0])
        for place, value in enumerate((tensor.bytes, forward_s, backward_s)):
            row[place] += value
    out = []
    for size, forward_s, backward_s in modules.values():
        units = min(UNITS, max(1, math.ceil(UNITS * size / total)))
        out.append(Layer(units, ratio * COMPUTE_S * size / total / units, forward_s, backward_s))
    return out


def busiest_link_s(setting):
    """Every push through one worker's link; pulls may be fewer."""
    return ITERATIONS * sum(layer.units * layer.unit_s
                            for layer in layers(setting.model, setting.ratio))
