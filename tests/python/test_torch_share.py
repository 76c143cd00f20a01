"""A step of k of n ranks counts k/n: in its gradients, or in the optimizer's rate."""

import contextlib
import functools

import pytest
import ranks

torch = pytest.importorskip("torch")


def ones(rank, options, make):
    """Every rank's gradient is 1 everywhere, and rank 2 is late: what each step made of it."""
    import logging
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
    optimizer = getattr(torch.optim, make)(net.parameters(), lr=0.5,
                                           **options.get("optimizer", {}))
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

    said, log = [], logging.Handler()
    log.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("sluice").addHandler(log)
    loop = sluice.torch.Loop(attachment, optimizer, update=update, **options.get("loop", {}))
    said = said[:]
    for _ in loop.steps(12):
        time.sleep(0.1 if rank == 2 else 0.03)
        model([torch.ones(3)]).backward()
    return dict(seen=seen, last=net.p0.tolist(), said=said)


@pytest.mark.parametrize("make, options, place", [
    ("SGD", {}, "gradient"), ("Adam", {}, "moments"), ("SGD", {"loop": {"share": "rate"}}, "rate"),
    ("Adam", {"loop": {"share": "gradient"}}, "gradient"),
    ("Adam", {"loop": {"share": "rate"}}, "rate"),
    ("SGD", {"optimizer": {"momentum": 0.5}}, "momentum"),
    ("SGD", {"attach": {"averaging": "weight"}}, None)])
def test_a_share_is_in_the_gradient_or_in_the_rate(appliance, tmp_path, make, options, place):
    arguments = dict(options=options, make=make)
    values = ranks.run(ones, 3, tmp_path, box=appliance, arguments=arguments, timeout_s=300)
    assert values[0]["last"] == values[1]["last"] == values[2]["last"]
    words = {"gradient": "the gradients of", "rate": "the learning rate of", None: "",
             "momentum": "the gradients of", "moments": "the learning rate of"}
    lines = [f"a step of k of the n ranks counts k/n, in {words[place]} {make}"] if place else []
    for value in values:
        assert [line.split(", whose")[0] for line in value["said"]] == lines
        lines = []  # rank 0 says so for all
    seen = values[0]["seen"]
    assert len(seen) == 12
    # Two of three; one, where the late rank had nothing for this step: a pass takes a place.
    assert seen[0]["share"] == 1 and {one["share"] for one in seen[1:]} & {1 / 3, 2 / 3}
    assert {one["share"] for one in seen} <= {1 / 3, 2 / 3, 1}
    velocity = 0
    for step, one in enumerate(seen):
        share = torch.tensor(one["share"]).item()  # as float32 has it
        assert one["gradient"] == (share if place in ("gradient", "momentum") else 1.0)
        assert one["rate"] == 0.5 ** (step + 1) and one["scheduled"] == 0.5 ** (step + 2)
        if place == "momentum":
            velocity = 0.5 * velocity + share
            late = 1 / share - 1
            at_once = late / (0.5 + 0.5 * late)
            assert one["moved"] == pytest.approx(one["rate"] * share ** 0.5 * (
                velocity * (1 - 0.5 * at_once) + at_once * share), abs=1e-6)
        elif make == "SGD":
            wanted = one["rate"] if place is None else one["rate"] * one["share"]
            assert one["moved"] == pytest.approx(wanted, abs=1e-6)
        elif place != "gradient":  # Adam moves by its rate, whatever constant the gradient is
            power = 1.5 if place == "moments" else 1
            assert one["moved"] == pytest.approx(one["rate"] * one["share"] ** power, abs=1e-6)


def moves(optimizer, parameter, gradients, around):
    """The parameter after each step with one of these gradients."""
    seen = []
    for gradient in gradients:
        parameter.grad = torch.full_like(parameter, gradient)
        with around():
            optimizer.step()
        seen.append(parameter.detach().clone())
    return torch.stack(seen)


def made_sgd(**options):
    parameter = torch.nn.Parameter(torch.tensor([0.3, -2.0]))
    return torch.optim.SGD([parameter], **{"lr": 0.1, "momentum": 0.9, **options}), parameter


