"""Loops of every shape under overlap() against the same under attach(), bit for bit. Some change or
read parameters between optimizer.step() and the next forward through older references."""

import copy

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import late_job  # noqa: E402
import sluice  # noqa: E402
from late_job import check, images, plain_net, sgd, train  # noqa: E402


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


# ---- between step() and the next forward ----

class Kept:
    """The parameters as a list taken before the loop, and copies of what was seen of them."""

    def __init__(self):
        self.parameters, self.seen = [], []

    def optimizer(self, net):
        """Of a training that begins."""
        self.parameters = list(net.parameters())
        self.average = [p.detach().clone() for p in self.parameters]
        self.slow = {}
        return sgd(net)

    def see(self, values):
        self.seen += [value.detach().clone() for value in values]


def clips_the_list(kept, _model, _optimizer):  # as WGAN
    for p in kept.parameters:
        p.data.clamp_(-0.05, 0.05)


def clips_in_place(kept, _model, _optimizer):
    with torch.no_grad():
        for p in kept.parameters:
            p.clamp_(-0.05, 0.05)


def clips_through_groups(_kept, _model, optimizer):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.data.clamp_(-0.05, 0.05)


def max_norm(_kept, _model, optimizer):
    with torch.no_grad():
        for p in optimizer.param_groups[0]["params"]:
            norm = p.norm(2, dim=0, keepdim=True)
            p.mul_(norm.clamp(max=0.3) / (1e-8 + norm))


def lookahead(kept, _model, optimizer):
    for group in optimizer.param_groups:
        for fast in group["params"]:
            slow = kept.slow.setdefault(fast, torch.clone(fast.data).detach())
            slow.add_(fast.data - slow, alpha=0.5)
            fast.data.copy_(slow)


def rolls_back(kept, _model, _optimizer):
    kept.slow.setdefault("steps", []).append(None)
    if len(kept.slow["steps"]) % 3 == 1:
        kept.slow["saved"] = [p.data.clone() for p in kept.parameters]
    elif len(kept.slow["steps"]) % 3 == 0:
        for p, saved in zip(kept.parameters, kept.slow["saved"]):
            p.data.copy_(saved)


def sets_data(kept, _model, _optimizer):
    for p in kept.parameters:
        p.data = p.data * 0.5


def averages(kept, _model, _optimizer):  # as diffusers
    with torch.no_grad():
        for average, p in zip(kept.average, kept.parameters):
            average.sub_(0.1 * (average - p))


def averages_together(kept, _model, _optimizer):  # as timm
    torch._foreach_mul_(kept.average, 0.9)
    torch._foreach_add_(kept.average, [p.detach() for p in kept.parameters], alpha=0.1)


def norms(kept, _model, _optimizer):
    kept.see([p.norm() for p in kept.parameters])
    kept.see([nn.utils.parameters_to_vector(kept.parameters[1:])])


def copies(kept, _model, _optimizer):
    kept.see(copy.deepcopy(kept.parameters[:2]) + [torch.cat(
        [p.reshape(-1) for p in kept.parameters[2:]])])
    assert {type(p) for p in copy.deepcopy(kept.parameters)} == {nn.Parameter}


ACTIONS = [clips_the_list, clips_in_place, clips_through_groups, max_norm, lookahead, rolls_back,
           sets_data, averages, averages_together, norms, copies]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_the_gap_after_a_step_comes_out_as_with_attach(monkeypatch, caplog, action):
    found = {}
    for way in (False, True):
        kept = Kept()
        values, attachment = train(monkeypatch, way, plain_net, kept.optimizer,
                                   after_step=lambda m, o: action(kept, m, o))  # noqa: B023
        found[way] = values + kept.average + kept.seen
    assert late_job.equal(found[True], found[False])
    assert attachment.overlapped_steps == 5
    line, = (r.getMessage() for r in caplog.records if r.name == "sluice")
    assert "between optimizer.step() and the next forward" in line and attachment.reason in line
    assert "test_torch_overlap_loops.py:" in line and "flush" not in line


class LateBranch(nn.Module):
    """Uses a parameter by an old reference alone, from the third forward on."""

    def __init__(self):
        super().__init__()
        self.layer, self.late = nn.Linear(6, 6), nn.Linear(6, 6)
        self.references = [self.late.weight]
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.layer(x)
        return x @ self.references[0] if self.calls > 2 else self.late(x)


def sequences():
    return torch.randn(2, 5, 6, requires_grad=True)


def test_a_branch_that_begins_late_uses_the_parameter_after_its_step(monkeypatch):
    attachment = check(monkeypatch, LateBranch, sgd, inputs=sequences,
                       ddp=dict(find_unused_parameters=True))
    assert attachment.reason is None  # it waits for what it uses, as every layer


def test_a_penalty_made_before_the_forward_is_of_the_parameters_after_the_step(monkeypatch):
    def run(way):
        torch.manual_seed(7)
        net = plain_net()
        optimizer, parameters, penalties = sgd(net), list(net.parameters()), []
        model, attachment = late_job.attach(monkeypatch, net, optimizer if way else None)
        for _ in range(5):
            penalty = sum(p.square().sum() for p in parameters)
            penalties.append(penalty.detach())
            (model(images()).square().mean() + 0.01 * penalty).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = late_job.values(net, optimizer) + penalties
        attachment.detach()
        return found
    assert late_job.equal(run(True), run(False))


def test_zeroing_and_looking_at_facts_wait_for_nothing(monkeypatch):
    net = plain_net()
    optimizer = sgd(net)
    parameters = list(net.parameters())
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    for _ in range(2):
        model(images()).sum().backward()
        attachment.job.waited.clear()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for p in parameters:
            assert isinstance(p, nn.Parameter) and p.is_leaf and p.requires_grad
            assert p.grad is None and p.shape.numel() == p.numel() and hash(p) == id(p)
    assert attachment.job.waited == []
    attachment.detach()
    assert {type(p) for p in parameters} == {nn.Parameter}


def test_a_change_through_a_view_that_was_made_earlier_is_an_error_with_the_name(monkeypatch):
    kept = []

    def with_views(net):
        kept[:] = [p.detach() for p in net.parameters()]
        return sgd(net)

    def clip(_model, _optimizer):
        kept[4].clamp_(-0.05, 0.05)
    with pytest.raises(sluice.InvalidArgument, match=r"'4\.weight'.*flush\(\)"):
        train(monkeypatch, True, plain_net, with_views, after_step=clip)
