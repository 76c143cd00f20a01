"""What the processes of the torch tests share: a model whose gradients are known integers."""

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


def gradients(model):
    """Copies of the gradients, None where there is none."""
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def equal(found, wanted):
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
               for a, b in zip(found, wanted))
