"""A step of k of n ranks counts k/n: in its gradients, or in the optimizer's rate."""

import pytest
import ranks

torch = pytest.importorskip("torch")


def ones(rank, options, make):
    """Every rank's gradient is 1 everywhere, and rank 2 is late: what each step made of it."""
    import time

    import sluice.torch
    import torch

    import ddp_worker as w
    torch.set_num_threads(1)
    net = w.Model(shapes=((3,),))
    model = torch.nn.parallel.DistributedDataParallel(
        net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, policy="fixed", k=2, late="requeue",
                                     **options.get("attach", {}))
    optimizer = getattr(torch.optim, make)(net.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen = []

    def update(step):
        before, rate = net.p0[0].item(), optimizer.param_groups[0]["lr"]
        gradient = net.p0.grad[0].item()
        optimizer.step()
        assert optimizer.state_dict()["param_groups"][0]["lr"] == rate
        scheduler.step()
        seen.append(dict(share=attachment.report(step).share, gradient=gradient, rate=rate,
                         scheduled=scheduler.get_last_lr()[0], moved=before - net.p0[0].item()))

    loop = sluice.torch.Loop(attachment, optimizer, update=update, **options.get("loop", {}))
    for _ in loop.steps(12):
        time.sleep(0.1 if rank == 2 else 0.03)
        model([torch.ones(3)]).backward()
    return dict(seen=seen, last=net.p0.tolist())


@pytest.mark.parametrize("make, options, place", [
    ("SGD", {}, "gradient"), ("Adam", {}, "rate"), ("SGD", {"loop": {"share": "rate"}}, "rate"),
    ("Adam", {"loop": {"share": "gradient"}}, "gradient"),
    ("SGD", {"attach": {"averaging": "weight"}}, None)])
def test_a_share_is_in_the_gradient_or_in_the_rate(appliance, tmp_path, make, options, place):
    arguments = dict(options=options, make=make)
    values = ranks.run(ones, 3, tmp_path, box=appliance, arguments=arguments, timeout_s=60)
    assert values[0]["last"] == values[1]["last"] == values[2]["last"]
    seen = values[0]["seen"]
    assert len(seen) == 12
    # Two of three; one, where the late rank had nothing for this step: a pass takes a place.
    assert seen[0]["share"] == 1 and {one["share"] for one in seen[1:]} & {1 / 3, 2 / 3}
    assert {one["share"] for one in seen} <= {1 / 3, 2 / 3, 1}
    for step, one in enumerate(seen):
        share = torch.tensor(one["share"]).item()  # as float32 has it
        assert one["gradient"] == (share if place == "gradient" else 1.0)
        assert one["rate"] == 0.5 ** (step + 1) and one["scheduled"] == 0.5 ** (step + 2)
        if make == "SGD":
            wanted = one["rate"] if place is None else one["rate"] * one["share"]
            assert one["moved"] == pytest.approx(wanted, abs=1e-6)
        elif place == "rate":  # Adam moves by its rate, whatever constant the gradient is
            assert one["moved"] == pytest.approx(one["rate"] * one["share"], abs=1e-6)


def test_an_unknown_place_is_refused_by_name():
    import sluice
    from sluice import _torch_share
    with pytest.raises(sluice.InvalidArgument, match="share='half'.*gradient, rate"):
        _torch_share.places([], "half", "world")


def test_who_ignores_the_scale_of_gradients():
    from sluice import _torch_share
    parameter = [torch.nn.Parameter(torch.zeros(1))]
    made = [torch.optim.SGD(parameter, lr=1), torch.optim.AdamW(parameter, lr=1),
            torch.optim.ASGD(parameter), torch.optim.RMSprop(parameter)]
    wanted = ["gradient", "rate", "gradient", "rate"]
    assert _torch_share.places(made, None, "world") == wanted
    assert _torch_share.places(made, None, "weight") == [None] * 4
    line = _torch_share.describe(made[:2], wanted[:2])
    assert line == ("a step of k of the n ranks counts k/n, in the gradients of SGD and the "
                    "learning rate of AdamW")
