"""overlap() on several workers over a real appliance."""

import signal
import time

import pytest
import ranks
from tiers import within

pytest.importorskip("torch")


def two_ways(rank):
    """Digests of model, optimizer and schedule after 50 steps with attach() and with overlap()."""
    import hashlib
    import ddp_worker as w
    import sluice.torch
    import torch
    from sluice import _torch_state
    from torch import optim
    from torch.optim import lr_scheduler as rates
    cases = {
        "sgd": (lambda p: optim.SGD(p, lr=0.1), lambda o: rates.StepLR(o, 9, 0.5)),
        "momentum": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
                     lambda o: rates.OneCycleLR(o, 0.2, total_steps=60)),
        "nesterov": (lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
                     lambda o: rates.CosineAnnealingLR(o, 20)),
        "adam": (optim.Adam, lambda o: rates.StepLR(o, 9, 0.5)),
        "adamw": (optim.AdamW, lambda o: rates.OneCycleLR(o, 0.01, total_steps=60)),
        "adagrad": (optim.Adagrad, lambda o: rates.CosineAnnealingLR(o, 20)),
        "rmsprop": (lambda p: optim.RMSprop(p, momentum=0.5), lambda o: rates.StepLR(o, 9, 0.5))}
    found = {}
    for name, (make_optimizer, make_schedule) in cases.items():
        for way in ("attach", "overlap"):
            net = w.net_with_statistics()
            model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
            optimizer = make_optimizer(net.parameters())
            schedule = make_schedule(optimizer)
            if way == "attach":
                attachment = sluice.torch.attach(model)
            else:
                attachment = sluice.torch.overlap(model, optimizer)
            generator = torch.Generator().manual_seed(rank)
            for _ in range(50):
                model(torch.randn(6, 3, 8, 8, generator=generator)).square().mean().backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            digest = hashlib.sha256(_torch_state.encode([
                net.state_dict(), optimizer.state_dict(), schedule.state_dict()["_last_lr"]]))
            found[f"{name} {way}"] = digest.hexdigest()
            if way == "overlap":
                found[name] = attachment.overlapped_steps
            attachment.detach()
    return found


def test_two_workers_train_bit_for_bit_as_with_attach_for_50_steps(appliance, tmp_path):
    values = ranks.run(two_ways, 2, tmp_path, box=appliance, timeout_s=300)
    names = [name for name in values[0] if " " not in name]
    assert len(names) == 7
    for value in values:
        for name in names:
            assert value[name] == 49
            assert value[f"{name} overlap"] == value[f"{name} attach"], name


