"""What is run, fixed before anything was measured.

Shapes: those of the published figures and of the table in the page; ports of 10 Gb/s. A gradient is
whole chunks for every owner and thread, so that the theory's shares can be exact.

Job completion time: an iteration is a sub-minibatch on two GPUs a server, then the synchronisation,
which begins when the gradient is there, as in the publication. Compute is stated, not measured: 3
passes' worth of the traces' MACs at 2e12 MAC/s a GPU. VGG-19's 575 MB travel as a 32nd of each of
its tensors, and the time counts 32 times: what a step takes to fill and drain then counts 32 times
as well.
"""
import math
from dataclasses import dataclass, replace

from papers.traces import traces

GBPS = 10
CHUNK_ELEMS = 336
CHUNK_BYTES, FRAME_BYTES = 4 * CHUNK_ELEMS, 1476  # as bench_bml prints them
CONTRIBUTION_BYTES = 1436  # of its frame, the other one is a result's
CABLES_S = 4e-6            # to a switch and from it
SHAPES = ((2, 2), (3, 2), (4, 2), (2, 3), (3, 3), (2, 4), (8, 2), (4, 3))
ONE_LEVEL = (9, 1)  # plain: a parameter server on all servers; aggregated: one big box
MOST_PLAYED = 64  # servers over production objects
# And megabytes, by slices only. A job has at most 1,024 workers.
BIG_SHAPES = {(3, 3): 84, (4, 3): 198, (8, 3): 528, (10, 3): 258, (16, 3): 1057}
SHORT_SHAPES = ((2, 2), (3, 2))
MEGABYTES = 24
MODES = ("plain", "aggregated")
GPUS, MACS_PER_S = 2, 2e12
SUB_MINIBATCHES = {"lenet5": (16, 64, 256, 1024), "vgg19": (1, 2, 4, 8, 16, 32)}
SCALE = {"lenet5": 1, "vgg19": 32}
MODEL_SHAPE = (3, 2)


@dataclass(frozen=True)
class Setting:
    what: str  # "uniform" or a model
    ports: int
    levels: int
    mode: str
    megabytes: int = 0
    by_slices: bool = False  # by slices_model.cc
    in_order: bool = False   # likewise: switches send what came first

    @property
    def key(self):
        key = f"{self.what}/{self.ports}.{self.levels}/{self.mode}/{self.megabytes}"
        key += "/slices" if self.by_slices else ""
        return key + ("/in order" if self.in_order else "")

    @property
    def elems(self):
        if self.what != "uniform":
            scale = SCALE[self.what]
            return [math.ceil(tensor.elem_count / scale) for tensor in traces.load(self.what)]
        shares = self.levels * self.ports ** self.levels * CHUNK_ELEMS
        rounds = 16 * max(1, round(self.megabytes * 1e6 / 4 / shares / 4 / 16))  # full slices
        return [shares * rounds] * 4

    @property
    def bytes(self):
        return 4 * sum(self.elems)


def uniform(shapes, megabytes):
    return [Setting("uniform", *shape, mode, megabytes) for shape in shapes for mode in MODES]


def with_slices(settings):
    return settings + [replace(setting, by_slices=True) for setting in settings]


MODELS = [Setting(model, *MODEL_SHAPE, mode) for model in SUB_MINIBATCHES for mode in MODES]
LONG = with_slices(uniform((*SHAPES, ONE_LEVEL), MEGABYTES) + MODELS)
LONG += [Setting("uniform", 4, 3, "aggregated", 33)]  # added: full slices twice
LONG += [Setting("uniform", *shape, mode, megabytes, by_slices=True)
         for shape, megabytes in BIG_SHAPES.items() for mode in MODES]
LONG += [Setting("uniform", *shape, "aggregated", megabytes, by_slices=True, in_order=True)
         for shape, megabytes in BIG_SHAPES.items()]
SHORT = with_slices(uniform(SHORT_SHAPES, MEGABYTES) + MODELS)


def port_share(ports, levels, mode):
    """Bytes through each port, each way, for a byte of gradient (headers left out)."""
    servers = ports ** levels
    if mode == "plain":
        return 2 * (servers - 1) / servers / levels
    return ports / (ports - 1) * (servers - 1) / servers / levels


def server_share(servers):
    """The same for a parameter server on a Fat-Tree, sharded over all servers, and for a ring: one
    port a server."""
    return 2 * (servers - 1) / servers


def compute_s(model, sub_minibatch):
    macs = sum(tensor.fwd_macs for tensor in traces.load(model))
    return 3 * macs * sub_minibatch / MACS_PER_S
