"""On a machine with a GPU: the CUDA plug-in, by every way out of the device. Elsewhere skipped."""

import pytest
import ranks

from inproc import address, on_all_ranks  # noqa: F401 - address is a fixture

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("library"),
              pytest.mark.skipif(not torch.cuda.is_available(),
                                 reason="no GPU that torch can use: nothing of CUDA was run")]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("way", ["pinned", "pinned_zero_copy"])
def test_sums_of_cuda_tensors_are_exact(address, way, workers):
    sizes = {"big": 5_000_011, "odd": 17, "half": 100_001}
    specs = [(name, count, "float16" if name == "half" else "float32")
             for name, count in sizes.items()]

    def work(job):
        for step in range(1, 6):
            given = {name: torch.full((count,), float((job.rank + 1) * step), device="cuda:0",
                                      dtype=getattr(torch, dtype))
                     for name, count, dtype in specs}
            for priority, (name, tensor) in enumerate(given.items()):
                tensor.mul_(2)  # still under way when it is submitted
                job.submit(name, tensor, priority=priority)
            job.wait_step(timeout=30)
            for name, tensor in given.items():
                assert (tensor == (workers + 1) * step).all(), (name, step)
        return job.device

    assert on_all_ranks(work, workers, address, specs=specs, memory=way) == [0] * workers


@pytest.mark.parametrize("way", ["pinned", "pinned_zero_copy"])
@pytest.mark.parametrize("loss", [{"wire": "bfloat16"}, {"wire": "float16"}, {"wire": "int8"},
                                  {"prune": "static", "wire": "bfloat16"}, {"prune": "sigma"},
                                  {"prune": "dynamic", "wire": "int8"}],
                         ids=lambda loss: "-".join(loss.values()))
def test_what_is_lost_on_a_card_is_what_the_host_loses_bit_for_bit(address, way, loss):
    count = 1_000_003

    def work(job):
        generator = torch.Generator().manual_seed(job.rank)
        found = []
        for step in range(4):
            gradient = torch.randn(count, generator=generator) ** 3
            if step == 2:
                job.scale_residuals(0.5)
            given = gradient if job.device is None else gradient.cuda()
            job.submit("weight", given)
            job.wait_step(timeout=30)
            found.append(given.cpu())
        residual = torch.empty(count)
        job.get_residual("weight", residual)
        return [*found, residual]

    specs = [("weight", count, "float32")]
    host = on_all_ranks(work, 2, address, specs=specs, **loss)
    there = on_all_ranks(work, 2, address + "-there", specs=specs, memory=way, **loss)
    for ours, theirs in zip(there, host):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))
        assert theirs[-1].any(), "nothing was lost"


def train(rank, on_device, way):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import ddp_worker as w
    import sluice.torch
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10))
    images = torch.randn(4, 8, 16, 40)
    if on_device:
        net, images = net.cuda(), images.cuda()
    w.start()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if way == "gloo":
        attachment = None
    elif way == "overlap":
        attachment = sluice.torch.overlap(model, optimizer)
    else:
        attachment = sluice.torch.attach(model)
    for step in range(8):
        optimizer.zero_grad()
        model(images[rank, step]).square().mean().backward()
        optimizer.step()
    if way == "overlap":
        attachment.flush()
    if attachment is not None:
        attachment.detach()
    return [p.detach().cpu().flatten().tolist() for p in net.parameters()]


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("way", ["attach", "overlap"])
def test_ddp_on_one_card_trains_as_over_gloo(appliance, tmp_path, way, workers):
    found = {}
    for name in (way, "gloo"):
        (tmp_path / name).mkdir()
        found[name] = ranks.run(train, workers, tmp_path / name, box=appliance, timeout_s=120,
                                arguments={"on_device": True, "way": name})
    assert all(replica == found[way][0] for replica in found[way]), "the replicas part"
    for ours, theirs in zip(found[way][0], found["gloo"][0]):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-5, atol=1e-6)
