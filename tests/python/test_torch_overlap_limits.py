"""The limits of overlap(), its errors, and its end. Results land as late as they can."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
nn, optim = torch.nn, torch.optim

import late_job  # noqa: E402
import sluice  # noqa: E402
import sluice.torch  # noqa: E402
from late_job import check, images, plain_net, sgd  # noqa: E402
from torch.optim import optimizer as optimizers  # noqa: E402


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "sluice"]


def clip(model, optimizer):
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


class Scaler:
    """What a GradScaler does: scales the gradients back, and skips steps that are not finite."""

    def step(self, model, optimizer):
        grads = [p.grad for p in model.parameters()]
        assert all(g.isfinite().all() for g in grads)
        torch._foreach_mul_(grads, 0.5)


@pytest.mark.parametrize("change", [clip, Scaler().step, lambda m, o: nn.utils.clip_grad_value_(
    m.parameters(), 1e-3)], ids=["norm", "scaler", "value"])
def test_whoever_reads_gradients_before_the_step_gets_the_averages(monkeypatch, caplog, change):
    attachment = check(monkeypatch, plain_net, sgd, after_backward=change, overlapped=0)
    line, = warnings_of(caplog)
    assert "reads gradients between backward() and optimizer.step()" in line
    assert "test_torch_overlap_limits.py:" in line and attachment.reason in line
    if change is clip:
        assert "clip_grad_norm_" in line


def test_a_step_in_which_gradients_are_read_is_the_only_one_that_waits(monkeypatch, caplog):
    norms = []

    def sometimes(model, _optimizer):
        norms.append(None)
        if len(norms) % 3 == 0:
            norms[-1] = sum(p.grad.abs().sum() for p in model.parameters()).item()
    check(monkeypatch, plain_net, sgd, after_backward=sometimes, overlapped=3)
    line, = warnings_of(caplog)
    assert norms[:6] == norms[6:] and "a script (test_torch_overlap_limits.py:" in line


def test_optimizers_that_are_not_known_run_as_with_attach(monkeypatch, caplog):
    class Mine(optim.SGD):
        pass
    for make in (lambda net: Mine(net.parameters(), lr=0.1),):
        check(monkeypatch, plain_net, make, overlapped=0)
    line, = warnings_of(caplog)
    assert "Mine is not known" in line and "AdamW" in line


@pytest.mark.parametrize("kind, reason", [
    (optim.LBFGS, "not known"), (optim.SGD, None), (optim.SGD, "has hooks around its step")],
    ids=["lbfgs", "sgd", "hooks"])
def test_closures_overlap_where_steps_do(monkeypatch, caplog, kind, reason):
    hooked = reason and "hooks" in reason
    if hooked and not hasattr(optim.SGD, "register_step_pre_hook"):
        pytest.skip("hooks around optimizer.step() need torch 2: ./run test-torch2")

    def run(overlapping):
        torch.manual_seed(7)
        net = plain_net().to(memory_format=torch.contiguous_format)  # LBFGS wants it
        optimizer = kind(net.parameters(), lr=0.01)
        if hooked:
            optimizer.register_step_pre_hook(lambda *_: None)
        model, attachment = late_job.attach(monkeypatch, net, optimizer if overlapping else None)
        batch = images()

        def closure():
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss
        losses = []
        for _ in range(3):
            closure()
            losses.append(optimizer.step(closure).item())
        found = late_job.values(net, optimizer)[:7]
        attachment.detach()
        return losses, found
    (wanted_losses, wanted), (losses, found) = run(False), run(True)
    assert losses == wanted_losses and late_job.equal(found, wanted)
    assert [reason in line for line in warnings_of(caplog)] == ([True] if reason else [])


@pytest.mark.parametrize("when", ["pre", "post"])
def test_hooks_of_all_optimizers_run_once_a_step(monkeypatch, caplog, when):
    register = getattr(optimizers, f"register_optimizer_step_{when}_hook", None)
    if register is None:
        pytest.skip("hooks around optimizer.step() need torch 2: ./run test-torch2")
    seen = []
    handle = register(lambda optimizer, *_: seen.append(len(optimizer.param_groups[0]["params"])))
    try:
        check(monkeypatch, plain_net, sgd, overlapped=0)
    finally:
        handle.remove()
    assert seen == [8] * 12  # whole steps: six with attach(), six with overlap()
    line, = warnings_of(caplog)
    assert "has hooks around its step" in line


def test_another_optimizer_over_the_same_model_makes_its_steps_wait(monkeypatch, caplog):
    others = []

    def half(net):
        others[:] = [optim.SGD(list(net.parameters())[::2], lr=0.1)]
        return optim.SGD(list(net.parameters())[1::2], lr=0.1)

    def other_step(_model, _optimizer):
        others[0].step()
        others[0].zero_grad()
    check(monkeypatch, plain_net, half, after_backward=other_step, overlapped=0)
    line, = warnings_of(caplog)
    assert "another SGD than the one given to overlap() (test_torch_overlap_limits.py:" in line


def test_parameters_outside_of_the_model_are_stepped_at_once(monkeypatch):
    extra = nn.Parameter(torch.zeros(3))

    def with_extra(net):
        extra.data.zero_()
        extra.grad = None
        return optim.SGD([*net.parameters(), extra], lr=0.5)

    seen = []
    check(monkeypatch, plain_net, with_extra, steps=3, overlapped=2,
          after_backward=lambda m, o: setattr(extra, "grad", torch.ones(3)),
          after_step=lambda m, o: seen.append(extra.tolist()))
    assert seen == 2 * [[-0.5] * 3, [-1.0] * 3, [-1.5] * 3]


# ---- errors and the end ----

def overlapped_step(monkeypatch, steps=2):
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    for _ in range(steps):
        model(images()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, attachment


def test_a_lost_peer_is_raised_by_the_forward_and_again_after_it(monkeypatch, caplog):
    model, optimizer, attachment = overlapped_step(monkeypatch)
    attachment.job.check = lambda: None  # the forward is the first to hear of it
    attachment.job.error = sluice.PeerLost("rank 1 was lost")
    for action in (lambda: model(images()), lambda: model.state_dict(), optimizer.state_dict):
        with pytest.raises(sluice.PeerLost, match="rank 1 was lost"):
            action()
    attachment.detach()
    assert "the last step is missing in 8 of 8 parameters" in warnings_of(caplog)[0]
    assert attachment.job.closed and not any(p.isnan().any() for p in model.parameters())


def test_detach_raises_for_a_last_step_that_nobody_else_has_taken(monkeypatch, caplog):
    for leave in ("detach", "with"):
        model, _, attachment = overlapped_step(monkeypatch)
        attachment.job.error = sluice.PeerLost("rank 1 has left after step 1")
        with pytest.raises(sluice.PeerLost, match="missing in 8 of 8 parameters: rank 1 has left"):
            if leave == "detach":
                attachment.detach()
            else:
                with attachment:
                    pass
        assert attachment.job.closed and not warnings_of(caplog)
        attachment.detach()
        assert not any(p.isnan().any() for p in model.parameters())


ENDS = """
import atexit
import late_job, sluice, torch
class Patch:
    setattr = staticmethod(setattr)
