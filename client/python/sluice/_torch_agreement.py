"""What the ranks of DDP's process group agree on before they join a job.

Rank 0 draws the run id, so a launch needs no name of its own, and a run that is started again under
the same port or name has another id. The models of a process are numbered in the order of attach().
Ranks that attach two models of equal layout in different orders would add up gradients of different
models; therefore the ranks compare descriptions of the models.
"""

import datetime
import hashlib
import struct
import time

import torch
import torch.distributed as dist

from sluice import _settings, errors

_SAMPLES = 64  # values of parameters that ranks compare
_TEXT_BYTES = 160
# Run id, number, of the job's name, of the layout, of the appliances, samples, two texts.
_FORMAT = f"<QIQQQ{_SAMPLES}f{_TEXT_BYTES}s{_TEXT_BYTES}s"
_run_ids = {}  # process group -> the run id that its ranks have agreed on
_numbers = {}  # job name -> the number of this process's next model


def job_name(given, group):
    """The name of the job. A group of some of the ranks has a hash of its ranks in the name,
    because another group may train beside it."""
    name = _settings.job_name(given)
    ranks = global_ranks(group)
    if ranks == list(range(dist.get_world_size())):
        return name
    return f"{name}.{hashlib.blake2b(repr(ranks).encode(), digest_size=4).hexdigest()}"


def global_ranks(group):
    return [dist.distributed_c10d.get_global_rank(group, rank)
            for rank in range(dist.get_world_size(group))]


def next_number(name):
    """The number of this process's next model in jobs of this name."""
    number = _numbers.get(name, 0)
    _numbers[name] = number + 1
    return number


def backends_of(group):
    """The group's backend for each kind of device, by its name."""
    if hasattr(dist, "get_backend_config"):  # torch 2
        return dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    return {"gloo": {"cpu": "gloo"}, "sluice": {"cpu": "sluice"},
            "nccl": {"cuda": "nccl"}}.get(dist.get_backend(group), {})


def place_of(group, device):
    """The device whose tensors the group's collectives take; None for a group with none of Gloo,
    the backend sluice and NCCL."""
    backends = backends_of(group)
    if backends.get("cpu") in ("gloo", "sluice"):
        return torch.device("cpu")
    return device if backends.get(device.type, "").startswith("nccl") else None


def _samples(named):
    """Some values of the model. Replicas have equal values; models that were initialised apart
    have different ones."""
    matrices = [p for _, p in named if p.dim() > 1] or [p for _, p in named]
    chosen = matrices[::-(-len(matrices) * 2 // _SAMPLES)]
    with torch.no_grad():
        values = [p[place].float() for p in chosen for place in ((0,) * p.dim(), (-1,) * p.dim())]
        values = torch.stack(values).cpu().tolist() if values else []
    return (values + [0.0] * _SAMPLES)[:_SAMPLES]


def _number_of(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Offer:
    """The description that a rank gives of its model, and its encoding in bytes."""

    def __init__(self, data):
        self.run_id, self.number, name, layout, self.boxes, *samples = struct.unpack(_FORMAT, data)
        self.text, self.address = (
            text.rstrip(b"\0").decode("utf-8", "ignore") for text in samples[_SAMPLES:])
        self.identity = [name, layout, *samples[:_SAMPLES]]

    @staticmethod
    def bytes_of(run_id, name, module, named, address):
        layout = repr([(key, tuple(p.shape), str(p.dtype)) for key, p in named])
        text = (f"a {type(module).__name__} of {len(named)} parameters, the first '{named[0][0]}', "
                f"in job '{name}'")
        return struct.pack(_FORMAT, run_id, _numbers.get(name, 0), _number_of(name),
                           _number_of(layout), _number_of(address), *_samples(named),
                           text.encode()[:_TEXT_BYTES], address.encode()[:_TEXT_BYTES])

    def agrees_with(self, other):
        """Whether two descriptions are of one model. Replicas on different devices may differ in
        the last bit of a value."""
        mine, theirs = (torch.tensor(one.identity[2:]) for one in (self, other))
        return self.identity[:2] == other.identity[:2] and torch.allclose(
            mine, theirs, rtol=1e-2, atol=1e-6, equal_nan=True)


def agree(group, place, name, module, named, address, timeout):
    """Returns (run id, number of this model), equal on all ranks of the group.

    A collective call; blocks until all ranks of the group have called it. Raises InvalidArgument on
    all ranks when they attach different models, or list several appliances differently, PeerLost
    when a rank has ended, TimedOut when a rank does not come.
    """
    boxes = address if "," in address and address.startswith("udp://") else ""
    data = _Offer.bytes_of(_run_ids.get(group) or _settings.drawn_run_id(), name, module, named,
                           boxes)
    mine = torch.tensor(list(data), dtype=torch.uint8, device=place)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    limit, begun_s = datetime.timedelta(seconds=timeout), time.monotonic()
    try:
        if place.type == "cpu":  # a collective that is given up keeps the process from ending
            _barrier(group, limit)
        dist.all_gather(found, mine, group=group, async_op=True).wait(limit)
    except RuntimeError as error:
        if time.monotonic() - begun_s < 0.9 * timeout:
            raise errors.PeerLost(
                f"a rank of the process group ended before all had called attach(): {error}"
            ) from None
        raise errors.TimedOut(
            f"the ranks of the process group did not all call attach() within {timeout:g} s: "
            f"{error}") from None
    offers = [_Offer(bytes(one.tolist())) for one in found]
    _check(offers)
    _run_ids[group] = offers[0].run_id
    number = max(offer.number for offer in offers)  # a rank may have failed to attach one more
    _numbers[name] = number + 1
    return offers[0].run_id, number


def _barrier(group, limit):
    if dist.get_backend(group) == "gloo":
        dist.monitored_barrier(group, limit, wait_all_ranks=True)
        return
    barrier = getattr(group._get_backend(torch.device("cpu")), "monitored_barrier", None)
    if barrier is not None:  # torch wraps it where it debugs
        barrier(limit, True)


def _check(offers):
    first = offers[0]
    for rank, offer in enumerate(offers):
        if offer.boxes != first.boxes:
            raise errors.InvalidArgument(
                f"the ranks list other appliances, or in another order: rank 0 "
                f"{first.address or 'has one'}, rank {rank} {offer.address or 'has one'}. A job "
                "moves along the list: give all ranks the same one")
    others = [rank for rank, offer in enumerate(offers) if not offer.agrees_with(first)]
    if not others:
        return
    other = offers[others[0]]
    also = "" if other.text != first.text else ", with other values of its parameters"
    raise errors.InvalidArgument(
        f"the ranks attach different models at once: rank 0 {first.text}, rank {others[0]} "
        f"{other.text}{also}. Attach the models in the same order on all ranks, and give them the "
        "same state there")
