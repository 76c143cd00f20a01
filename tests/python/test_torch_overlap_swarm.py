"""overlap() against attach() in loops drawn from a seed, with any calls between the steps."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

import late_job  # noqa: E402
from late_job import images  # noqa: E402

optim = torch.optim


def net():
    from torch import nn
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 6),
                         nn.ReLU(), nn.Linear(6, 2))


def micro_batch(model):
    model(images()).square().mean().backward()


def accumulate(model, _optimizer, _schedule):
    with model.no_sync():
        micro_batch(model)


def accumulate_synchronised(model, _optimizer, _schedule):
    micro_batch(model)


def evaluate(model, _optimizer, _schedule):
    with torch.no_grad():
        outputs = model.eval()(torch.ones(2, 3, 8, 8))
        model.module[5].bias.mul_(1 + 0.001 * outputs.tanh().mean())
    model.train()


def abandon_a_forward(model, _optimizer, _schedule):
    model.module[3](torch.ones(1, 144))


def save_and_load(model, optimizer, _schedule):
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def clip(model, _optimizer, _schedule):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def read_a_gradient(model, _optimizer, _schedule):
    gradient = model.module[3].weight.grad
    if gradient is not None:
        model.module[5].bias.data.add_(0.01 * gradient.mean())


def clip_weights(_model, optimizer, _schedule):
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.data.clamp_(-0.3, 0.3)


def mix_weights(_model, optimizer, _schedule):
    first, second = optimizer.param_groups[0]["params"][4:6]
    with torch.no_grad():
        second.mul_(1 + 0.01 * first.norm())


def change_rates(_model, optimizer, _schedule):
    for group in optimizer.param_groups:
        group["lr"] *= 0.9


def tick(_model, _optimizer, schedule):
    schedule.step()


def step_again(_model, optimizer, _schedule):
    optimizer.step()


def clear(model, optimizer, _schedule, zeros=False):
    optimizer.zero_grad(set_to_none=not zeros)


def clear_to_zeros(model, optimizer, _schedule):
    model.zero_grad(set_to_none=False)


def clear_some(model, _optimizer, _schedule):
    model.module[3].zero_grad(set_to_none=False)
    model.module[0].weight.grad = None


BEFORE = [accumulate, accumulate_synchronised, evaluate, abandon_a_forward, save_and_load]
BETWEEN = [clip, read_a_gradient, change_rates, evaluate, clip_weights]
AFTER = [tick, change_rates, evaluate, save_and_load, read_a_gradient, step_again,
         abandon_a_forward, clip_weights, mix_weights]
CLEARINGS = [clear, clear_to_zeros, clear_some, lambda *_: None]


def drawn(seed):
    """The actions of a whole training: mostly plain steps, so that most of them overlap."""
    draw = random.Random(seed)
    some = lambda actions, share: [a for a in actions if draw.random() < share]
    lists = []
    for _ in range(10):
        lists += [*some(BEFORE, 0.07), "backward", *some(BETWEEN, 0.07)]
        if draw.random() < 0.9:
            lists += ["step", *some(AFTER, 0.07), tick]
        lists += [draw.choices(CLEARINGS, [8, 8, 2, 1])[0], *some(AFTER[:5], 0.04)]
    return lists, draw.choice([
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
        lambda p: optim.AdamW(p, lr=0.01), lambda p: optim.RMSprop(p, lr=0.01)])


def train(monkeypatch, seed, overlapping):
    actions, make_optimizer = drawn(seed)
    torch.manual_seed(seed)
    module = net()
    optimizer = make_optimizer(module.parameters())
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
    model, attachment = late_job.attach(monkeypatch, module, optimizer if overlapping else None)
    attachment.job.come_early = seed % 4
    for action in actions:
        if action == "backward":
            micro_batch(model)
        elif action == "step":
            optimizer.step()
        else:
            action(model, optimizer, schedule)
    found = late_job.values(module, optimizer)
    attachment.detach()
    assert not any(isinstance(v, torch.Tensor) and v.isnan().any() for v in found)
    return found, attachment


@pytest.mark.parametrize("seed", range(24))
def test_loops_drawn_from_a_seed_come_out_as_with_attach(monkeypatch, seed):
    actions = [getattr(action, "__name__", action) for action in drawn(seed)[0]]
    wanted, _ = train(monkeypatch, seed, False)
    found, attachment = train(monkeypatch, seed, True)
    assert late_job.equal(found, wanted), (seed, actions)
    assert attachment.overlapped_steps >= 2, (seed, actions)
