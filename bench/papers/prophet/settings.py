"""The settings of the runs: models and their compute, links, policies. Fixed before the first
measurement.

Compute is an assumption, since nothing was published with the claim: an accelerator that goes
forward through ResNet-50 at batch 64 in 98 ms and backward in 196 ms, and as fast through every
other model's MACs. Gradients become ready in READY_GROUPS groups of as many tensors, each when
backward has passed the last of them.
"""
import math
from dataclasses import dataclass

from papers.traces import traces

RESNET50_FORWARD_S, RESNET50_BATCH = 0.098, 64
BACKWARD_PER_FORWARD = 2
READY_GROUPS = 11  # of 15 tensors in ResNet-50
# BERT: of 128 tokens each.
BATCHES = {"resnet50": RESNET50_BATCH, "resnet152": 32, "inception_v3": 32, "vgg19": 32,
           "bert_base": 32}
MODELS = tuple(BATCHES)
RATES_GBPS = (1, 3, 10)
LATENCIES_MS = (0.02, 1.0)
# One jumbo frame's payload; the traffic of 576 MB in frames of 1,500 bytes takes 6 times as long to
# simulate and changes no iteration time by more than a packet.
CHUNK_BYTES = 8832

SLICE_BYTES = 160_000  # of stop-and-wait priority: 40,000 parameters
# (unit, credit). ByteScheduler's defaults come first: 10^6 and 4 * 10^6 float32.
CREDIT_SWEEP = ((4_000_000, 16_000_000), (4_000_000, 4_000_000), (1_000_000, 4_000_000),
                (1_000_000, 1_000_000), (SLICE_BYTES, 4_000_000), (SLICE_BYTES, 1_000_000),
                (SLICE_BYTES, 2 * SLICE_BYTES))


@dataclass(frozen=True)
class Policy:
    """A schedule with its sizes, in bytes; a credit of 1: one unit at a time (stop and wait)."""

    name: str
    schedule: str
    unit: int = 0
    credit: int = 0
    equal_priorities: bool = False  # on the wire

    @property
    def learns(self):
        """Its first iterations differ from the later ones."""
        return self.schedule == "prophet"


STOP_AND_WAIT = Policy("stop-and-wait", "credit", SLICE_BYTES, 1)
STOP_AND_WAIT_TENSOR = Policy("stop-and-wait, whole tensors", "credit", 1 << 31, 1)
FIFO, PROPHET, STRICT = (Policy(name, name) for name in ("fifo", "prophet", "strict"))
# Its packets carry no urgency for the queues of links and switches.
FIFO_EQUAL = Policy("fifo, equal priorities", "fifo", equal_priorities=True)
CREDITS = tuple(Policy(f"credit {unit / 1e6:g}/{credit / 1e6:g} MB", "credit", unit, credit)
                for unit, credit in CREDIT_SWEEP)
DEFAULT_CREDIT = CREDITS[0]
POLICIES = (FIFO, STOP_AND_WAIT, STOP_AND_WAIT_TENSOR, *CREDITS, PROPHET, STRICT)
SHOWN_POLICIES = (FIFO, STOP_AND_WAIT, STOP_AND_WAIT_TENSOR, DEFAULT_CREDIT, PROPHET, STRICT)
SIDE_POLICIES = (FIFO, STOP_AND_WAIT_TENSOR, DEFAULT_CREDIT, PROPHET, STRICT)


@dataclass(frozen=True)
class Tensor:
    bytes: int
    ready_s: float    # after the start of backward
    forward_s: float  # of its layer


@dataclass(frozen=True)
class Setting:
    model: str
    rate_gbps: float
    latency_ms: float

    def __str__(self):
        return f"{self.model}, {self.rate_gbps:g} Gb/s, {self.latency_ms:g} ms"

    @property
    def communication_s(self):
        """All bytes of the model once through a link."""
        return traces.total_bytes(traces.load(self.model)) * 8 / (self.rate_gbps * 1e9)

    @property
    def compute_s(self):
        return sum(compute_s(self.model))

    @property
    def network_bound(self):
        """The RESULT line's settings: communication takes longer than compute."""
        return self.communication_s > self.compute_s


SETTINGS = tuple(Setting(model, rate, latency) for model in MODELS for rate in RATES_GBPS
                 for latency in LATENCIES_MS)
SHOWN = Setting("resnet50", 3, 1.0)  # where the tables go into detail


def _macs(model):
    return sum(tensor.fwd_macs for tensor in traces.load(model))


def compute_s(model):
    """(forward, backward) seconds of one iteration."""
    rate = _macs("resnet50") * RESNET50_BATCH / RESNET50_FORWARD_S
    forward_s = _macs(model) * BATCHES[model] / rate
    return forward_s, BACKWARD_PER_FORWARD * forward_s


def tensors(model, groups=READY_GROUPS):
    """The model with its times, in forward order; groups 0: each layer by itself."""
    forward_s, backward_s = compute_s(model)
    total, trace = _macs(model), traces.load(model)
    group_size = math.ceil(len(trace) / groups) if groups else 1
    passed, done = [], 0  # by backward, of all MACs, with each tensor
    for tensor in reversed(trace):
        done += tensor.fwd_macs
        passed.append(done / total)
    out = []
    for index, tensor in enumerate(reversed(trace)):
        last = min(index - index % group_size + group_size, len(trace)) - 1
        out.append(Tensor(tensor.bytes, backward_s * passed[last],
                          forward_s * tensor.fwd_macs / total))
    return out[::-1]
