"""overlap() against attach(), bit for bit, with results that land as late as they can."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import late_job  # noqa: E402
import sluice  # noqa: E402
from late_job import check, images, plain_net, sgd, train  # noqa: E402

optim = torch.optim
rates = optim.lr_scheduler


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "decay": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: optim.Adam(p, weight_decay=0.01),
    "amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adadelta": optim.Adadelta, "adamax": optim.Adamax, "nadam": optim.NAdam,
    "radam": optim.RAdam, "asgd": lambda p: optim.ASGD(p, t0=2), "rprop": optim.Rprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps_as_with_attach(monkeypatch, name):
    schedule = lambda o: rates.StepLR(o, 2, 0.5)
    check(monkeypatch, plain_net, lambda net: OPTIMIZERS[name](net.parameters()),
          make_schedule=schedule, steps=8, overlapped=7)


SCHEDULES = {
    "onecycle": lambda o: rates.OneCycleLR(o, 0.2, total_steps=20),
    "cosine": lambda o: rates.CosineAnnealingLR(o, 5),
    "cyclic": lambda o: rates.CyclicLR(o, 0.01, 0.3, step_size_up=3)}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_runs_before_the_update_does_not_change_it(monkeypatch, name):
    check(monkeypatch, plain_net, sgd, make_schedule=SCHEDULES[name], steps=12, overlapped=11)


def test_a_schedule_of_betas_and_of_two_groups_is_noted_too(monkeypatch):
    def two_groups(net):
        own = list(net.parameters())
        return optim.AdamW([{"params": own[::2], "lr": 0.01}, {"params": own[1::2]}], lr=0.02)
    check(monkeypatch, plain_net, two_groups,
          make_schedule=lambda o: rates.OneCycleLR(o, [0.02, 0.1], total_steps=20))


def test_a_schedule_made_after_overlap_counts_the_steps(monkeypatch, recwarn):
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    schedule = rates.StepLR(optimizer, 1)
    for _ in range(3):
        model(images()).sum().backward()
        optimizer.step()
        schedule.step()
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]
    assert schedule.get_last_lr()[0] == pytest.approx(1e-4)
    attachment.detach()


# ---- modules that use parameters in other ways than by their owner's forward ----

class Unusual(nn.Module):
    """Parameters of its own, a child used without calling it, a tied weight, a plain reference."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.child = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.child.weight
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.memory = nn.LSTM(6, 6, batch_first=True)
        self.normed = nn.utils.weight_norm(nn.Linear(6, 6))
        self.hidden = nn.Linear(6, 6)
        self.references = [self.hidden.weight, self.hidden.bias]
        self.rebuilt = nn.Linear(6, 6)
        self.never = nn.Linear(3, 3)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x):
        x = F.linear(x * self.scale, self.child.weight, self.child.bias)
        x = F.linear(x, *self.references)
        x, _ = self.attention(x, x, x)
        x, _ = self.memory(x)
        x = checkpoint(self.rebuilt, x, use_reentrant=False)
        return self.frozen(self.normed(self.tied(x)))


def sequences():
    return torch.randn(2, 5, 6, requires_grad=True)


@pytest.mark.parametrize("zeros", [False, True], ids=["none", "zeros"])
def test_parameters_are_up_to_date_however_a_forward_gets_at_them(monkeypatch, zeros):
    # With zeros a parameter that nobody uses is still subject to momentum and weight decay.
    attachment = check(monkeypatch, Unusual, lambda net: optim.AdamW(net.parameters()),
                       inputs=sequences, ddp=dict(find_unused_parameters=True),
                       clear=lambda o, model: o.zero_grad(set_to_none=not zeros))
    names = [t.name for t in attachment.job.tensors]
    waited = [names[i] for i in attachment.job.waited[-2 * len(names):-len(names)]]
    assert waited[:2] == ["hidden.weight", "hidden.bias"], "the plain references come first"
    assert waited.index("scale") < waited.index("child.weight") < waited.index(
        "attention.out_proj.weight") < waited.index("memory.weight_hh_l0") < waited.index(
            "rebuilt.weight") < waited.index("tied.bias") < waited.index("never.weight")


