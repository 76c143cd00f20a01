"""Training with pruned gradients, through a real appliance: as good as with all of them."""

import pytest
import ranks
from inproc import address  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

PRUNED = "0.weight"  # of two dimensions, and big enough


def ending(rank, how, options):
    """Three steps of small integers; how a rank ends, and what it says of that."""
    import logging

    import torch

    import ddp_worker as w
    import sluice.torch
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    if how != "exit":
        logging.getLogger("sluice").addHandler(handler)
    net = w.Model(shapes=((64, 64),))
    solo = how == "loop"
    if not solo:
        w.start()
    model = torch.nn.parallel.DistributedDataParallel(
        net, process_group=sluice.torch.solo_group() if solo else None)
    attachment = sluice.torch.attach(model, prune="static", prune_fraction=0.05, prune_min_elems=1,
                                     averaging="weight", **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    before = net.p0.detach().clone()
    generator = torch.Generator().manual_seed(rank)
    given = torch.zeros(64, 64)

    def body():
        values = torch.randint(1, 8, (64, 64), generator=generator).float()
        given.add_(values)
        model([values]).backward()

    if solo:
        for _ in sluice.torch.Loop(attachment, optimizer).steps(3):
            body()
    else:
        for step in range(3):
            optimizer.zero_grad()
            if how == "flush" and step == 2:
                attachment.flush_residuals()
            body()
            optimizer.step()
    left = attachment.state_dict()["p0"]
    if how != "exit":
        attachment.detach()
        attachment.detach()
    return dict(moved=(before - net.p0).mul(2).tolist(), given=given.tolist(),
                left=left.tolist(), said=[line for line in said if "never delivered" in line])


def test_only_what_is_big_and_of_two_dimensions_is_pruned(address):  # noqa: F811
    import sluice.torch
    dist = torch.distributed
    dist.is_initialized() or dist.init_process_group("gloo", store=dist.HashStore(), rank=0,
                                                     world_size=1)

    class Net(torch.nn.Module):
        """Its gradients are its inputs."""

        def __init__(self):
            super().__init__()
            self.matrix, self.small, self.vector, self.stack = (
                torch.nn.Parameter(torch.zeros(shape))
                for shape in ((64, 64), (31, 33), (4096,), (2, 32, 64)))

        def forward(self, inputs):
            return sum((p * given).sum() for p, given in zip(self.parameters(), inputs))

    net = Net()
    model = torch.nn.parallel.DistributedDataParallel(net)
    given = [torch.arange(1.0, p.numel() + 1).view(p.shape) for p in net.parameters()]
    with sluice.torch.attach(model, address, rank=0, world_size=1, prune="static",
                             prune_fraction=0.01) as attachment:
        model(given).backward()
        left = attachment.state_dict()
        with pytest.raises(sluice.InvalidArgument, match="not what sluice_get_pruning"):
            attachment.job.set_pruning("matrix", 0x7FC0_0000_0000_0001)  # a threshold that is NaN
    assert left.pop("sluice.pruning").tolist() == [1, 1]  # steps
    assert sorted(left) == ["matrix", "stack"]
    for (name, p), whole in zip(net.named_parameters(), given):
        if name in left:
            assert int((p.grad != 0).sum()) == 41 and float(p.grad[p.grad != 0].min()) == 4056
            assert torch.equal(p.grad + left[name].view(p.shape), whole)
        else:
            assert torch.equal(p.grad, whole)


@pytest.mark.parametrize("how, options", [
    ("nothing", {}), ("flush", {}), ("loop", {}), ("flush", {"wire": "bfloat16"})],
    ids=["nothing", "flush", "loop", "flush-bfloat16"])
def test_a_rank_that_ends_delivers_what_stayed_or_says_how_much(appliance, tmp_path, how, options):
    values = ranks.run(ending, 2, tmp_path, box=appliance, timeout_s=300,
                       arguments={"how": how, "options": options})
    given, left = (sum(torch.tensor(value[name]).view(64, 64) for value in values)
                   for name in ("given", "left"))
    moved = torch.tensor(values[0]["moved"]).view(64, 64)
    assert values[0]["moved"] == values[1]["moved"]
    if not options:  # a mean that is rounded is no sum
        assert torch.equal(moved + left, given)
    for rank, value in enumerate(values):
        kept = torch.tensor(value["left"])
        count = int((kept != 0).sum())
        if how == "nothing":
            assert count > 64 * 64 / 2
            line, = value["said"]
            assert f"rank {rank} ends, and {count} elements" in line, line
            assert f"norm {kept.double().norm():.4g}, {4 * count} bytes" in line, line
            assert "call flush_residuals() before the last backward" in line, line
        else:
            assert value["said"] == []
            assert options or count == 0


def test_a_rank_that_ends_without_detach_says_it_too(appliance, tmp_path):
    with ranks.Ranks(ending, 2, tmp_path, box=appliance,
                     arguments={"how": "exit", "options": {}}) as running:
        for rank, outcome in enumerate(running.finish(120)):
            assert outcome.status == 0, outcome.output
            assert outcome.output.count(f"rank {rank} ends, and ") == 1, outcome.output


def train(rank, prune, momentum, seeds):
    """Accuracy on the digits that were not trained on, by seed; and what left and came."""
    import zlib

    import torch
    from torch.nn.parallel import DistributedDataParallel

    import ddp_worker as w
    import sluice.torch
    w.start()
    images, labels = w.digits()
    world = torch.distributed.get_world_size()
    accuracy, digests = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        order = torch.randperm(len(labels))
        trained, held = order[:1200], order[1200:]
        net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(),
                                  torch.nn.Linear(256, 3), torch.nn.Linear(3, 10))
        model = DistributedDataParallel(net)
        attachment = sluice.torch.attach(model, **prune)
        corrected = "prune_momentum" in prune
        rate = 0.03 if momentum or corrected else 0.3
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        for step in range(150):
            batch = trained[torch.randint(len(trained), (world, 32))[rank]]
            optimizer.zero_grad()
            if step == 149:
                saved = attachment.state_dict()
                nothing = {name: torch.zeros_like(values) for name, values in saved.items()}
                attachment.load_state_dict(nothing)
                cleared = attachment.state_dict()
                attachment.load_state_dict(saved)
                restored = attachment.state_dict()
                attachment.flush_residuals()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            right = (net(images[held]).argmax(1) == labels[held]).float().mean()
        accuracy.append(float(right))
        digests.append(zlib.crc32(b"".join(p.detach().numpy().tobytes()
                                           for p in net.parameters())))
        left, whole = attachment.state_dict(), saved
        for state in (saved, left, cleared, restored):
            state.pop("sluice.pruning", None)
        if corrected:  # residuals alone, without the velocities behind them
            saved, left = ({name: values[:values.numel() // 2] for name, values in state.items()}
                           for state in (saved, left))
        bytes_sent = attachment.stats()["bytes_sent"]
        attachment.detach()
    return dict(accuracy=accuracy, digests=digests, bytes=bytes_sent, names=sorted(saved),
                cleared=not any(bool(values.any()) for values in cleared.values()),
                restored=all(torch.equal(whole[name], restored[name]) for name in whole),
                behind=sum(int((one != 0).sum()) for one in saved.values()),
                after=sum(int((one != 0).sum()) for one in left.values()))


def test_pruned_gradients_train_and_the_flush_leaves_nothing_behind(appliance, tmp_path):
    seeds, reports = 2, {}
    rule = {"prune": "static", "prune_fraction": 0.02}
    for name, prune, momentum in (("dense", {}, 0), ("pruned", rule, 0), ("momentum", {}, 0.9),
                                  ("corrected", {**rule, "prune_momentum": 0.9}, 0)):
        (tmp_path / name).mkdir()
        reports[name] = ranks.run(train, 2, tmp_path / name, box=appliance,
                                  arguments={"prune": prune, "momentum": momentum, "seeds": seeds},
                                  timeout_s=300)
    means = {name: sum(first["accuracy"]) / seeds for name, (first, _) in reports.items()}
    for name, (first, second) in reports.items():
        print(f"{name}: accuracy {means[name]:.4f} {first['accuracy']}, sent {first['bytes']}")
        assert first["digests"] == second["digests"], f"the replicas part: {name}"
        assert first["cleared"] and first["restored"], f"load_state_dict() does nothing: {name}"
    dense, pruned = (reports[name][0] for name in ("dense", "pruned"))
    assert means["dense"] > 0.7, "nothing was learnt"
    assert means["pruned"] > means["dense"] - 0.05
    assert dense["names"] == [] and pruned["names"] == [PRUNED]
    assert pruned["behind"] > 8000 and pruned["after"] == 0
    assert pruned["bytes"] < dense["bytes"] / 5
    assert means["corrected"] > means["momentum"] - 0.05
    assert reports["corrected"][0]["after"] == 0
