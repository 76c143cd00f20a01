"""Frameworks over the backend 'sluice', which each is told by its name alone, against the same
script over Gloo: equal parameters on all ranks, bit for bit. Of PyPI's newest:
./run test-frameworks.
"""

import json
import os
import subprocess
import sys
import zipfile

import pytest
import ranks
from conftest import BUILD, ROOT
from stand_in_box import environment
from test_torch_backend import needs_backends

pytestmark = needs_backends


def compared(script, folder, box, count=2, **arguments):
    """script(rank, backend) over both."""
    values = {}
    for backend in ("sluice", "gloo"):
        (folder / backend).mkdir()
        values[backend] = ranks.run(
            script, count, folder / backend, box=box, timeout_s=600,
            environment={"GLOO_SOCKET_IFNAME": "lo", "LT_ACCELERATOR": "cpu"},
            arguments={"backend": backend, **arguments})
    digests = {digest for way in values.values() for digest, _way in way}
    assert len(digests) == 1, values
    assert [way for _, way in values["sluice"]] == [True] * count, values
    assert [way for _, way in values["gloo"]] == [False] * count, values


def with_accelerate(rank, backend):
    import accelerate
    import gpt
    import sluice.torch  # noqa: F401 - an installed wheel needs it not
    import stand_in_box
    import torch
    torch.distributed.init_process_group(backend)  # accelerate would take Gloo on a CPU
    torch.manual_seed(1)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = gpt.GPT()
    model, optimizer = accelerator.prepare(net, gpt.adamw(net))
    text = gpt.batches(10 + rank)
    for _ in range(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(*next(text)))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return gpt.digest(net), stand_in_box.through_box("all_reduce")


def test_accelerate_takes_a_process_group_that_is_there(backend_appliance, tmp_path):
    pytest.importorskip("accelerate")
    compared(with_accelerate, tmp_path, backend_appliance)


def with_lightning(rank, backend, how):
    import gpt
    import lightning as L
    import lightning_gpt
    import sluice.torch  # noqa: F401
    import stand_in_box
    import torch
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    class Module(lightning_gpt.Module):
        def configure_model(self):
            if how == "fsdp" and not hasattr(self, "sharded"):
                self.sharded = True
                for block in self.net.blocks:
                    fully_shard(block, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    strategy = (DDPStrategy(process_group_backend=backend) if how == "ddp" else
                ModelParallelStrategy(process_group_backend=backend, data_parallel_size=2,
                                      tensor_parallel_size=1))
    trainer = L.Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_steps=4, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    module = Module()
    lightning_gpt.fit(trainer, module, rank)
    assert trainer.global_step == 4
    values = [one.full_tensor() if hasattr(one, "full_tensor") else one
              for one in module.net.parameters()]
    kind = {"ddp": "all_reduce", "fsdp": "reduce_scatter_tensor"}[how]
    return gpt.digest(torch.nn.ParameterList(values)), stand_in_box.through_box(kind)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_lightning_trains_with_the_name_in_its_strategy(backend_appliance, tmp_path, how):
    pytest.importorskip("lightning")
    compared(with_lightning, tmp_path, backend_appliance, how=how)


def with_transformers(rank, backend):
    import gpt
    import sluice.torch  # noqa: F401
    import stand_in_box
    import tempfile
    import torch
    import transformers
    torch.distributed.init_process_group(backend)
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=13, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    texts = torch.randint(13, (64, 8), generator=torch.Generator().manual_seed(4))
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), max_steps=6, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True)
    trainer = transformers.Trainer(model=model, args=arguments,
                                   train_dataset=[dict(input_ids=text, labels=text)
                                                  for text in texts])
    trainer.train()
    assert trainer.state.global_step == 6
    return gpt.digest(model), stand_in_box.through_box("all_reduce")


def test_transformers_trainer_takes_a_process_group_that_is_there(backend_appliance, tmp_path):
    pytest.importorskip("transformers")
    compared(with_transformers, tmp_path, backend_appliance)