net = late_job.plain_net()
atexit.register(lambda: print("after", flush=False))  # runs after overlap()'s own
optimizer = late_job.sgd(net)
model, attachment = late_job.attach(Patch, net, optimizer)
for _ in range(2):
    model(late_job.images()).sum().backward()
    optimizer.step()
print("trained", flush=False)
attachment.job.error = sluice.PeerLost("rank 1 has left") if {lost} else None
"""


@pytest.mark.parametrize("lost", [False, True])
def test_the_exit_status_says_that_the_last_step_is_missing(lost, tmp_path):
    report = tmp_path / "report"  # for `launch`
    environment = {**os.environ, "SLUICE_LAUNCH_REPORT": str(report), "PYTHONPATH": os.pathsep.join(
        (os.environ["PYTHONPATH"], os.path.dirname(__file__)))}
    ended = subprocess.run([sys.executable, "-c", ENDS.format(lost=lost)], env=environment,
                           capture_output=True, text=True, timeout=300)
    assert (ended.returncode != 0) == lost, ended.stderr
    assert ended.stdout == "trained\nafter\n"
    text = "sluice.errors.PeerLost: the last step is missing in 8 of 8 parameters: rank 1 has left"
    assert (text in ended.stderr) == lost, ended.stderr
    assert not lost or report.read_text() == "PeerLost"


def test_an_interrupted_wait_can_be_repeated(monkeypatch):
    model, optimizer, attachment = overlapped_step(monkeypatch)
    attachment.job.error = KeyboardInterrupt()
    attachment.job.check = lambda: None
    with pytest.raises(KeyboardInterrupt):
        model(images())
    attachment.job.error = None
    assert model(images()).isfinite().all()
    attachment.detach()


def test_after_detach_model_and_optimizer_work_as_before(monkeypatch):
    model, optimizer, attachment = overlapped_step(monkeypatch)
    attachment.detach()
    assert type(model.module[0]._parameters).__name__ != "WatchedParameters"
    assert attachment.job.closed
    assert not {"step", "state_dict", "load_state_dict"} & set(vars(optimizer))
    before = model.module[0].bias.detach().clone()
    model.module(images()).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.module[0].bias)


def test_detach_puts_back_what_a_scheduler_made_before_has_left(monkeypatch):
    net = plain_net()
    optimizer = sgd(net)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    counted, own = optimizer.step, dict(vars(optimizer))
    _, attachment = late_job.attach(monkeypatch, net, optimizer)
    assert optimizer.step is not counted
    attachment.detach()
    assert vars(optimizer).get("step") == own.get("step") and optimizer.step == counted


def test_a_scheduler_made_after_overlap_keeps_its_step_when_that_is_detached(monkeypatch):
    net = plain_net()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scheduled = optimizer.step
    attachment.detach()
    before = model.module[0].bias.detach().clone()
    model.module(images()).sum().backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.step == scheduled and not torch.equal(before, model.module[0].bias)


def test_mistakes_are_refused_with_the_remedy(monkeypatch):
    net = plain_net()
    with pytest.raises(sluice.InvalidArgument, match="gradient_as_bucket_view=True"):
        late_job.attach(monkeypatch, net, sgd(net), gradient_as_bucket_view=False)
    with pytest.raises(sluice.InvalidArgument, match="one optimizer, not a list"):
        late_job.attach(monkeypatch, net, [sgd(net)])
    with pytest.raises(sluice.InvalidArgument, match="sluice.torch.Loop"):
        late_job.attach(monkeypatch, net, sgd(net), process_group=sluice.torch.solo_group(0, 1))
