"""Pruned gradients where a rank is late, by rules with thresholds of their own, through a real
appliance: replicas stay equal, and residuals follow a rate that changes during missed steps."""

import pytest
import ranks

torch = pytest.importorskip("torch")


def late(rank, prune, steps):
    """Every gradient is 1 to 7, so parameters move one way; rank 2 is late."""
    import time

    import sluice.torch
    import torch

    import ddp_worker as w
    torch.set_num_threads(1)
    net = w.Model(shapes=((64, 64),))
    before = net.p0.detach().clone()
    model = torch.nn.parallel.DistributedDataParallel(
        net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, policy="fixed", k=2, late="requeue",
                                     prune_min_elems=1, **prune)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    loop = sluice.torch.Loop(attachment, optimizer, scheduler)
    generator = torch.Generator().manual_seed(rank)
    bodies, computed, most_left = 0, 0, 0.0
    for computed in loop.steps(steps):
        bodies += 1
        most_left = max(most_left, float(attachment.state_dict()["p0"].abs().sum()))
        time.sleep(0.06 if rank == 2 else 0.01)
        model([torch.randint(1, 8, (64, 64), generator=generator).float()]).backward()
    left = attachment.state_dict()
    try:
        report = attachment.report(steps)
        members = [report.members, report.partly]
    except sluice.NotFound:  # the step is in a state that another rank has sent
        members = None
    return dict(computed=computed, members=members, last=net.p0.tolist(),
                moved=float((before - net.p0).sum()), bodies=bodies, missed=loop.missed,
                resyncs=loop.resyncs, most_left=most_left, left=(left["p0"] != 0).tolist(),
                finite=bool(left["p0"].isfinite().all()))


@pytest.mark.parametrize("prune", [
    {"prune": "static", "prune_fraction": 0.05}, {"prune": "sigma", "prune_sigmas": 1},
    {"prune": "dynamic"}], ids=lambda prune: prune["prune"])
def test_replicas_of_late_ranks_do_not_part(appliance, tmp_path, prune):
    values = ranks.run(late, 3, tmp_path, box=appliance, arguments={"prune": prune, "steps": 20},
                       timeout_s=300)
    print([{k: v for k, v in value.items() if k not in ("last", "left")} for value in values])
    assert values[0]["last"] == values[1]["last"] == values[2]["last"]
    assert all(value["finite"] and value["most_left"] > 0 for value in values)
    # Who is in the last step with its gradient for it keeps nothing. With an older one, requeued
    # into it, a rank keeps what it left behind then.
    members, partly = next(value["members"] for value in values if value["members"])
    left = [torch.tensor(value["left"]).int() for value in values]
    whole = [rank for rank in members if values[rank]["computed"] == 20]
    assert not any(left[rank].any() for rank in whole), (whole, members, partly)
    if all(values[rank]["computed"] == 20 for rank in members + partly):
        # Of each chunk, whoever the two are.
        assert sum(left).max() <= 1, "the last step takes all of two ranks"
    assert all(value["moved"] > 0 for value in values)
    assert values[2]["missed"] + values[2]["resyncs"] > 0, "nobody was late"
