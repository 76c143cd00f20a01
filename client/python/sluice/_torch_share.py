"""How a step that k of n ranks are in counts k/n, so that one learning rate suits every k.

With late gradients that go into later steps (late="requeue") there are n/k as many steps. The
averages carry the factor already (averaging="world"); optimizers that ignore the scale of gradients
get the plain averages instead, and the factor in their rate.
"""

import contextlib

import torch

from sluice import errors

# Of torch.optim: an update of theirs is as large for g as for c g.
_NAMES = ("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "NAdam", "RAdam",
          "RMSprop", "Rprop", "SparseAdam")
_IGNORE_SCALE = tuple(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))

SHARES = ("gradient", "rate")


def places(optimizers, share, averaging):
    """For each optimizer where its factor stands: 'gradient', 'rate' or, with None, nowhere.

    `share` is what the user chose, None for what suits; `averaging` what the job's outputs hold."""
    if share is not None and share not in SHARES:
        raise errors.InvalidArgument(f"share={share!r}: must be one of {', '.join(SHARES)}")
    if share is None and averaging != "world":
        return [None] * len(optimizers)
    return [share or ("rate" if ignores_scale(one) else "gradient")
            for one in optimizers]


def describe(optimizers, where):
    """One line for the log."""
    parts = [f"the {'learning rate' if place == 'rate' else 'gradients'} of "
             f"{type(one).__name__}" for one, place in zip(optimizers, where) if place]
    return f"a step of k of the n ranks counts k/n, in {' and '.join(parts)}"


def ignores_scale(optimizer):
    """Whether its updates are as large for c times the gradients."""
    return isinstance(optimizer, _IGNORE_SCALE)


@contextlib.contextmanager
def scaled_rates(optimizer, share):
    """The optimizer's rates times `share`, within. Schedules and state_dict() run outside."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate * share
    try:
        yield
    finally:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