def test_one_step_late_is_nesterov_s_momentum_and_none_is_plain():
    from sluice import _torch_share
    gradients = [1.0, -3.0, 0.5, 2.0, 0.0, 1.0]
    nesterov = moves(*made_sgd(lr=0.1 * 0.5 ** 0.5, nesterov=True), gradients,
                     contextlib.nullcontext)
    optimizer, parameter = made_sgd()
    caught_up = moves(optimizer, parameter, gradients,
                      lambda: _torch_share.around("momentum", optimizer, 0.5))
    assert torch.allclose(caught_up, nesterov, atol=1e-6)
    plain = moves(*made_sgd(), gradients, contextlib.nullcontext)
    optimizer, parameter = made_sgd()
    assert torch.equal(plain, moves(optimizer, parameter, gradients,
                                    lambda: _torch_share.around("momentum", optimizer, 1)))


@pytest.mark.parametrize("place", ["gradient", "rate", "momentum", "moments", None])
def test_a_step_in_which_nobody_had_a_gradient_moves_nothing(place):
    from sluice import _torch_share
    parameter = torch.nn.Parameter(torch.ones(2))
    make = torch.optim.Adam if place == "moments" else functools.partial(
        torch.optim.SGD, momentum=0.9)
    optimizer = make([parameter], lr=0.1)
    for gradient in (torch.ones(2), None):
        parameter.grad, before = gradient, parameter.detach().clone()
        with _torch_share.around(place, optimizer, 0.5 if gradient is not None else 0.0):
            optimizer.step()
        assert torch.equal(parameter, before) == (gradient is None)
    assert optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("options", [
    {}, {"dampening": 0.25}, {"maximize": True}, {"nesterov": True}, {"momentum": 0.5}])
@pytest.mark.parametrize("share", [1 / 4, 1 / 3, 0.75])
def test_a_late_gradient_moves_as_far_in_the_end_and_the_most_at_once(options, share):
    from sluice import _torch_share
    gradients = [0.0] + [1.0] + [0.0] * 300
    plain = moves(*made_sgd(**options), gradients, contextlib.nullcontext)
    optimizer, parameter = made_sgd(**options)
    late = moves(optimizer, parameter, gradients,
                 lambda: _torch_share.around("momentum", optimizer, share))
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.allclose(late[-1] - late[0], share ** 0.5 * (plain[-1] - plain[0]), atol=1e-5)
    assert bool(((late[1] - late[0]).abs() > share ** 0.5 * (plain[1] - plain[0]).abs()).all())


def test_groups_without_momentum_or_gradients_and_failed_steps_are_left_alone():
    from sluice import _torch_share
    a, b, c = (torch.nn.Parameter(torch.ones(1)) for _ in range(3))
    optimizer = torch.optim.SGD([{"params": [a], "momentum": 0.9, "lr": 0.5},
                                 {"params": [b, c]}], lr=0.1)
    assert _torch_share.places([optimizer], None, "world") == ["momentum"]
    a.grad, b.grad = torch.ones(1), torch.ones(1)
    with _torch_share.around("momentum", optimizer, 0.25):
        optimizer.step()
    assert b.item() == pytest.approx(0.9) and c.item() == 1 and a.item() < 1
    before = a.item()
    with pytest.raises(KeyError):
        with _torch_share.around("momentum", optimizer, 0.25):
            raise KeyError
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert a.item() == before


@pytest.mark.parametrize("share, late", [(1 / 4, 3), (1 / 3, 2), (1 / 2, 1)])
def test_a_rate_at_which_late_gradients_and_momentum_diverge_converges(share, late):
    from sluice import _torch_share

    def end(place):
        optimizer, parameter = made_sgd(lr=0.45)  # all ranks bear up to 3.8 at this curvature of 1
        past = [parameter.detach().clone()] * (late + 1)
        for _ in range(400):
            parameter.grad = share * past[-late - 1]
            with _torch_share.around(place, optimizer, share):
                optimizer.step()
            past.append(parameter.detach().clone())
        return parameter.abs().max().item()

    assert end("momentum") < 0.01 and end("gradient") > 1e6


