"""How a step that k of n ranks are in counts k/n, so that one learning rate suits every k.

With late gradients that go into later steps (late="requeue") there are n/k as many steps. The
averages carry the factor already (averaging="world"); optimizers that ignore the scale of gradients
get the plain averages instead, and the factor in their rate. The momentum of SGD and of Adam makes
up for the lateness besides.
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
    """For each optimizer where its factor stands: 'gradient', 'rate', 'momentum', which is in the
    gradient and in what SGD makes of it, 'moments', which is in the rate and in what Adam makes of
    the gradient, or, with None, nowhere.

    `share` is what the user chose, None for what suits; `averaging` what the job's outputs hold."""
    if share is not None and share not in SHARES:
        raise errors.InvalidArgument(f"share={share!r}: must be one of {', '.join(SHARES)}")
    if share is None and averaging != "world":
        return [None] * len(optimizers)
    return [share or ("moments" if type(one) in _ADAM else "rate" if ignores_scale(one) else
                      "momentum" if has_momentum(one) else "gradient") for one in optimizers]


def in_rate(place):
    """Whether the optimizer takes plain averages."""
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
    """Whether its updates are as large for c times the gradients."""
    return isinstance(optimizer, _IGNORE_SCALE)


def has_momentum(optimizer):
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["momentum"] for group in optimizer.param_groups)


def around(place, optimizer, share):
    """The context for the step() of an optimizer whose factor stands at `place`."""
    contexts = {"rate": scaled_rates, "momentum": caught_up, "moments": caught_up_moments}
    if share in (0, 1) or place not in contexts:  # 0: nobody had a gradient, there is none to scale
        return contextlib.nullcontext()
    return contexts[place](optimizer, share)


@contextlib.contextmanager
def scaled_rates(optimizer, *shares):
    """The optimizer's rates times `shares`, one for each group or one for all, within. Schedules
    and state_dict() run outside."""
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
    """(a, b): parameters move by the rate times a velocity + b gradient when a share is in a step.

    What a gradient that came D steps late would have moved by momentum meanwhile, it moves at once,
    and by so much less later: spike compensation (Kosson et al., 2021, "Pipelined Backpropagation
    at Scale"), in the form in which D = 1 is Nesterov's momentum. Without that, late gradients take
    away the damping, and rates that suit all ranks diverge. Each rank is in every n/k-th step, so
    gradients are D = n/k - 1 steps late on average. The rate goes by sqrt(k/n) on top."""
    late = 1 / share - 1
    ahead = late / (momentum + (1 - momentum) * late)
    slower = math.sqrt(share)
    return slower * (1 - (1 - momentum) * ahead), slower * ahead


@contextlib.contextmanager
def caught_up(optimizer, share):
    """SGD's step within; groups with momentum move as catching_up() says."""
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
    """Adam's or AdamW's step within: at the rate times `share`, and as catching_up() says. Its
    first moment is a velocity times 1 - beta1."""
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
