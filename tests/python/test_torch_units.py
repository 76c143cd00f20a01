"""Residuals count for as much after any change of the rate and of the scale of the loss.

One rank over an appliance in this process. Gradients are small integers, rates and scales powers of
two: sums are exact, and == compares.
"""

import pytest
from inproc import address  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - after the check for torch
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import sluice.torch  # noqa: E402
from sluice import errors  # noqa: E402

STEPS = 12
ROWS, COLUMNS = 64, 64
PRUNED = dict(prune="static", prune_fraction=0.05, prune_min_elems=1)
SCALES = [1, 2, 2, 4, 0.5, 0.5, 8, 8, 8, 1, 2, 1]
RATES = [0.5, 0.5, 0.25, 0.25, 0.0, 0.125, 0.125, 0.5, 1.0, 1.0, 0.25, 0.125]


class Scaler:
    """As torch's GradScaler, which needs CUDA in 1.13: scales the loss, leaves a step out that has
    a value which is not finite."""

    def __init__(self):
        self.now = 1.0

    def get_scale(self):
        return self.now

    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        for gradient in gradients:
            gradient /= self.now
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            optimizer.step()


class Net(torch.nn.Module):
    """Its gradients are its inputs."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))
        self.second = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, inputs):
        return (self.first * inputs[0]).sum() + (self.second * inputs[1]).sum()


def inputs_of(step, fine=False):
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(2, ROWS, COLUMNS, generator=generator) * 40
    return values if fine else values.round()


def train(address, *, scales=(1,) * STEPS, rates=(1.0,) * STEPS, follows=True, slower=1.0,
          fine=False, infinite=None, restart=None, make=torch.optim.SGD, attach=None, **options):
    """The parameters after all steps, and what is left behind."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net, scaler = Net(), Scaler()
    optimizer = make([{"params": [net.first]}, {"params": [net.second]}], lr=1.0)

    def joined(number):
        model = DistributedDataParallel(net, gradient_as_bucket_view=attach is not None)
        where = dict(address=f"{address}-{number}", rank=0, world_size=1, **options)
        if attach is not None:
            return model, attach(model, optimizer, **where)
        attachment = sluice.torch.attach(model, **where)
        if follows:
            attachment.follow(optimizer, scaler)
        return model, attachment

    model, attachment = joined(0)
    for step in range(STEPS):
        scaler.now = float(scales[step])
        for group, factor in zip(optimizer.param_groups, (1.0, slower if step > 5 else 1.0)):
            group["lr"] = rates[step] * factor
        if step == restart:  # as a run that goes on from a checkpoint, in another job
            saved = attachment.state_dict()
            attachment.detach()
            model, attachment = joined(1)
            attachment.load_state_dict(saved)
        inputs = inputs_of(step, fine)
        if step == infinite:
            inputs[0, 3, 5] = float("inf")
        optimizer.zero_grad()
        (model(inputs) * scaler.get_scale()).backward()
        if scaler.now == 1 and step != infinite:
            optimizer.step()
        else:
            scaler.step(optimizer)
    if attach is not None:
        attachment.flush()
    left = attachment.state_dict()
    attachment.detach()
    return net, left


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one[0].parameters(), other[0].parameters())) and (
        one[1].keys() == other[1].keys() and all(torch.equal(one[1][name], other[1][name])
                                                 for name in one[1]))


@pytest.mark.parametrize("options", [
    PRUNED, dict(wire="bfloat16"), dict(wire="int8"), dict(wire="int8", **PRUNED),
    dict(prune_momentum=0.5, **PRUNED)], ids=str)
def test_a_scaled_loss_trains_as_one_that_is_not(address, options):  # noqa: F811
    options = dict(fine=True, **options)  # whole numbers would lose nothing to rounding
    plain = train(address + "a", **options)
    assert any(bool(values.any()) for values in plain[1].values())
    assert same(plain, train(address + "b", scales=SCALES, **options))
    assert not same(plain, train(address + "c", scales=SCALES, follows=False, **options))


def test_a_checkpoint_is_taken_up_at_its_own_scale_and_rate(address):  # noqa: F811
    ways = dict(scales=SCALES, rates=RATES, **PRUNED)
    assert same(train(address + "a", **ways), train(address + "b", restart=6, **ways))


def test_a_step_that_is_not_finite_leaves_what_is_kept_in_its_unit(address):  # noqa: F811
    plain = train(address + "a", infinite=4, **PRUNED)
    assert all(bool(values.isfinite().all()) for values in plain[1].values())
    scaled = train(address + "b", infinite=4, scales=SCALES, **PRUNED)
    assert same(plain, scaled)


@pytest.mark.parametrize("slower", [1.0, 0.25])
@pytest.mark.parametrize("attach", [None, sluice.torch.overlap])
def test_a_gradient_counts_at_the_rate_of_its_own_step(address, slower, attach):  # noqa: F811
    # What was left behind at a rate of 0 counts at the next one, so its step does here, too.
    rates = [rate or RATES[-1] for rate in RATES]
    for follows in (True, False):
        if attach is not None and not follows:
            continue
        net, left = train(address + str(follows), rates=rates, slower=slower, follows=follows,
                          attach=attach, **PRUNED)
        for place, name in enumerate(("first", "second")):
            factors = [1.0 if place == 0 or step <= 5 else slower for step in range(STEPS)]
            whole = sum(inputs_of(step)[place] * rates[step] * factors[step]
                        for step in range(STEPS))
            rest = left[name].view(ROWS, COLUMNS) * rates[-1] * factors[-1]
            moved = -getattr(net, name).detach()
            assert bool(rest.any())
            assert torch.equal(moved + rest, whole) == follows


def test_a_rate_of_zero_is_passed_over(address):  # noqa: F811
    for number, rates in enumerate(([0.0] * 3 + [0.5] * 9, [0.5] * 6 + [0.0] * 6, [0.0] * 12)):
        net, left = train(f"{address}{number}", rates=rates, **PRUNED)
        assert all(bool(values.isfinite().all()) and bool(values.any()) for values in left.values())
        # At one rate but for 0, nothing is rescaled: as without following.
        assert same((net, left), train(f"{address}{number}x", rates=rates, follows=False, **PRUNED))


def test_optimizers_that_ignore_the_scale_of_gradients_have_no_unit(address):  # noqa: F811
    ways = dict(rates=RATES, make=torch.optim.Adam, **PRUNED)
    assert same(train(address + "a", **ways), train(address + "b", follows=False, **ways))


def test_nothing_is_followed_where_nothing_is_kept_and_mistakes_are_named(address):  # noqa: F811
    dist.is_initialized() or dist.init_process_group("gloo", store=dist.HashStore(), rank=0,
                                                     world_size=1)

    class Unseen:
        param_groups = ()

        def get_scale(self):
            raise AssertionError("nothing is kept")

    model = DistributedDataParallel(Net())
    with sluice.torch.attach(model, address + "a", rank=0, world_size=1) as attachment:
        attachment.follow(Unseen(), Unseen())
        model(inputs_of(0)).backward()
    kept = DistributedDataParallel(Net())
    with sluice.torch.attach(kept, address + "b", rank=0, world_size=1, **PRUNED) as attachment:
        with pytest.raises(errors.InvalidArgument, match="needs an optimizer.*not a int"):
            attachment.follow(1)
        with pytest.raises(errors.InvalidArgument, match="needs a GradScaler or None, not a int"):
            attachment.follow([], 1)
        attachment.follow([], Scaler())
        with pytest.raises(errors.InvalidArgument, match="has the scaler"):
            attachment.scale_residuals(2.0)
