"""Models whose gradients lie in the memory of a device: a fake one, late and out of order.

Any host memory is a fake device's, so CPU tensors go the way of CUDA tensors: by pointer and stream
through the plug-in for devices, its copies, and back.
"""

import ctypes
import os

import pytest
import ranks
from conftest import BUILD

import sluice
import test_torch_backend
import test_torch_backend_training
from inproc import address, on_all_ranks, on_threads  # noqa: F401 - address is a fixture
from tiers import within

torch = pytest.importorskip("torch")
_FAKE = BUILD / "tests" / "fake_device" / "libsluice_cuda.so"


@pytest.fixture
def fake(library, tmp_path, monkeypatch):
    """The folder with the fake plug-in, and the DPDK one beside it."""
    if not _FAKE.exists():
        pytest.skip(f"{_FAKE} is not built")
    folder = tmp_path / "plugins"
    folder.mkdir()
    for file in (_FAKE, BUILD / "client" / "libsluice_dpdk.so"):
        (folder / file.name).symlink_to(file)
    monkeypatch.setenv("SLUICE_PLUGIN_DIR", str(folder))
    monkeypatch.setenv("SLUICE_FAKE_DEVICE", "late_us=500")


def train(rank, way, on_device, steps):
    """Digests of the parameters after each step, and what the job has counted."""
    import zlib

    import torch
    from torch.nn.parallel import DistributedDataParallel

    import ddp_worker as w
    import sluice.torch
    if on_device:
        class Fake:
            index = 1
            future = torch.futures.Future

            def stream(self):
                return 0
        sluice.torch.device_of = lambda _named: Fake()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(),
                              torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    digests = []
    images = torch.randn(2, steps, 16, 40)

    def loss(model, step):
        return model(images[rank, step]).square().mean()

    def note():
        digests.append(zlib.crc32(b"".join(v.detach().numpy().tobytes()
                                           for v in net.state_dict().values())))
    if way.startswith("loop"):
        torch.set_num_threads(1)
        model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
        attachment = sluice.torch.attach(
            model, policy="fixed", k=2,
            **({"late": "requeue", "prune": "static", "wire": "float16"}
               if way == "loop_lossy" else {}))
        loop = sluice.torch.Loop(attachment, optimizer)
        for step in loop.steps(steps):
            loss(model, step - 1).backward()
            loop.update()
            note()
    else:
        w.start()
        model = DistributedDataParallel(net, gradient_as_bucket_view=True,
                                        broadcast_buffers=False)
        extra = {"pruned": {"prune": "static", "prune_fraction": 0.1},
                 "rounded": {"wire": "bfloat16"}}.get(way, {})
        attachment = (sluice.torch.overlap(model, optimizer) if way == "overlap"
                      else sluice.torch.attach(model, **extra))
        for step in range(steps):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
            if way != "overlap":
                note()
        if way == "overlap":
            attachment.flush()
            note()
    residuals = {name: float(values.abs().sum())
                 for name, values in attachment.state_dict().items()}
    overlapped = getattr(attachment, "overlapped_steps", 0)
    device = attachment.job.device
    attachment.detach()
    return dict(digests=digests, residuals=residuals, overlapped=overlapped, device=device)


@pytest.mark.parametrize("way", ["attach", "pruned", "rounded", "overlap", "loop", "loop_lossy"])
def test_a_model_on_a_device_trains_bit_for_bit_as_on_the_host(fake, appliance, tmp_path, way):
    reports = {}
    for on_device in (False, True):
        folder = tmp_path / str(on_device)
        folder.mkdir()
        reports[on_device] = ranks.run(train, 2, folder, box=appliance, timeout_s=300,
                                       arguments={"way": way, "on_device": on_device, "steps": 6})
    host, device = reports[False][0], reports[True][0]
    assert host["device"] is None and device["device"] == 1
    assert device["digests"] == host["digests"] and len(host["digests"]) == (
        1 if way == "overlap" else 6)
    assert device["residuals"] == host["residuals"]
    assert bool(host["residuals"]) == (way in ("pruned", "rounded", "loop_lossy"))
    assert device["overlapped"] == host["overlapped"]
    assert (host["overlapped"] > 0) == (way == "overlap")


