"""The models that attach() and overlap() take, and the errors for the others."""

import inspect

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import late_job  # noqa: E402
import sluice  # noqa: E402
import sluice.torch  # noqa: E402
from late_job import sgd  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

needs_torch_2 = pytest.mark.skipif(
    not hasattr(torch, "compiler"),
    reason=f"such a model needs torch 2, this is {torch.__version__}: ./run test-torch2")


def text_of(model):
    with pytest.raises(sluice.InvalidArgument) as refused:
        sluice.torch.attach(model, "inproc://unused")
    return str(refused.value)


@needs_torch_2
def test_a_compiled_model_is_told_apart_by_what_is_inside():
    late_job.group_of_one()
    compiled = torch.compile(DistributedDataParallel(nn.Linear(2, 2)), backend="eager")
    assert "model._orig_mod" in text_of(compiled) and "wrap it" not in text_of(compiled)
    assert "wrap the compiled module" in text_of(torch.compile(nn.Linear(2, 2), backend="eager"))


@needs_torch_2
def test_sharded_and_replicated_models_are_not_told_to_be_wrapped_first():
    late_job.group_of_one()
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.fsdp import fully_shard
    sharded = fully_shard(nn.Linear(2, 2))
    assert "shards parameters" in text_of(sharded) and "wrap it first" not in text_of(sharded)
    replicated = replicate(nn.Linear(2, 2))
    assert "replicate()" in text_of(replicated) and "wrap it first" not in text_of(replicated)
    assert "wrap it first" in text_of(nn.Linear(2, 2))


@needs_torch_2
def test_the_python_reducer_is_refused_by_its_name():
    late_job.group_of_one()
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(nn.Linear(2, 2), gradient_as_bucket_view=True)
    assert "optimize_ddp = 'python_reducer'" in text_of(model)
    with pytest.raises(sluice.InvalidArgument, match="python_reducer"):
        sluice.torch.overlap(model, sgd(model), "inproc://unused")


@needs_torch_2
def test_overlap_beside_tensor_parallelism_waits_from_the_start(monkeypatch, caplog):
    late_job.group_of_one()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    monkeypatch.setattr(sluice.torch, "_join",
                        lambda specs, *_args, **_options: late_job.LateJob(specs))

    def run(way):
        torch.manual_seed(7)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4))
        parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model = DistributedDataParallel(net, gradient_as_bucket_view=True,
                                        device_mesh=mesh["data"])
        own = list(net.parameters())
        optimizer = torch.optim.SGD(own, lr=0.1)
        attachment = (sluice.torch.overlap(model, optimizer) if way else
                      sluice.torch.attach(model))
        for _ in range(4):
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        attachment.detach()
        return [p.detach().clone() for p in own], attachment
    (wanted, _), (found, attachment) = run(False), run(True)
    assert late_job.equal(found, wanted) and attachment.overlapped_steps == 0
    line, = (r.getMessage() for r in caplog.records if r.name == "sluice")
    assert "'0.weight' is a part of a tensor-parallel one" in line


class WithNothing(nn.Module):
    """Has a parameter without elements, as a head of no classes."""

    def __init__(self):
        super().__init__()
        self.layer, self.none = nn.Linear(6, 6), nn.Parameter(torch.zeros(0, 6))

    def forward(self, x):
        return torch.cat([self.layer(x), x @ self.none.t()], -1)


@needs_torch_2  # DDP of torch 1.13 fails when it broadcasts one
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_parameter_without_elements_is_legal(monkeypatch, overlapping):
    torch.manual_seed(7)
    net = WithNothing()
    optimizer = sgd(net)
    model, attachment = late_job.attach(monkeypatch, net, optimizer if overlapping else None)
    assert [tensor.name for tensor in attachment.job.tensors] == ["layer.weight", "layer.bias"]
    before = net.layer.weight.detach().clone()
    for _ in range(4):
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(net.layer.weight, before) and net.none.shape == (0, 6)
    assert not overlapping or attachment.overlapped_steps == 3
    attachment.detach()


def test_a_model_without_any_element_is_refused(monkeypatch):
    with pytest.raises(sluice.InvalidArgument, match="no parameter .* has elements"):
        late_job.attach(monkeypatch, nn.Linear(0, 0))


@pytest.mark.parametrize("kind", ["Attachment", "Overlap", "SoloAttachment"])
def test_what_a_script_may_call_is_there_under_sluice_disable_too(kind):
    kind = getattr(sluice.torch, kind)
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and callable(method):
            other = getattr(sluice.torch.Disabled, name)
            assert inspect.signature(method) == inspect.signature(other), name


def test_under_sluice_disable_a_script_runs_as_it_is(monkeypatch):
    monkeypatch.setenv("SLUICE_DISABLE", "1")
    late_job.group_of_one()
    model = DistributedDataParallel(nn.Linear(2, 2))
    with sluice.torch.attach(model) as attachment:
        attachment.set_priority("weight", 3)
        attachment.follow(sgd(model))
        attachment.load_state_dict(attachment.state_dict())
        assert (attachment.stats(), attachment.report(), attachment.job) == ({}, None, None)
        model(torch.ones(1, 2)).sum().backward()
    overlapped = sluice.torch.overlap(model, sgd(model))
    overlapped.flush()
    assert (overlapped.overlapped_steps, overlapped.reason) == (0, "SLUICE_DISABLE is set")
    overlapped.finish()
    overlapped.detach()