class Fickle(nn.Module):
    """Uses a plain reference from the third forward on only, as an extension in C++ does: by no
    function of torch that Python sees."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.offset = nn.Parameter(torch.zeros(6))
        self.references = [self.offset]
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x = self.layer(x)
        with torch._C.DisableTorchFunction():
            return x + (self.references[0] if self.calls > 2 else self.offset)


@pytest.mark.parametrize("come_early", [0, 100])
def test_a_use_that_nothing_has_announced_is_an_error_and_not_a_wrong_step(monkeypatch, come_early):
    monkeypatch.setattr(late_job.LateJob, "come_early", come_early)
    with pytest.raises(sluice.InvalidArgument, match="'offset'.*flush"):
        train(monkeypatch, True, Fickle, sgd, inputs=sequences)


def test_branches_that_change_from_step_to_step_are_followed(monkeypatch):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            order = [0, 1, 2] if self.calls % 2 else [2, 0]
            for index in order:
                x = self.layers[index](x)
            return x
    check(monkeypatch, Branching, sgd, inputs=sequences, ddp=dict(find_unused_parameters=True))


@pytest.mark.parametrize("ddp", [dict(static_graph=True), dict(bucket_cap_mb=25)],
                         ids=lambda ddp: next(iter(ddp)))
def test_other_ways_of_ddp_come_out_as_with_attach(monkeypatch, ddp):
    # Of a static graph DDP moves the buckets after the second backward.
    check(monkeypatch, plain_net, sgd, ddp=ddp, overlapped=4 if "static_graph" in ddp else 5)


def test_a_model_may_be_trained_in_evaluation_mode(monkeypatch):
    check(monkeypatch, lambda: plain_net().eval(), sgd)


def test_a_forward_that_fails_before_the_first_backward_does_not_count(monkeypatch):
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.second, self.first = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            if x.shape[-1] != 6:
                raise ValueError(self.second(torch.ones(6)).sum().item())
            return self.second(self.first(x))

    net = Picky()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    for width in (5, 6, 6, 5, 6):
        try:
            model(torch.ones(2, width)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        except ValueError:
            pass
    assert attachment.overlapped_steps == 2
    names = [name for name, _ in net.named_parameters()]
    order = sorted(names, key=lambda name: attachment.job.priorities[names.index(name)])
    assert order == ["first.weight", "first.bias", "second.weight", "second.bias"]
    attachment.detach()
    assert "forward" not in vars(net)


def test_parameters_that_are_frozen_on_the_way_stay_as_they_are(monkeypatch):
    seen = []

    def freeze(model, _optimizer):
        seen.append(None)
        if len(seen) % 6 == 3:  # in both trainings
            model.module[0].requires_grad_(False)
    check(monkeypatch, plain_net, sgd, after_step=freeze, ddp=dict(find_unused_parameters=True),
          clear=lambda o, model: o.zero_grad(set_to_none=True))


def test_backward_waits_for_nothing_and_each_layer_for_its_own(monkeypatch):
    torch.manual_seed(7)
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    waited = attachment.job.waited
    everything = list(range(len(list(net.parameters()))))
    for step in range(4):
        loss = model(images()).sum()
        if step >= 2:
            assert waited == everything, "not in the order of the layers"
        waited.clear()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 1:
            assert waited == [], "backward or step() has waited"
    attachment.job.applied.clear()
    net[0].weight  # its layer: weight and bias
    assert waited == attachment.job.applied == [0, 1]
    attachment.detach()
    assert sorted(waited) == everything, "something was left in flight"


def test_what_has_come_is_applied_with_the_layer_that_is_needed(monkeypatch):
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    for _ in range(2):
        model(images()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    attachment.job.come_early = 3
    attachment.job.applied.clear()
    parts = []
    monkeypatch.setattr(optim.SGD, "step", lambda optimizer: parts.append(
        [len(group["params"]) for group in optimizer.param_groups]))
    model(images())
    assert attachment.job.applied == list(range(8)) and parts == [[4], [4]]
    monkeypatch.undo()
    attachment.detach()


# ---- what somebody looks at in between ----

def test_states_and_parameters_are_those_after_the_step(monkeypatch):
    looks = {
        "state": lambda m, o: copy.deepcopy(m.state_dict()),
        "parameters": lambda m, o: [p.detach().clone() for p in m.parameters()],
        "optimizer": lambda m, o: copy.deepcopy(o.state_dict()["state"]),
        "copy": lambda m, o: [p.detach().clone() for p in copy.deepcopy(m.module).parameters()],
        "pickle": lambda m, o: pickle.loads(pickle.dumps(m.module)).state_dict(),
        "gradient": lambda m, o: [p.grad.clone() for p in m.module[0].parameters()],
        "attribute": lambda m, o: m.module[0].weight.detach().clone()}

    def flat(found):
        if isinstance(found, dict):
            found = found.values()
        return [found] if isinstance(found, torch.Tensor) or not hasattr(found, "__iter__") else [
            t for item in found for t in flat(item)]

    for name, look in looks.items():
        seen = {}
        for overlapping in (False, True):
            seen[overlapping] = []
            train(monkeypatch, overlapping, plain_net, sgd, steps=3,
                  after_step=lambda m, o: seen[overlapping].append(flat(look(m, o))))
        for wanted, found in zip(seen[False], seen[True]):
            assert late_job.equal(found, wanted), name


def test_a_checkpoint_can_be_loaded_between_steps(monkeypatch):
    def reload(model, optimizer):
        file = io.BytesIO()
        torch.save([model.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        states = torch.load(file)
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])
    check(monkeypatch, plain_net, lambda net: optim.Adam(net.parameters()), after_step=reload)


# ---- priorities ----

def test_priorities_are_the_order_of_use_and_can_be_set(monkeypatch):
    torch.manual_seed(7)
    net = Unusual()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer, find_unused_parameters=True)
    attachment.set_priority("never.bias", 17)
    job, names = attachment.job, [name for name, p in net.named_parameters() if p.requires_grad]
    priority = {}

    def step():
        model(sequences()).sum().backward()
        optimizer.step()
        priority.update(zip(names, (job.priorities[i] for i in range(len(names)))))

    step()
    assert priority["never.bias"] == 17 and priority["scale"] == 2
    used = sorted((p, name) for name, p in priority.items() if not name.startswith("never"))
    assert [name for _, name in used][:5] == [
        "hidden.weight", "hidden.bias", "scale", "child.weight", "child.bias"]
    attachment.set_priority(net.scale, 255)
    step()
    assert priority["scale"] == 255 and priority["never.bias"] == 17
    for parameter, value, text in (("scale", 256, "from 0"), ("scale", -1, "from 0"),
                                   ("scale", 1.5, "from 0"), ("none", 1, "'none' is not in"),
                                   (nn.Parameter(torch.ones(2)), 1, "not in the job")):
        with pytest.raises(sluice.InvalidArgument, match=text):
            attachment.set_priority(parameter, value)
    attachment.detach()


def test_priorities_with_attach_are_the_order_of_the_calls(monkeypatch):
    net = Unusual()
    model, attachment = late_job.attach(monkeypatch, net, find_unused_parameters=True)
    attachment.set_priority("scale", 200)
    model(sequences()).sum().backward()
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    priorities = attachment.job.priorities
    assert priorities[names.index("scale")] == 200
    order = sorted(names, key=lambda name: priorities[names.index(name)])
    place = [order.index(name) for name in (
        "attention.in_proj_weight", "attention.out_proj.weight", "memory.weight_ih_l0",
        "rebuilt.weight", "normed.weight_v", "never.weight")]
    assert place == sorted(place), "a child that is used without being called goes with its parent"