def integers_of_four(rank):
    import ddp_worker as w
    import sluice.torch
    import torch
    net = w.Model()
    model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    attachment = sluice.torch.overlap(model, optimizer)
    wanted = [torch.zeros(shape) for shape in w.SHAPES]
    exact = []
    for step in range(1, 9):
        model(w.gradients_of(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wanted = [x.sub(mean, alpha=0.5) for x, mean in zip(wanted, w.expected_mean(4, step))]
        if step % 3 == 0:
            exact.append(w.equal(list(net.parameters()), wanted))
    return exact, attachment.overlapped_steps, attachment.stats()["steps_done"]


def test_four_workers_apply_the_exact_mean_and_end_without_a_word(appliance, tmp_path):
    # Nobody waits for the last step: the process itself does, before it leaves the job.
    values = ranks.run(integers_of_four, 4, tmp_path, box=appliance)
    assert [value[:2] for value in values] == [[[True] * 2, 7]] * 4


def loses_a_peer(rank):
    import time
    import ddp_worker as w
    import sluice.torch
    import torch
    net = w.net_with_statistics()
    model = w.start(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.Adam(net.parameters())
    sluice.torch.overlap(model, optimizer)
    place = "set-up"
    for step in range(1000000):
        try:
            place = "forward"
            loss = model(torch.randn(6, 3, 8, 8)).square().mean()
            if step == 5:
                print("step 5", flush=True)
            if rank == 1:
                time.sleep(0.2)  # so the others are found waiting in their forward
            place = "backward"
            loss.backward()
        except sluice.PeerLost as error:
            when = time.time()
            try:
                net.state_dict()
                model(torch.randn(6, 3, 8, 8))
            except sluice.PeerLost as again:
                return when, place, str(error), str(again)
        optimizer.step()
        optimizer.zero_grad()


def test_a_killed_rank_is_named_by_the_forward_that_waits_for_it(appliance, tmp_path):
    with ranks.Ranks(loses_a_peer, 2, tmp_path, box=appliance) as running:
        for rank in range(2):
            running.wait_for(rank, "step 5", timeout_s=300)
        killed = time.time()
        running.children[1].send(signal.SIGKILL)
        outcomes = running.finish(timeout_s=300)
    assert outcomes[0].status == 0, outcomes[0].output
    when, place, text, again = outcomes[0].value
    assert place in ("forward", "backward")
    assert "rank 1" in text and again == text
    within(when - killed, 8)


def skips_a_batch(rank, detached):
    import ddp_worker as w
    import sluice.torch
    import torch
    net = w.Model()
    model = w.start(net, gradient_as_bucket_view=True, bucket_cap_mb=0.001, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    attachment = sluice.torch.overlap(model, optimizer)

    def train(*steps):
        for step in steps:
            model(w.gradients_of(rank, step)).backward()
            optimizer.step()
            optimizer.zero_grad()

    def end():  # rank 0 learns in its last backward or at the end that rank 1 has gone
        train(*range(5, 6 - rank))  # rank 1 has one batch fewer
        if detached:
            attachment.detach()
    train(*range(1, 5))
    if detached:
        return w.error_of(sluice.PeerLost, end) or ""
    end()
    return ""


def test_a_rank_that_skips_a_batch_fails_the_others_at_their_end(appliance, tmp_path):
    for detached in (True, False):
        with ranks.Ranks(skips_a_batch, 2, tmp_path, box=appliance,
                         arguments=dict(detached=detached)) as running:
            first, second = running.finish()
        assert second.status == 0, second.output
        if detached:
            assert first.status == 0 and "rank 1" in first.value, first.output
        else:
            assert first.status != 0 and "PeerLost" in first.output and "rank 1" in first.output


def is_interrupted(rank):
    import time
    import ddp_worker as w
    import sluice.torch
    import torch
    net = w.net_with_statistics()
    model = w.start(net, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sluice.torch.overlap(model, optimizer)
    for step in range(4):
        loss = model(torch.randn(6, 3, 8, 8)).square().mean()
        if step == 3 and rank == 1:
            print("stopped", flush=True)
            time.sleep(600)  # it is killed before
        loss.backward()
        optimizer.step()
        if step == 3:
            print("stopped", flush=True)
        try:
            if step == 3:
                model(torch.randn(6, 3, 8, 8))
        except KeyboardInterrupt:
            when = time.time()
            sluice.torch.Overlap._flush_at_the_end = lambda self: None  # rank 1 would not end it
            return when


def test_ctrl_c_ends_a_forward_that_waits_for_another_rank(appliance, tmp_path):
    with ranks.Ranks(is_interrupted, 2, tmp_path, box=appliance) as running:
        running.wait_for(0, "stopped", timeout_s=300)
        running.wait_for(1, "stopped", timeout_s=300)
        pressed = running.interrupt(0)
        running.children[1].send(signal.SIGKILL)
        outcomes = running.finish(timeout_s=300)
    assert outcomes[0].status == 0, outcomes[0].output
    within(outcomes[0].value - pressed, 3)


def disabled(rank):
    import ddp_worker as w
    import sluice.torch
    import torch
    net = w.Model()
    model = w.start(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    attachment = sluice.torch.overlap(model, optimizer)
    model(w.gradients_of(rank, 1)).backward()
    optimizer.step()
    attachment.flush()
    attachment.set_priority("p0", 3)
    return w.equal(list(net.parameters()), [-0.5 * mean for mean in w.expected_mean(2, 1)])


def test_a_disabled_script_trains_over_gloo(tmp_path):
    assert ranks.run(disabled, 2, tmp_path, environment={"SLUICE_DISABLE": "1"}) == [True, True]


def tolerant(rank):
    import ddp_worker as w
    import sluice.torch
    import torch
    model = w.start(gradient_as_bucket_view=True)
    return w.error_of(sluice.InvalidArgument, sluice.torch.overlap, model,
                      torch.optim.SGD(model.parameters(), lr=1.0), policy="fixed", k=1)


def test_a_policy_with_k_below_n_is_refused_and_the_remedy_named(appliance, tmp_path):
    for text in ranks.run(tolerant, 2, tmp_path, box=appliance):
        assert "'fixed'" in text and "sluice.torch.Loop" in text
