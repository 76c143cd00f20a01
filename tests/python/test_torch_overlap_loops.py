"""Loops of every shape under overlap() against the same under attach(), bit for bit."""

import pytest

torch = pytest.importorskip("torch")

import late_job  # noqa: E402
from late_job import check, images, plain_net, sgd  # noqa: E402


CLEARINGS = {
    "none": lambda o, model: o.zero_grad(set_to_none=True),
    "zeros": lambda o, model: o.zero_grad(set_to_none=False),
    "module": lambda o, model: model.zero_grad(set_to_none=False),
    "by hand": lambda o, model: [setattr(p, "grad", None) for p in o.param_groups[0]["params"]],
    "never": lambda o, model: None}


@pytest.mark.parametrize("name", CLEARINGS)
def test_gradients_may_be_cleared_in_any_way_before_the_step_has_happened(monkeypatch, name):
    check(monkeypatch, plain_net, sgd, clear=CLEARINGS[name])


def loop_of_another_shape(monkeypatch, overlapping, body):
    torch.manual_seed(7)
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer if overlapping else None)
    for _ in range(6):
        body(model, optimizer)
    found = late_job.values(net, optimizer)
    attachment.detach()
    return found, attachment


def clears_before_backward(model, optimizer):
    loss = model(images()).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()


def accumulates(model, optimizer):
    with model.no_sync():
        model(images()).square().mean().backward()
    model(images()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def accumulates_sums(model, optimizer):
    for _ in range(2):
        model(images()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_twice(model, optimizer):
    model(images()).square().mean().backward()
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad()


def skips_steps(model, optimizer):
    for skip in (False, True, False):
        model(images()).square().mean().backward()
        if not skip:
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def goes_back_twice(model, optimizer):
    loss = model(images()).square().mean()
    loss.backward(retain_graph=True)  # the second one adds to this one's averages
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def goes_back_again_after_the_step(model, optimizer):
    loss = model.module[0].bias.sum() + model(images()).square().mean().detach()
    model(images()).square().mean().backward()
    optimizer.step()
    loss.backward()  # through no parameter's value, so it may
    optimizer.zero_grad(set_to_none=False)


def uses_closures(model, optimizer):
    batch = images()

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss
    assert optimizer.step(closure).requires_grad


def evaluates(model, optimizer):
    model(images()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.inference_mode():
        model.module[0].bias.add_(model.eval()(torch.ones(2, 3, 8, 8)).sum() / 100)
    model.train()


@pytest.mark.parametrize("body", [clears_before_backward, accumulates, accumulates_sums,
                                  steps_twice, skips_steps, goes_back_twice,
                                  goes_back_again_after_the_step, uses_closures, evaluates])
def test_loops_of_other_shapes_come_out_as_with_attach(monkeypatch, body):
    wanted, _ = loop_of_another_shape(monkeypatch, False, body)
    found, attachment = loop_of_another_shape(monkeypatch, True, body)
    assert late_job.equal(found, wanted)
    # Whose second backward of one forward adds to the averages has waited for them.
    assert attachment.overlapped_steps >= 2 or body is goes_back_twice
    assert attachment.reason is None
