"""The model of the torch tests, whose gradients are known integers."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHAPES = ((3,), (17, 5), (1,), (40, 40), (2, 3, 4), (129,))


class _Given(torch.autograd.Function):
    """A loss term of value 0 whose gradient for `parameter` is `gradient`."""

    @staticmethod
    def forward(ctx, parameter, gradient):
        ctx.save_for_backward(gradient)
        return torch.zeros(())

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.saved_tensors[0] * grad_output.to(ctx.saved_tensors[0].dtype), None


class Model(nn.Module):
    """Parameters p0, p1, ...; forward(gradients) yields a loss with exactly these gradients.
    A gradient None leaves its parameter out."""

    def __init__(self, shapes=SHAPES, dtype=torch.float32):
        super().__init__()
        for index, shape in enumerate(shapes):
            self.register_parameter(f"p{index}", nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients):
        terms = [_Given.apply(parameter, gradient)
                 for parameter, gradient in zip(self.parameters(), gradients)
                 if gradient is not None]
        return sum(terms)


def error_of(kind, call, *arguments, **options):
    """The text of the exception of this kind that the call raises; None when it raises none."""
    try:
        call(*arguments, **options)
    except kind as error:
        return str(error)
    return None


def gradients_of(rank, step, shapes=SHAPES, dtype=torch.float32):
    """Integers that differ by rank, step, tensor and element; small enough for every type."""
    found = []
    for index, shape in enumerate(shapes):
        count = torch.Size(shape).numel()
        values = (torch.arange(count) * 7 + rank * 5 + step * 3 + index) % 16 - 8
        found.append((4 * values).to(dtype).reshape(shape))
    return found


def expected_mean(ranks, step, **options):
    """The exact mean over all ranks: multiples of 4 over at most 4 ranks are integers."""
    all_ranks = [gradients_of(rank, step, **options) for rank in range(ranks)]
    return [(sum(g.float() for g in column) / ranks).to(column[0].dtype)
            for column in zip(*all_ranks)]


def start(model=None, **ddp_options):
    """Joins the process group and wraps the model."""
    torch.set_num_threads(1)
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1024  # DDP fills the first bucket to 1 MiB otherwise
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return DistributedDataParallel(model or Model(), **ddp_options)


def digits():
    """scikit-learn's handwritten digits: images, each 64 floats from 0 to 1, and labels."""
    from sklearn.datasets import load_digits
    found = load_digits()
    return torch.from_numpy(found.data / 16).float(), torch.from_numpy(found.target)


def gradients(model):
    """Copies of the gradients, None where there is none."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def equal(found, wanted):
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
               for a, b in zip(found, wanted))


# ---- jobs with stragglers ----

def net_with_statistics():
    """A small network with BatchNorm, channels-last convolutions and an unchanging buffer."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
                        nn.Linear(4 * 36, 5), nn.BatchNorm1d(5, momentum=None))
    net.register_buffer("table", torch.arange(7.0))
    return net.to(memory_format=torch.channels_last)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
# Of k/n, with requeue.
PLACES = {"momentum": "momentum", "nesterov": "momentum", "adamw": "moments"}


def start_solo(net, *, optimizer="momentum", scheduled=True, ddp=None, loop=None, **options):
    """(DDP model, attachment, loop) on a solo_group(); the weights differ before attach()."""
    import sluice.torch
    torch.set_num_threads(1)
    model = DistributedDataParallel(net, process_group=sluice.torch.solo_group(), **(ddp or {}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(sluice.torch.member_of(model.process_group)[0])
    attachment = sluice.torch.attach(model, **options)
    chosen = OPTIMIZERS[optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(chosen, 3, 0.9) if scheduled else None
    return model, attachment, sluice.torch.Loop(attachment, chosen, scheduler, **(loop or {}))


def digest(module, loop=None):
    """A hash of all parameters and buffers, and of the optimizer's state."""
    import hashlib

    from sluice import _torch_state
    found = hashlib.sha256(_torch_state.encode(module.state_dict()))
    if loop is not None:
        found.update(_torch_state.encode([o.state_dict() for o in loop._optimizers]))
        found.update(_torch_state.encode([s.state_dict() for s in loop._schedulers]))
    return found.hexdigest()


class Replay:
    """Remembers the gradients of every step, and applies them to a replica that misses none."""

    def __init__(self, net, optimizer, late):
        self._place = PLACES.get(optimizer) if late == "requeue" else None
        self._first = {name: p.detach().clone() for name, p in net.named_parameters()}
        self._make = OPTIMIZERS[optimizer]
        self._gradients = []

    def record(self, net, share):
        """`share`: k/n of the step."""
        self._gradients.append(([None if p.grad is None else p.grad.clone()
                                 for p in net.parameters()], share))

    def agrees(self, net):
        from sluice import _torch_share
        fresh = net_with_statistics()
        for name, parameter in fresh.named_parameters():
            parameter.data.copy_(self._first[name])
        optimizer = self._make(fresh.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
        for gradients_of_step, share in self._gradients:
            for parameter, gradient in zip(fresh.parameters(), gradients_of_step):
                parameter.grad = gradient
            with _torch_share.around(self._place, optimizer, share):
                optimizer.step()
            scheduler.step()
        return all(torch.equal(a, b) for a, b in zip(fresh.parameters(), net.parameters()))


def train(rank, seconds, total=None, until=None, at_step=None, **options):
    """Trains with batches of this rank's own for `total` steps, or until the file `until` exists.
    Each body takes `seconds` and begins with `at_step(step)`. Returns what the tests look at."""
    import os
    import time
    net = net_with_statistics()
    model, attachment, loop = start_solo(net, **options)
    replay = Replay(net, options.get("optimizer", "momentum"), options.get("late"))
    plain_update = loop._update

    def update(step):
        share = attachment.job.report(step).share
        shares.append(share)
        replay.record(net, share)
        plain_update(step)

    loop._update = update
    generator = torch.Generator().manual_seed(100 + rank)
    reports, shares = {}, []
    for step in loop.steps(total):
        if until is not None and os.path.exists(until):
            break
        print(f"step {step}.", flush=True)
        if at_step is not None:
            at_step(step)
        images = torch.randn(6, 3, 8, 8, generator=generator)
        time.sleep(seconds)
        model(images).square().mean().backward()
        loop.update()
        if loop.applied >= step:
            reports[step] = attachment.report(step)
    loop.finish()
    found = dict(digest=digest(net, loop), applied=loop.applied, missed=loop.missed,
                 resyncs=loop.resyncs, stats=attachment.stats(),
                 replayed=replay.agrees(net), batches=int(net[1].num_batches_tracked),
                 members={step: list(r.members) for step, r in reports.items()},
                 k={step: r.k for step, r in reports.items()}, least_share=min(shares))
    attachment.detach()
    return found