def as_torchtitan(rank, backend):
    """Parallel as its llama is: blocks compiled, then sharded on one dimension of the mesh and
    replicated on the other, in bfloat16; clipped by norm; the loss averaged for the log; a
    checkpoint of shards on the way."""
    import gpt
    import os
    import sluice.torch  # noqa: F401
    import stand_in_box
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    dist.init_process_group(backend)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    torch.manual_seed(1)
    net = gpt.GPT()
    options = dict(mesh=mesh, mp_policy=MixedPrecisionPolicy(
        param_dtype=torch.float32, reduce_dtype=torch.float32))
    for block in net.blocks:
        block.compile(backend="aot_eager")
        fully_shard(block, **options)
    fully_shard(net, **options)
    optimizer = gpt.adamw(net)
    text = gpt.batches(10 + rank)
    folder = os.path.join(os.path.dirname(os.environ["TEST_RESULT"]), "checkpoint")
    for step in range(4):
        loss = net(*next(text))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        if step == 2:
            checkpoint.save(get_model_state_dict(net), checkpoint_id=folder)
    last = [one.full_tensor() for one in net.parameters()]
    state = get_model_state_dict(net)
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state)
    last += [one.full_tensor() for one in net.parameters()]
    through = all(stand_in_box.through_box(kind) for kind in (
        "all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"))
    dist.destroy_process_group()
    return gpt.digest(torch.nn.ParameterList(last)), through


def test_a_script_as_torchtitans_trains_on_a_mesh_of_two_by_two(backend_appliance, tmp_path):
    compared(as_torchtitan, tmp_path, backend_appliance, count=4)


def parallel(rank, how):
    """Data parallel beside tensor or pipeline parallel: over both backends in one process."""
    import gpt
    import sluice.torch  # noqa: F401
    import stand_in_box
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    stand_in_box.start("gloo")

    def mlp():
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(),
                                   torch.nn.Linear(16, 8))

    def trained(backend):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", how),
                                backend_override={"dp": backend, how: backend})
        torch.manual_seed(1)
        inputs = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
        if how == "tp":
            net = parallelize_module(mlp(), mesh[how],
                                     {"0": ColwiseParallel(), "2": RowwiseParallel()})
        else:
            net = [mlp(), mlp()][mesh.get_local_rank(how)]
        fully_shard(net, mesh=mesh["dp"])
        if how == "pp":
            stage = PipelineStage(net, mesh.get_local_rank(how), 2, torch.device("cpu"),
                                  group=mesh.get_group(how))
            schedule = ScheduleGPipe(stage, 2, loss_fn=lambda y, x: (y - x).square().mean())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for _ in range(3):
            x = torch.randn(4, 8, generator=inputs)
            if how == "tp":
                net(x).square().mean().backward()
            elif mesh.get_local_rank(how) == 0:
                schedule.step(x)
            else:
                schedule.step(target=x)
            optimizer.step()
            optimizer.zero_grad()
        return [one.full_tensor() if hasattr(one, "full_tensor") else one.detach()
                for one in net.parameters()]

    equal = [torch.equal(*pair) for pair in zip(trained("sluice"), trained("gloo"))]
    equal.append(stand_in_box.through_box("reduce_scatter_tensor"))
    dist.destroy_process_group()
    return equal


@pytest.mark.parametrize("how", ["tp", "pp"])
def test_tensor_and_pipeline_parallel_train_beside_data_parallel(tmp_path, how):
    for found in ranks.run(parallel, 4, tmp_path, environment=environment(tmp_path),
                           arguments={"how": how}, timeout_s=600):
        assert found == [True] * len(found), found


def test_the_example_for_ray_train_gives_the_parameters_of_gloo(backend_appliance, tmp_path):
    pytest.importorskip("ray")
    # Ray makes the process group before a line of the script: the name must be an installed one.
    wheel = subprocess.run([ROOT / "client/python/build_wheel.sh", BUILD, tmp_path, sys.executable],
                           capture_output=True, text=True, check=True, timeout=600).stdout.strip()
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    # Ray gives its workers niceness 15: on a busy machine they would never get to their start.
    variables = {**os.environ, "SLUICE_ADDRESS": backend_appliance.address, "SLUICE_JOB": "ray",
                 "SLUICE_SECRET": backend_appliance.secret, "OMP_NUM_THREADS": "1",
                 "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0",
                 "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(tmp_path / "installed")}
    ended = subprocess.run([sys.executable, ROOT / "config/deploy/cluster/ray_train.py",
                            "--backends", "sluice", "gloo"],
                           env=variables, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("{")))
    assert found["sluice"] == found["gloo"] and len(found["gloo"]) == 2, found
    assert len(set(found["gloo"])) == 1, found
