"""Training with gradients that are rounded on the wire, through a real appliance: as good as
float32."""

import pytest
import ranks

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

FORMATS = ["float32", "float16", "bfloat16", "int8"]
SEEDS = 3


def train(rank, wire, seeds):
    """Accuracy on the digits that were not trained on, by seed; and what left and came."""
    import zlib

    import torch
    from torch.nn.parallel import DistributedDataParallel

    import ddp_worker as w
    import sluice.torch
    w.start()
    images, labels = w.digits()
    world = torch.distributed.get_world_size()
    accuracy, digests, bytes_sent = [], [], 0
    for seed in range(seeds):
        torch.manual_seed(seed)
        order = torch.randperm(len(labels))
        trained, held = order[:1200], order[1200:]
        net = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
        model = DistributedDataParallel(net)
        attachment = sluice.torch.attach(model, wire=wire)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _step in range(120):
            batch = trained[torch.randint(len(trained), (world, 32))[rank]]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            right = (net(images[held]).argmax(1) == labels[held]).float().mean()
        accuracy.append(float(right))
        digests.append(zlib.crc32(b"".join(p.detach().numpy().tobytes()
                                           for p in net.parameters())))
        saved = attachment.state_dict()
        attachment.scale_residuals(2.0)
        doubled = attachment.state_dict()
        attachment.load_state_dict(saved)
        again = attachment.state_dict()
        bytes_sent = attachment.stats()["bytes_sent"]
        attachment.detach()
    return dict(accuracy=accuracy, digests=digests, bytes=bytes_sent,
                names=sorted(saved), some=any(bool(one.any()) for one in saved.values()),
                scaled=all(torch.equal(2 * saved[name], doubled[name]) for name in saved),
                restored=all(torch.equal(saved[name], again[name]) for name in saved))


def test_every_format_trains_as_float32_does(appliance, tmp_path):
    reports = {}
    for wire in FORMATS:
        (tmp_path / wire).mkdir()
        reports[wire] = ranks.run(train, 2, tmp_path / wire, box=appliance,
                                  arguments={"wire": wire, "seeds": SEEDS}, timeout_s=300)
    dense = sum(reports["float32"][0]["accuracy"]) / SEEDS
    assert dense > 0.9, "nothing was learnt"
    for wire, (first, second) in reports.items():
        mean = sum(first["accuracy"]) / SEEDS
        print(f"{wire}: accuracy {mean:.4f} {first['accuracy']}, bytes sent {first['bytes']}")
        assert first["digests"] == second["digests"], f"the replicas part with {wire}"
        assert mean > dense - 0.02, wire
        if wire == "float32":
            assert first["names"] == []
            continue
        assert first["names"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert first["some"] and first["scaled"] and first["restored"]
        share = first["bytes"] / reports["float32"][0]["bytes"]
        assert share < (0.45 if wire == "int8" else 0.7), wire


PRUNED = {"off": {}, "static": dict(prune="static", prune_fraction=0.05, prune_warmup=3),
          "sampled": dict(prune="sampled", prune_fraction=0.05, prune_warmup=3),
          "dynamic_raw": dict(prune="dynamic_raw")}


def stops_and_goes_on(rank, pruned):
    """Of every format and way of pruning, digests of 8 steps at once, of 4 and 4 with all that a
    checkpoint has between them, and of 4 and 4 without the attachment's state."""
    import copy
    import zlib

    import torch

    import ddp_worker as w
    import sluice.torch

    def model_of(saved, **options):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(48, 40), torch.nn.Tanh(), torch.nn.Linear(40, 9))
        model = w.start(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        attachment = sluice.torch.attach(model, **options)
        if saved:
            saved = copy.deepcopy(saved)  # torch 2 trains on in the memory that it is given
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            attachment.load_state_dict(saved[2])
        return model, optimizer, attachment

    def train(steps, saved, **options):
        model, optimizer, attachment = model_of(saved, **options)
        for step in steps:
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(8, 48, generator=generator)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        saved = copy.deepcopy([model.module.state_dict(), optimizer.state_dict(),
                               attachment.state_dict()])
        attachment.detach()
        return saved

    def digest(saved):
        return zlib.crc32(b"".join(p.numpy().tobytes() for p in saved[0].values()))

    found = {}
    for wire in ("float32", "float16", "bfloat16", "int8"):
        for name, options in pruned.items():
            options = dict(options, wire=wire, prune_min_elems=256)
            whole = train(range(8), None, **options)
            half = train(range(4), None, **options)
            resumed = train(range(4, 8), half, **options)
            half[2] = {}
            forgetful = train(range(4, 8), half, **options)
            found[f"{wire} {name}"] = [digest(one) for one in (whole, resumed, forgetful)]
    return found


def test_a_run_that_goes_on_is_bit_for_bit_the_one_without_the_stop(appliance, tmp_path):
    first, second = ranks.run(stops_and_goes_on, 2, tmp_path, box=appliance, timeout_s=300,
                              arguments={"pruned": PRUNED})
    assert first == second and len(first) == 16
    for name, (whole, resumed, forgetful) in first.items():
        assert resumed == whole, name
        assert (forgetful == whole) == (name == "float32 off"), name
