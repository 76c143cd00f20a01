"""What is run: models and their compute, links, policies. Fixed before anything was measured.

Compute comes from one assumption: an accelerator that goes forward through ResNet-50 at batch 64 in
118 ms, which is what the published fluid figures imply (fluid.py), and as fast through every other
model's MACs. Backward takes 1.5 times as long as forward, for the same reason. Gradients become
ready in READY_STEPS steps of equal time, as Prophet says and the figures imply.
"""
import math
from dataclasses import dataclass

from papers.traces import traces

RESNET50_FORWARD_S, RESNET50_BATCH = 0.118, 64
BACKWARD_PER_FORWARD = 1.5
READY_STEPS = 10
BATCHES = {"resnet50": RESNET50_BATCH, "vgg19": 32, "bert_base": 32}  # BERT: 128 tokens each
MODELS = tuple(BATCHES)
RATES_GBPS = (1, 3, 10)
LATENCIES_MS = (0.02, 1.0)
# One jumbo frame's payload; the traffic of 576 MB in frames of 1,500 bytes takes 6 times as long to
# simulate and changes no iteration time by more than a packet.
CHUNK_BYTES = 8832
ITERATIONS = 24
STEADY = 12  # iterations at the end that count

LAB_SCALE = 20  # of bytes and rates in the real run: two ranks and sluiced share two cores

SLICE_BYTES = 160_000  # of stop-and-wait priority (P3's, and what the published figure implies)
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


STOP_AND_WAIT = Policy("stop-and-wait", "credit", SLICE_BYTES, 1)
STOP_AND_WAIT_TENSOR = Policy("stop-and-wait, whole tensors", "credit", 1 << 31, 1)
FIFO, PROPHET, STRICT = (Policy(name, name) for name in ("fifo", "prophet", "strict"))
# Its packets carry no urgency for the queues of links and switches.
FIFO_EQUAL = Policy("fifo, equal priorities", "fifo", equal_priorities=True)
CREDITS = tuple(Policy(f"credit {unit / 1e6:g}/{credit / 1e6:g} MB", "credit", unit, credit)
                for unit, credit in CREDIT_SWEEP)
DEFAULT_CREDIT = CREDITS[0]
POLICIES = (FIFO, STOP_AND_WAIT, STOP_AND_WAIT_TENSOR, *CREDITS, PROPHET, STRICT)


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


def _macs(model):
    return sum(tensor.fwd_macs for tensor in traces.load(model))


def compute_s(model):
    """(forward, backward) seconds of one iteration."""
    rate = _macs("resnet50") * RESNET50_BATCH / RESNET50_FORWARD_S
    forward_s = _macs(model) * BATCHES[model] / rate
    return forward_s, BACKWARD_PER_FORWARD * forward_s


def tensors(model, ready_steps=READY_STEPS):
    """The model with its times, in forward order; ready_steps 0: each layer by itself."""
    forward_s, backward_s = compute_s(model)
    total = _macs(model)
    out, done = [], 0
    for tensor in reversed(traces.load(model)):
        done += tensor.fwd_macs
        share = done / total
        if ready_steps:
            share = math.ceil(share * ready_steps - 1e-9) / ready_steps
        out.append(Tensor(tensor.bytes, backward_s * share,
                          forward_s * tensor.fwd_macs / total))
    return out[::-1]
