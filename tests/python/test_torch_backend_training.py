"""What people train with, over the backend 'sluice' and over Gloo: the parameters are equal, bit by
bit, where every sum has two inputs."""

import pytest
import ranks
from stand_in_box import environment
from test_torch_backend import needs_backends


def run(function, count, folder, **arguments):
    for found in ranks.run(function, count, folder, environment=environment(folder),
                           arguments=arguments):
        assert found == [True] * len(found) and found, found


def ddp(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel
    stand_in_box.start()
    gloo = dist.new_group(backend="gloo")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = torch.nn.Linear(8, 40), torch.nn.BatchNorm1d(40)
            self.sometimes, self.last = torch.nn.Linear(40, 40), torch.nn.Linear(40, 1)

        def forward(self, x, with_all):
            x = self.norm(self.first(x))
            return self.last(self.sometimes(x) if with_all else x)

    def trained(group, hook=None, accumulate=False, **options):
        torch.manual_seed(1)
        model = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=0.002, **options)
        if hook is not None:
            model.register_comm_hook(group, hook)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        inputs = torch.Generator().manual_seed(rank)
        unused = options.get("find_unused_parameters", False)
        for step in range(4):
            for micro in range(2):
                with model.no_sync() if accumulate and micro == 0 else torch.enable_grad():
                    x = torch.randn(6, 8, generator=inputs)
                    model(x, not unused or step % 2 == 0).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.state_dict().values()]

    def equal(**options):
        return all(torch.equal(a, b) for a, b in zip(trained(dist.group.WORLD, **options),
                                                     trained(gloo, **options)))

    done = [equal(accumulate=True), equal(gradient_as_bucket_view=True, static_graph=True),
            equal(find_unused_parameters=True), equal(hook=default_hooks.allreduce_hook)]
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    with model.join():  # a rank has fewer batches than the other
        for _ in range(2 + rank):
            model(torch.ones(2, 3)).sum().backward()
    done.append(stand_in_box.through_box("all_reduce"))
    dist.destroy_process_group()
    return done


def test_ddp_and_its_options_give_the_parameters_of_gloo(tmp_path):
    run(ddp, 2, tmp_path)


def zero(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    stand_in_box.start()
    gloo = dist.new_group(backend="gloo")

    def trained(group):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(8, 20), torch.nn.ReLU(), torch.nn.Linear(20, 2))
        model = DistributedDataParallel(net, process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, group, lr=0.01)
        inputs = torch.Generator().manual_seed(rank)
        for _ in range(3):
            model(torch.randn(4, 8, generator=inputs)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.consolidate_state_dict()
        return list(net.parameters())

    done = [torch.equal(a, b) for a, b in zip(trained(dist.group.WORLD), trained(gloo))]
    dist.destroy_process_group()
    return done


def test_the_zero_redundancy_optimizer_gives_the_parameters_of_gloo(tmp_path):
    run(zero, 2, tmp_path)


def sharded(rank, how):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    stand_in_box.start()

    def trained(backend):
        names = ("replicate", "shard") if how == "hsdp" else ("shard",)
        mesh = init_device_mesh("cpu", (2,) * len(names), mesh_dim_names=names,
                                backend_override={name: backend for name in names})
        torch.manual_seed(1)
        net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if how == "bfloat16" else None
        options = {} if policy is None else {"mp_policy": policy}
        for layer in net:
            fully_shard(layer, mesh=mesh, **options)
        fully_shard(net, mesh=mesh, **options)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        inputs = torch.Generator().manual_seed(rank)
        for _ in range(3):
            net(torch.randn(4, 8, generator=inputs)).float().square().mean().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return [one.full_tensor() for one in net.parameters()]

    done = [torch.equal(a, b) for a, b in zip(trained("sluice"), trained("gloo"))]
    done += [stand_in_box.through_box(kind)
             for kind in ("reduce_scatter_tensor", "all_gather_into_tensor")]
    dist.destroy_process_group()
    return done


@needs_backends
@pytest.mark.parametrize("how", ["fsdp", "bfloat16", "hsdp"])
def test_fully_sharded_models_get_the_parameters_of_gloo(tmp_path, how):
    run(sharded, 4 if how == "hsdp" else 2, tmp_path, how=how)


def replicated(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.device_mesh import init_device_mesh
    stand_in_box.start("gloo")

    def trained(backend):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("replicate",),
                                backend_override={"replicate": backend})
        torch.manual_seed(1)
        net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        replicate(net, mesh=mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net(torch.full((4, 8), float(rank))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [one.full_tensor() if hasattr(one, "full_tensor") else one
                for one in net.parameters()]

    done = [torch.equal(a, b) for a, b in zip(trained("sluice"), trained("gloo"))]
    done.append(stand_in_box.through_box("all_reduce"))
    dist.destroy_process_group()
    return done


@needs_backends
def test_replicate_on_a_mesh_of_this_backend_gives_the_parameters_of_gloo(tmp_path):
    run(replicated, 2, tmp_path)


def compiled(rank):
    import stand_in_box
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.nn.parallel import DistributedDataParallel
    stand_in_box.start()

    def step(x):
        total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        parts = functional.all_gather_tensor(total + rank, 0, dist.group.WORLD)
        part = functional.reduce_scatter_tensor(parts, "sum", 0, dist.group.WORLD)
        dist.all_reduce(part)
        return part + 1

    x = torch.arange(4.) + rank
    done = [torch.equal(torch.compile(step, backend="aot_eager")(x), step(x))]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    model = torch.compile(DistributedDataParallel(net), backend="aot_eager")
    for _ in range(2):
        model(x).sum().backward()
    traced = [text for text in torch._dynamo.utils.counters["graph_break"] if "sluice" in text]
    done += [not traced, net[0].weight.grad is not None]
    dist.destroy_process_group()
    return done


@needs_backends
def test_compiled_steps_run_as_plain_ones(tmp_path):
    run(compiled, 2, tmp_path)
