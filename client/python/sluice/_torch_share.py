"""Lets a step of k of n ranks count k/n, so that one learning rate suits every k.

With requeued late gradients (late="requeue") a run has n/k as many steps. averaging="world" puts
the factor into the averages. Optimizers that ignore the scale of gradients get plain averages, and
the factor multiplies their rate. The momentum of SGD and of Adam also makes up for the lateness.
"""

import contextlib
import math

import torch

from sluice import errors

# Of torch.optim: an update of theirs is as large for g as for c g.
_NAMES = ("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "NAdam", "RAdam",
          "RMSprop", "Rprop", "SparseAdam")
_IGNORE_SCALE = tuple(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))
_ADAM = (torch.optim.Adam, torch.optim.AdamW)  # themselves: subclasses may keep other moments

SHARES = ("gradient", "rate")


def places(optimizers, share, averaging):
    """Where each optimizer's factor is applied: 'gradient'; 'rate'; 'momentum', in the gradient
    and in SGD's step; 'moments', in the rate and in Adam's step; or None.

    `share` is the user's choice, None for the default; `averaging` the averaging of the job.
    """
    if share is not None and share not in SHARES:
        raise errors.InvalidArgument(f"share={share!r}: must be one of {', '.join(SHARES)}")
    if share is None and averaging != "world":
        return [None] * len(optimizers)
    return [share or ("moments" if type(one) in _ADAM else "rate" if ignores_scale(one) else
                      "momentum" if has_momentum(one) else "gradient") for one in optimizers]


def in_rate(place):
    """Whether the optimizer takes plain averages, with the factor in its rate."""
    return place in ("rate", "moments")


def describe(optimizers, where):
    """One line for the log."""
    names = {"gradient": "the gradients of {}", "rate": "the learning rate of {}",
             "momentum": "the gradients of {}, whose momentum makes up for late ones",
             "moments": "the learning rate of {}, whose momentum makes up for late gradients"}
    parts = [names[place].format(type(one).__name__)
             for one, place in zip(optimizers, where) if place]
    return f"a step of k of the n ranks counts k/n, in {' and '.join(parts)}"


def ignores_scale(optimizer):
    """Whether c times the gradient gives the same update."""
    return isinstance(optimizer, _IGNORE_SCALE)


def has_momentum(optimizer):
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["momentum"] for group in optimizer.param_groups)


def around(place, optimizer, share):
    """The context for the optimizer's step() with its factor at `place`."""
    contexts = {"rate": scaled_rates, "momentum": caught_up, "moments": caught_up_moments}
    if share in (0, 1) or place not in contexts:  # 0: nobody had a gradient, there is none to scale
        return contextlib.nullcontext()
    return contexts[place](optimizer, share)


@contextlib.contextmanager
def scaled_rates(optimizer, *shares):
    """A context in which the rates are multiplied by `shares`, one for each group or one for
    all. Schedules and state_dict() run outside of it."""
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group, rate, share in zip(groups, rates, shares * (len(groups) // len(shares))):
        group["lr"] = rate * share
    try:
        yield
    finally:
        for group, rate in zip(groups, rates):
            group["lr"] = rate


def catching_up(momentum, share):
    """Returns (a, b): a parameter moves by rate * (a * velocity + b * gradient) in a step with
    `share`.

    A gradient that comes D steps late moves the parameter at once by what momentum would have added
    in those steps, and by that much less later. This is spike compensation (Kosson et al., 2021,
    "Pipelined Backpropagation at Scale"), in the form in which D = 1 is Nesterov's momentum.
    Without it late gradients remove the damping, and rates that suit all ranks diverge. Each rank
    is in every n/k-th step, so gradients are D = n/k - 1 steps late on average. The rate is
    multiplied by sqrt(k/n) as well.
    """
    late = 1 / share - 1
    ahead = late / (momentum + (1 - momentum) * late)
    slower = math.sqrt(share)
    return slower * (1 - (1 - momentum) * ahead), slower * ahead


@contextlib.contextmanager
def caught_up(optimizer, share):
    """A context for SGD's step: groups with momentum move as catching_up() says."""
    groups = optimizer.param_groups
    moves = [catching_up(group["momentum"], share) if group["momentum"] else (1.0, 0.0)
             for group in groups]
    with scaled_rates(optimizer, *(velocity for velocity, _ in moves)):
        yield
    with torch.no_grad():
        for group, (_, at_once) in zip(groups, moves):
            change = float(group["lr"]) * at_once * (1 - group["dampening"])
            for parameter in group["params"]:
                if parameter.grad is not None and change:
                    parameter.add_(parameter.grad, alpha=change if group["maximize"] else -change)


@contextlib.contextmanager
def caught_up_moments(optimizer, share):
    """A context for the step of Adam or AdamW: the rate is multiplied by `share`, and parameters
    move as catching_up() says. Adam's first moment is a velocity times 1 - beta1."""
    groups = optimizer.param_groups
    moves = [catching_up(group["betas"][0], share) for group in groups]
    with scaled_rates(optimizer, *(share * velocity for velocity, _ in moves)):
        yield
    with torch.no_grad():
        for group, (_, at_once) in zip(groups, moves):
            change = float(group["lr"]) * share * at_once * (1 - group["betas"][0])
            for parameter in group["params"]:
                if parameter.grad is not None and change:
                    _move_at_once(parameter, group, optimizer, change)


def _move_at_once(parameter, group, optimizer, change):
    state, gradient, decay = optimizer.state[parameter], parameter.grad, group["weight_decay"]
    if group["maximize"]:
        gradient = -gradient
    if decay and group.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW):
        parameter.mul_(1 - change * decay)
    elif decay:
        gradient = gradient.add(parameter, alpha=decay)
    second = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    bias = 1 - group["betas"][1] ** float(state["step"])
    parameter.addcdiv_(gradient, (second / bias).sqrt_().add_(group["eps"]), value=-change)