ADAMS = [("Adam", {}), ("AdamW", {}), ("Adam", {"weight_decay": 0.1}),
         ("AdamW", {"weight_decay": 0.1, "maximize": True}), ("Adam", {"betas": (0.5, 0.9)}),
         ("Adam", {"amsgrad": True, "eps": 1e-3, "maximize": True, "weight_decay": 0.1})]


@pytest.mark.parametrize("name, options", ADAMS)
def test_adam_moves_at_once_by_what_late_gradients_would_have_moved_it(name, options):
    from sluice import _torch_share
    parameter = torch.nn.Parameter(torch.tensor([0.3, -2.0]))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.01, **options)
    beta, beta2 = options.get("betas", (0.9, 0.999))
    decay = options.get("weight_decay", 0.01 if name == "AdamW" else 0)
    sign = -1 if options.get("maximize") else 1
    mine, first, second, most = parameter.detach().double().clone(), 0, 0, torch.zeros(2)
    steps = zip([1.0, -3.0, 0.5, 2.0, 0.0], [1, 1 / 4, 1 / 2, 1, 1 / 8])
    for step, (value, share) in enumerate(steps, start=1):
        parameter.grad = torch.tensor([value, 2 * value])
        with _torch_share.around("moments", optimizer, share):
            optimizer.step()
        gradient = sign * parameter.grad.double()
        if name == "AdamW":
            mine = mine - 0.01 * share ** 1.5 * decay * mine
        else:
            gradient = gradient + decay * mine
        first = beta * first + (1 - beta) * gradient
        second = beta2 * second + (1 - beta2) * gradient ** 2
        most = torch.maximum(most, second) if options.get("amsgrad") else second
        late = 1 / share - 1
        ahead = late / (beta + (1 - beta) * late)
        move = (1 - (1 - beta) * ahead) * first / (1 - beta ** step) + ahead * (1 - beta) * gradient
        root = (most / (1 - beta2 ** step)).sqrt() + options.get("eps", 1e-8)
        mine = mine - 0.01 * share ** 1.5 * move / root
    assert optimizer.param_groups[0]["lr"] == 0.01
    # Decay acts on what the first half of the step has made of the parameter.
    assert torch.allclose(mine.float(), parameter, atol=2e-5 if decay else 1e-6)


@pytest.mark.parametrize("share, late", [(1 / 4, 3), (1 / 8, 7)])
def test_a_rate_at_which_late_gradients_keep_adam_swinging_lets_it_settle(share, late):
    from sluice import _torch_share

    def end(place):
        parameter = torch.nn.Parameter(torch.tensor([0.3, -2.0]))
        optimizer = torch.optim.Adam([parameter], lr=0.2)
        past = [parameter.detach().clone()] * (late + 1)
        for _ in range(600):
            parameter.grad = past[-late - 1].clone()
            with _torch_share.around(place, optimizer, share):
                optimizer.step()
            past.append(parameter.detach().clone())
        return max(one.abs().max().item() for one in past[-100:])

    assert end("moments") < 0.2 * end("rate")


def test_a_subclass_of_adam_keeps_to_its_rate():
    from sluice import _torch_share

    class Mine(torch.optim.Adam):
        pass

    mine = Mine([torch.nn.Parameter(torch.zeros(1))])
    assert _torch_share.places([mine], None, "world") == ["rate"]


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
    made.append(torch.optim.SGD(parameter, lr=1, momentum=0.9))
    wanted = ["gradient", "moments", "gradient", "rate", "momentum"]
    assert _torch_share.places(made, None, "world") == wanted
    assert _torch_share.places(made, "gradient", "world") == ["gradient"] * 5
    assert _torch_share.places(made, None, "weight") == [None] * 5
    line = _torch_share.describe(made[:2], wanted[:2])
    assert line == ("a step of k of the n ranks counts k/n, in the gradients of SGD and the "
                    "learning rate of AdamW, whose momentum makes up for late gradients")
    assert _torch_share.describe(made[4:], wanted[4:]) == (
        "a step of k of the n ranks counts k/n, in the gradients of SGD, whose momentum makes up "
        "for late ones")
