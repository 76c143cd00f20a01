"""What the ranks of DDP's process group settle among themselves before they join a job.

Rank 0 draws the run id: a launch needs no name of its own, and one that is started again under the
same port or name is another run. The models of a process are numbered in the order of attach(),
and ranks that attach two models of equal layout in different orders would sum their gradients
crosswise; so ranks compare what they attach.
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
_FORMAT = f"<QIQQ{_SAMPLES}f{_TEXT_BYTES}s"  # run id, number, of the job's name, of the layout, ...
_run_ids = {}  # process group -> the run id that its ranks have agreed on
_numbers = {}  # job name -> the number of this process's next model


def job_name(given, group):
    """Groups of some of the ranks join under names of their own: others may train likewise."""
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


def place_of(group, device):
    """Where collectives of the group take tensors; None where it has neither Gloo nor NCCL."""
    if hasattr(dist, "get_backend_config"):  # torch 2: one for each kind of device
        backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
    else:
        backends = {"gloo": {"cpu": "gloo"}, "nccl": {"cuda": "nccl"}}.get(
            dist.get_backend(group), {})
    if backends.get("cpu") == "gloo":
        return torch.device("cpu")
    return device if backends.get(device.type, "").startswith("nccl") else None


def _samples(named):
    """Values that models which were initialised apart differ in, and replicas share."""
    matrices = [p for _, p in named if p.dim() > 1] or [p for _, p in named]
    chosen = matrices[::-(-len(matrices) * 2 // _SAMPLES)]
    with torch.no_grad():
        values = [p[place].float() for p in chosen for place in ((0,) * p.dim(), (-1,) * p.dim())]
        values = torch.stack(values).cpu().tolist() if values else []
    return (values + [0.0] * _SAMPLES)[:_SAMPLES]


def _number_of(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Offer:
    """What a rank says of itself, as bytes and back."""

    def __init__(self, data):
        self.run_id, self.number, *self.identity, text = struct.unpack(_FORMAT, data)
        self.text = text.rstrip(b"\0").decode("utf-8", "ignore")

    @staticmethod
    def bytes_of(run_id, name, module, named):
        layout = repr([(key, tuple(p.shape), str(p.dtype)) for key, p in named])
        text = (f"a {type(module).__name__} of {len(named)} parameters, the first '{named[0][0]}', "
                f"in job '{name}'")
        return struct.pack(_FORMAT, run_id, _numbers.get(name, 0), _number_of(name),
                           _number_of(layout), *_samples(named), text.encode()[:_TEXT_BYTES])

    def agrees_with(self, other):
        """Replicas on unlike devices may have come to differ in a last bit."""
        mine, theirs = (torch.tensor(one.identity[2:]) for one in (self, other))
        return self.identity[:2] == other.identity[:2] and torch.allclose(
            mine, theirs, rtol=1e-2, atol=1e-6, equal_nan=True)


def agree(group, place, name, module, named, timeout):
    """(run id, number of this model), equal on all ranks of the group; a collective of them.

    Raises InvalidArgument on all ranks where they attach different models, PeerLost, TimedOut."""
    data = _Offer.bytes_of(_run_ids.get(group) or _settings.drawn_run_id(), name, module, named)
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
    others = [rank for rank, offer in enumerate(offers) if not offer.agrees_with(first)]
    if not others:
        return
    other = offers[others[0]]
    also = "" if other.text != first.text else ", with other values of its parameters"
    raise errors.InvalidArgument(
        f"the ranks attach different models at once: rank 0 {first.text}, rank {others[0]} "
        f"{other.text}{also}. Attach the models in the same order on all ranks, and give them the "
        "same state there")