def fails(rank):
    """What backward() raises, and the seconds until then."""
    import os
    import time

    import torch
    from torch.nn.parallel import DistributedDataParallel

    import ddp_worker as w
    import sluice
    import sluice.torch

    class Fake:
        index = 0
        future = torch.futures.Future

        def stream(self):
            return 0
    if rank == 1:
        os.environ["SLUICE_FAKE_DEVICE"] = "fail=1"
    sluice.torch.device_of = lambda _named: Fake()
    w.start()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    sluice.torch.attach(model)
    torch.distributed.barrier()  # else one rank may fail while the other one is in attach()
    start = time.monotonic()
    try:
        for _ in range(50):
            model(torch.ones(4, 8)).sum().backward()
    except sluice.errors.Error as error:
        return [type(error).__name__, str(error), time.monotonic() - start]
    return ["", "", 0]


def test_a_failed_copy_comes_out_of_backward_on_every_rank(fake, appliance, tmp_path):
    (other, _, other_s), (name, text, _) = ranks.run(fails, 2, tmp_path, box=appliance,
                                                     timeout_s=300)
    assert name == "IoError" and "was told to fail" in text and "device 0 (fake 0, pinned)" in text
    assert other == "PeerLost"
    within(other_s, 4, "by silence only")


def test_addresses_of_a_device_come_with_a_stream(fake, address):
    def work(job):
        assert job.device == 0
        values = (ctypes.c_float * 1000)(*[job.rank + 1.0] * 1000)
        at = ctypes.addressof(values)
        for _ in range(3):
            job.submit("weight", at, stream=0)
            bias = torch.full((7,), float(job.rank))
            job.submit("bias", bias)
            job.wait_step()
            assert bias.tolist() == [0.5] * 7
        return list(values)

    first, second = on_all_ranks(work, 2, address, memory="device")
    assert first == second == [1.5] * 1000


def on_sessions(work, count, at, **options):
    """work(session) for each rank of a job of operations."""
    def rank_main(rank):
        with sluice.Session(at, rank=rank, world_size=count, run_id=1, **options) as session:
            return work(session)
    return on_threads(rank_main, count)


def test_operations_read_and_write_device_memory_in_a_stream(fake, address):
    def work(session):
        assert session.device == 1
        group = session.group("all", range(2))
        values = (ctypes.c_float * 100_000)(*[session.rank + 1.0] * 100_000)
        part, whole = (ctypes.c_float * 50_000)(), (ctypes.c_float * 100_000)()
        at = ctypes.addressof
        group.all_reduce(at(values), elem_count=100_000, dtype="float32", stream=0).wait(60)
        group.reduce_scatter(at(values), at(part), elem_count=50_000, dtype="float32",
                             stream=0).wait(60)
        group.all_gather(at(part), at(whole), size=4 * 50_000, stream=0).wait(60)
        word = bytearray(b"rank %d" % session.rank)  # of the host's memory
        for ticket in group.broadcast(1, word), group.barrier():
            ticket.wait(60)
        assert word == b"rank 1"
        return set(values), set(part), set(whole)

    for found in on_sessions(work, 2, address, memory="device", device=1):
        assert found == ({3.0}, {6.0}, {6.0})


def test_a_session_of_the_host_says_how_to_get_a_device(fake, address):
    def work(session):
        with pytest.raises(sluice.InvalidArgument, match="set options.device.memory"):
            session.group("all", [0]).all_reduce(4096, elem_count=1, dtype="float32", stream=0)

    on_sessions(work, 1, address)


def test_the_backend_takes_tensors_of_a_device(fake, appliance, tmp_path):
    test_torch_backend.check_kinds(ranks.run(test_torch_backend.kinds, 3, tmp_path, box=appliance,
                                             environment={"FAKE_DEVICE": "1"}))
    for found in ranks.run(test_torch_backend_training.ddp, 2, tmp_path, box=appliance,
                           environment={"FAKE_DEVICE": "1"}):
        assert found == [True] * len(found) and found, found


