"""The settings of the runs, fixed before the first measurement.

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
from typing import NamedTuple

from papers.traces import traces

GBPS = 10
CHUNK_ELEMS = 336
CHUNK_BYTES, FRAME_BYTES = 4 * CHUNK_ELEMS, 1480  # as bench_bml prints them
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
# Instead of a BCube, by slices: a parameter server, a share on every server, and a ring of the
# servers, on a network that blocks nothing (a Fat-Tree); a switch that sums with a port for every
# server. Each with one port a server and with k, to as many such networks: a k-th of the gradient
# in each.
OTHER_WAYS = ("server", "ring", "box")
MOST_AT_ONE_SWITCH = 1024  # as many workers as a job may have
GPUS, MACS_PER_S = 2, 2e12
SUB_MINIBATCHES = {"lenet5": (16, 64, 256, 1024), "vgg19": (1, 2, 4, 8, 16, 32)}
SCALE = {"lenet5": 1, "vgg19": 32}
MODEL_SHAPES = ((3, 2), (3, 3))  # the first is the publication's, and the lab's


@dataclass(frozen=True)
class Setting:
    what: str  # "uniform" or a model
    ports: int
    levels: int
    mode: str  # or one of the other ways
    megabytes: int = 0
    by_slices: bool = False  # by slices_model.cc
    server_ports: int = 0    # of the other ways

    @property
    def servers(self):
        return self.ports ** self.levels

    @property
    def share(self):
        """Bytes through each port, each way, for a byte of gradient (headers left out)."""
        if self.mode in OTHER_WAYS:
            return other_share(self.mode, self.servers) / self.server_ports
        return port_share(self.ports, self.levels, self.mode)

    @property
    def key(self):
        key = f"{self.what}/{self.ports}.{self.levels}/{self.mode}/{self.megabytes}"
        key += "/slices" if self.by_slices else ""
        return key + (f"/{self.server_ports} ports" if self.server_ports else "")

    @property
    def elems(self):
        if self.what != "uniform":
            scale = SCALE[self.what]
            return [math.ceil(tensor.elem_count / scale) for tensor in traces.load(self.what)]
        shares = self.levels * self.servers * CHUNK_ELEMS
        rounds = 16 * max(1, round(self.megabytes * 1e6 / 4 / shares / 4 / 16))  # full slices
        return [shares * rounds] * 4

    @property
    def bytes(self):
        return 4 * sum(self.elems)


class InLab(NamedTuple):
    """In network namespaces, over links of `mbps`."""

    ports: int
    levels: int
    mode: str
    mbps: int
    elems: tuple
    what: str = "uniform"  # full slices

    @property
    def key(self):
        key = f"lab/{self.ports}.{self.levels}/{self.mode}/{self.mbps}"
        return key if self.what == "uniform" else f"{key}/{self.what}"

    @property
    def share(self):
        return port_share(self.ports, self.levels, self.mode)

    @property
    def bytes(self):
        return 4 * sum(self.elems)


# At two rates: where processors and not links set the time, they differ.
LAB = [InLab(ports, levels, mode, mbps, (elem_count,))
       for ports, levels, elem_count, rates in ((2, 2, 1_032_192, (20, 40)),
                                                (3, 2, 1_161_216, (10, 20)))
       for mode in MODES for mbps in rates]
MBPS = 20  # of the models


def uniform(shapes, megabytes):
    return [Setting("uniform", *shape, mode, megabytes) for shape in shapes for mode in MODES]


def with_slices(settings):
    return settings + [replace(setting, by_slices=True) for setting in settings]


def with_other_ways(settings):
    gradients = dict.fromkeys((one.what, one.ports, one.levels, one.megabytes) for one in settings
                              if one.servers <= MOST_AT_ONE_SWITCH)
    return settings + [
        Setting(what, ports, levels, way, megabytes, by_slices=True, server_ports=server_ports)
        for what, ports, levels, megabytes in gradients for way in OTHER_WAYS
        for server_ports in dict.fromkeys((1, levels))]


def models(shape):
    return [Setting(model, *shape, mode) for model in SUB_MINIBATCHES for mode in MODES]


PUBLISHED = models(MODEL_SHAPES[0])
LAB += [InLab(one.ports, one.levels, one.mode, MBPS, tuple(one.elems), one.what)
        for one in PUBLISHED]
LONG = with_slices(uniform((*SHAPES, ONE_LEVEL), MEGABYTES)
                   + [setting for shape in MODEL_SHAPES for setting in models(shape)])
LONG += [Setting("uniform", 4, 3, "aggregated", 33)]  # added: full slices twice
LONG += [Setting("uniform", *shape, mode, megabytes, by_slices=True)
         for shape, megabytes in BIG_SHAPES.items() for mode in MODES]
LONG = with_other_ways(LONG)
SHORT = with_other_ways(with_slices(uniform(SHORT_SHAPES, MEGABYTES) + PUBLISHED))


def port_share(ports, levels, mode):
    servers = ports ** levels
    if mode == "plain":
        return 2 * (servers - 1) / servers / levels
    return ports / (ports - 1) * (servers - 1) / servers / levels


def other_share(way, servers):
    """With one port a server."""
    return 1 if way == "box" else 2 * (servers - 1) / servers


def switches(ports, levels):
    return levels * ports ** (levels - 1)


def fat_tree_switches(ports, servers):
    """Of three levels, with as many ports each: 5 n^2 / 4 for n^3 / 4 servers; of fewer servers
    that share, though a tree can't be built in part."""
    return 5 * servers / ports


def compute_s(model, sub_minibatch):
    macs = sum(tensor.fwd_macs for tensor in traces.load(model))
    return 3 * macs * sub_minibatch / MACS_PER_S
