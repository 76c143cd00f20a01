"""A job without a network, for tests of sluice.torch.overlap: results land as late as they can.

A submitted tensor is NaN until the script waits for it, so an early use of it, or of a parameter
made of it, shows. With each that is waited for, `come_early` more are here, where the caller asks
for them. The average is the tensor itself, as in a job of one rank.
"""

import ctypes
import math
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from sluice import torch as sluice_torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class LateJob:
    traced = True
    come_early = 0  # results that are here beside those that are waited for
    policy = SimpleNamespace(tolerates_stragglers=False, policy="sync")

    def __init__(self, specs):
        self.tensors = [SimpleNamespace(name=name, elem_count=count) for name, count, *_ in specs]
        self.rounded = self.pruned = ()  # all of a gradient leaves
        self._flying = {}  # index -> (address, the values that will be there)
        self.waited = []  # indices, in the order in which they were waited for
        self.priorities = {}
        self.applied = []
        self.error = None  # raised by the next wait
        self.closed = False

    def keep(self, name, objects):
        pass

    def submit_many(self, submissions):
        for one in submissions:
            assert one.tensor not in self._flying, "submitted while it is in flight"
            count = self.tensors[one.tensor].elem_count
            memory = (ctypes.c_float * count).from_address(one.output)
            self._flying[one.tensor] = (memory, list(memory))
            self.priorities[one.tensor] = one.priority
            memory[:] = [math.nan] * count

    def wait(self, index):
        if self.error is not None:
            raise self.error
        if index in self._flying:
            memory, values = self._flying.pop(index)
            memory[:] = values
            self.waited.append(index)

    def wait_many(self, indices, least):
        count = min(least + self.come_early, len(indices))
        for index in indices[:count]:
            self.wait(index)
        return count

    def wait_step(self):
        for index in list(self._flying):
            self.wait(index)

    def mark_applied(self, index):
        self.applied.append(index)

    def end_step(self):
        pass

    def check(self):
        if self.error is not None:
            raise self.error

    def close(self):
        assert not self._flying or self.error, "left while gradients are in flight"
        self.closed = True

    def __exit__(self, kind, value, trace):
        self.closed = True


def group_of_one():
    if not dist.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1024  # DDP fills the first bucket to 1 MiB otherwise


def attach(monkeypatch, net, optimizer=None, **ddp_options):
    """(DDP model, what attach() or, with an optimizer, overlap() returns) over a LateJob."""
    group_of_one()
    monkeypatch.setattr(sluice_torch, "_join", lambda specs, *_args, **_options: LateJob(specs))
    model = DistributedDataParallel(
        net, **{"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001, **ddp_options})
    if optimizer is None:
        return model, sluice_torch.attach(model)
    return model, sluice_torch.overlap(model, optimizer)


def values(net, optimizer):
    """Copies of all parameters, buffers and the optimizer's state, comparable by equal()."""
    state = optimizer.state_dict()
    return [*(t.clone() for t in net.state_dict().values()),
            *(v.clone() if isinstance(v, torch.Tensor) else v
              for _, entries in sorted(state["state"].items())
              for _, v in sorted(entries.items(), key=lambda item: item[0]) if v is not None)]


def equal(mine, theirs):
    return len(mine) == len(theirs) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(mine, theirs))


def plain_net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 36, 12), nn.Tanh(), nn.Linear(12, 4)).to(
                             memory_format=torch.channels_last)


def images():
    return torch.randn(4, 3, 8, 8)


def train(monkeypatch, overlapping, make_net, make_optimizer, *, make_schedule=None, steps=6,
          inputs=images, after_backward=None, after_step=None, clear=None, ddp=None):
    """Trains a fresh net; returns what can be compared, and the attachment."""
    torch.manual_seed(7)
    net = make_net()
    optimizer = make_optimizer(net)
    schedule = make_schedule(optimizer) if make_schedule else None
    model, attachment = attach(monkeypatch, net, optimizer if overlapping else None,
                                        **(ddp or {}))
    clear = clear or (lambda optimizer, model: optimizer.zero_grad())
    for _ in range(steps):
        model(inputs()).square().mean().backward()
        if after_backward:
            after_backward(model, optimizer)
        optimizer.step()
        if after_step:
            after_step(model, optimizer)
        if schedule:
            schedule.step()
        clear(optimizer, model)
    found = values(net, optimizer)
    attachment.detach()
    assert not any(isinstance(v, torch.Tensor) and v.isnan().any() for v in found)
    return found, attachment


def check(monkeypatch, *arguments, overlapped=5, **options):
    wanted, _ = train(monkeypatch, False, *arguments, **options)
    found, attachment = train(monkeypatch, True, *arguments, **options)
    assert equal(found, wanted)
    assert attachment.overlapped_steps == overlapped
    return attachment


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