def sums(rank):
    """The session's device, and how a sum ends."""
    import stand_in_box
    import torch
    import torch.distributed as dist
    stand_in_box.start()
    x = torch.ones(1000)
    try:
        dist.all_reduce(x)
        text = str(x.unique().tolist())
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return [stand_in_box.session_device(), text]


def test_a_copy_that_fails_fails_the_operation_by_name(fake, appliance, tmp_path):
    (_, other), (device, text) = ranks.run(
        sums, 2, tmp_path, box=appliance, environment={"FAKE_DEVICE": "1"},
        own=lambda rank: {"SLUICE_FAKE_DEVICE": "fail=1"} if rank == 1 else {})
    assert device == 1 and text.startswith("IoError: rank 1 ") and "was told to fail" in text, text
    assert other.startswith("PeerLost: rank 0 ") and "rank 1" in other, other


@pytest.mark.parametrize("lacks", ["device", "plug-in"])
def test_without_a_device_on_every_rank_the_backend_uses_none(fake, appliance, tmp_path, lacks):
    (tmp_path / "libsluice_dpdk.so").symlink_to(BUILD / "client" / "libsluice_dpdk.so")

    def own(rank):
        if rank == 0:
            return {"FAKE_DEVICE": "1"}
        return {} if lacks == "device" else {"FAKE_DEVICE": "1", "SLUICE_PLUGIN_DIR": str(tmp_path)}
    found = ranks.run(sums, 2, tmp_path, box=appliance, own=own)
    assert [device for device, _ in found] == [None, None]


def test_a_tensor_on_another_device_than_the_groups_is_refused():
    from types import SimpleNamespace

    from sluice._torch_operations import Operations
    group = SimpleNamespace(_own=2, _name="0", _shared=SimpleNamespace(device=0))
    Operations._reach(group, torch.device("cpu"))
    Operations._reach(group, torch.device("cuda:0"))
    with pytest.raises(sluice.InvalidArgument,
                       match=r"rank 2 of group '0': a tensor is on cuda:1, .*set_device\(1\)"):
        Operations._reach(group, torch.device("cuda:1"))


def test_the_way_out_of_the_device_can_be_forced_and_says_why_not(fake, address, monkeypatch):
    monkeypatch.setenv("SLUICE_FAKE_DEVICE", "absent=pinned")
    with pytest.raises(sluice.IoError, match="the fake device has no pinned"):
        on_all_ranks(lambda job: None, 1, address, memory="pinned")
    monkeypatch.setenv("SLUICE_MEMORY", "gpudirect")
    with pytest.raises(sluice.IoError, match="no transport of the client owns a network card"):
        on_all_ranks(lambda job: None, 1, address)
    with pytest.raises(sluice.InvalidArgument, match="did you mean 'pinned'"):
        on_all_ranks(lambda job: None, 1, address, memory="pined")
    with pytest.raises(sluice.NotFound, match="device 5 does not exist: this process sees 2"):
        on_all_ranks(lambda job: None, 1, address, memory="device", device=5)


def test_without_the_plugin_the_error_says_what_to_install(library, address, monkeypatch):
    monkeypatch.setenv("SLUICE_PLUGIN_DIR", "/nonexistent")
    with pytest.raises(sluice.NotFound, match="libsluice_cuda.so.*nvcc.*driver"):
        on_all_ranks(lambda job: None, 1, address, memory="device")


def test_the_doctor_says_which_ways_work(fake):
    import subprocess
    import sys
    done = subprocess.run([sys.executable, "-m", "sluice", "doctor"], capture_output=True,
                          text=True, timeout=300, check=False, env=dict(os.environ))
    found = next(line for line in done.stdout.splitlines() if line[5:].startswith("gpu"))
    assert "pinned works, fake 0, 4 GB/s, what is pruned or rounded is packed there" in found
    assert "not gpudirect: no transport" in found
