"""The least code with which each framework trains through an appliance, against the same script
under SLUICE_DISABLE=1: two ranks, so the bits are equal. Of PyPI's newest: ./run test-frameworks.
"""

import json
import os
import secrets
import subprocess
import sys

import pytest
import ranks

torch = pytest.importorskip("torch")
if not hasattr(torch, "compiler"):
    pytest.skip(f"frameworks need torch 2, this is {torch.__version__}: ./run test-frameworks",
                allow_module_level=True)

DISABLED = {"SLUICE_DISABLE": "1"}


def compared(script, folder, box, steps=6, **more):
    """script(rank) with and without Sluice; the values of the ranks with it, whose jobs have summed
    so many steps."""
    values = {}
    for way, environment in (("sluice", {}), ("disabled", DISABLED)):
        (folder / way).mkdir()
        environment = {**environment, "GLOO_SOCKET_IFNAME": "lo", "LT_ACCELERATOR": "cpu",
                       "TORCHELASTIC_RUN_ID": secrets.token_hex(4), **more}
        values[way] = ranks.run(script, 2, folder / way, box=box, environment=environment,
                                timeout_s=240)
    digests = {value["digest"] for way in values.values() for value in way}
    assert len(digests) == 1, values
    assert [value["steps"] for value in values["sluice"]] == [steps, steps], values
    return values["sluice"]


def with_accelerate(rank):
    import accelerate
    import gpt
    import sluice.torch
    import torch
    torch.manual_seed(1)
    handlers = [accelerate.DistributedDataParallelKwargs(gradient_as_bucket_view=True)]
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2,
                                         kwargs_handlers=handlers)
    net = gpt.GPT()
    model, optimizer = accelerator.prepare(net, gpt.adamw(net))
    attachment = sluice.torch.overlap(model, optimizer)  # the one added line
    text = gpt.batches(10 + rank)
    for _ in range(8):
        with accelerator.accumulate(model):
            accelerator.backward(model(*next(text)))
            optimizer.step()
            optimizer.zero_grad()
    attachment.flush()
    return dict(digest=gpt.digest(net), steps=attachment.stats().get("steps_done", 0),
                overlapped=attachment.overlapped_steps, reason=attachment.reason)


def test_accelerate_and_its_wrapped_optimizer_overlap(appliance, tmp_path):
    pytest.importorskip("accelerate")
    for value in compared(with_accelerate, tmp_path, appliance, steps=4):
        assert (value["overlapped"], value["reason"]) == (3, None)


def with_lightning(rank, overlap):
    import gpt
    import lightning as L
    import lightning_gpt
    import sluice.lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Counted(sluice.lightning.Sluice):
        def on_train_end(self, trainer, module):
            if overlap:
                self.attachment.flush()
            self.steps = self.attachment.stats().get("steps_done", 0)
            super().on_train_end(trainer, module)

    counted = Counted(overlap=overlap)
    trainer = L.Trainer(
        strategy=DDPStrategy(gradient_as_bucket_view=True, process_group_backend="gloo"),
        accelerator="cpu", devices=2, max_steps=6, accumulate_grad_batches=1 if overlap else 2,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[counted])
    module = lightning_gpt.Module()
    lightning_gpt.fit(trainer, module, rank)
    assert trainer.global_step == 6
    return dict(digest=gpt.digest(module.net), steps=counted.steps,
                overlapped=counted.attachment.overlapped_steps if overlap else None,
                reason=getattr(counted.attachment, "reason", None))


@pytest.mark.parametrize("overlap", [False, True], ids=["attach", "overlap"])
def test_lightning_trains_with_the_callback_and_its_closures_overlap(appliance, tmp_path, overlap):
    pytest.importorskip("lightning")
    arguments = {"TEST_ARGUMENTS": f'{{"overlap": {str(overlap).lower()}}}'}
    for value in compared(with_lightning, tmp_path, appliance, **arguments):
        if overlap:
            assert (value["overlapped"], value["reason"]) == (5, None)


def with_fabric(rank):
    import gpt
    import sluice.torch
    import torch
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy
    torch.manual_seed(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy(
        gradient_as_bucket_view=True, process_group_backend="gloo"))
    fabric.launch()
    net = gpt.GPT()
    model, optimizer = fabric.setup(net, gpt.adamw(net))
    attachment = sluice.torch.attach(model._forward_module)  # the one added line
    text = gpt.batches(10 + rank)
    for _ in range(6):
        fabric.backward(model(*next(text)))
        optimizer.step()
        optimizer.zero_grad()
    return dict(digest=gpt.digest(net), steps=attachment.stats().get("steps_done", 0))


def test_fabric_attaches_to_the_ddp_model_inside_its_wrapper(appliance, tmp_path):
    pytest.importorskip("lightning")
    compared(with_fabric, tmp_path, appliance)


def with_transformers(rank):
    import gpt
    import sluice.transformers
    import tempfile
    import torch
    import transformers

    class Trainer(sluice.transformers.Sluice, transformers.Trainer):
        steps = 0

        def training_step(self, *arguments, **options):
            loss = super().training_step(*arguments, **options)
            self.steps = self.attachment.stats().get("steps_done", 0)
            return loss

    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=13, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    generator = torch.Generator().manual_seed(4)
    texts = torch.randint(13, (64, 8), generator=generator)
    data = [dict(input_ids=text, labels=text) for text in texts]
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), max_steps=6, per_device_train_batch_size=4, use_cpu=True,
        report_to=[], save_strategy="no", disable_tqdm=True, ddp_backend="gloo")
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    assert trainer.state.global_step == 6
    return dict(digest=gpt.digest(model), steps=trainer.steps)


def test_transformers_trainer_trains_with_the_mixin(appliance, tmp_path):
    pytest.importorskip("transformers")
    compared(with_transformers, tmp_path, appliance)


TORCHRUN = """
import os, sys
import ddp_worker as w, gpt, sluice.torch, torch
net = gpt.GPT()
model = w.start(net)
attachment = sluice.torch.attach(model)
text = gpt.batches(int(os.environ["RANK"]))
for step in range(4):
    model(*next(text)).backward()
    if step == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        os._exit(3)
steps = attachment.stats()["steps_done"]
os.write(1, f"steps {steps}\\n".encode())  # at once, or the ranks' words mix
attachment.detach()
torch.distributed.destroy_process_group()
"""


def test_torchrun_starts_a_failed_run_again_under_an_exported_run_id(appliance, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    # Torch's agent offers both attempts one store, where rank 1 may find rank 0's address of the
    # first: Gloo then waits for a process that is gone, also in a script without Sluice.
    environment = {**os.environ, "SLUICE_ADDRESS": appliance.address, "OMP_NUM_THREADS": "1",
                   "SLUICE_SECRET": appliance.secret, "SLUICE_RUN_ID": "exported",
                   "SLUICE_JOB": "torchrun", "GLOO_SOCKET_IFNAME": "lo",
                   "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                   "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], *sys.path[:2]))}
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "--max-restarts=1", str(script)], env=environment, capture_output=True, text=True,
        timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("steps 4") == 2, ended.stdout


RAY_TRAIN = """
import os, sys, tempfile
import ray, ray.train, ray.train.torch

def train(config):
    import json, os
    os.environ.update(config["environment"])
    import gpt, ray.train.torch, sluice.torch, torch
    torch.manual_seed(1)
    model = ray.train.torch.prepare_model(gpt.GPT())
    attachment = sluice.torch.attach(model)  # the one added line
    optimizer = gpt.adamw(model.module)
    rank = torch.distributed.get_rank()
    text = gpt.batches(10 + rank)
    for _ in range(6):
        model(*next(text)).backward()
        optimizer.step()
        optimizer.zero_grad()
    value = dict(digest=gpt.digest(model.module), steps=attachment.stats().get("steps_done", 0))
    with open(f"{config['result']}{rank}", "w") as file:
        json.dump(value, file)

with tempfile.TemporaryDirectory(prefix="ray") as folder:  # short, for its sockets
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder)
    for way, environment in (("sluice", {}), ("disabled", {"SLUICE_DISABLE": "1"})):
        trainer = ray.train.torch.TorchTrainer(
            train, train_loop_config=dict(environment=environment, result=sys.argv[1] + way),
            scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
            torch_config=ray.train.torch.TorchConfig(backend="gloo"),
            run_config=ray.train.RunConfig(storage_path=folder))
        trainer.fit()
    ray.shutdown()
"""


def test_ray_train_with_the_line_in_its_training_function(appliance, tmp_path):
    pytest.importorskip("ray")
    script = tmp_path / "script.py"
    script.write_text(RAY_TRAIN)
    # Ray gives its workers niceness 15: on a busy machine they would never get to their start.
    environment = {**os.environ, "SLUICE_ADDRESS": appliance.address, "OMP_NUM_THREADS": "1",
                   "SLUICE_SECRET": appliance.secret, "SLUICE_JOB": "ray",
                   "RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0",
                   "GLOO_SOCKET_IFNAME": "lo",
                   "PYTHONPATH": os.pathsep.join((os.environ["PYTHONPATH"], *sys.path[:2]))}
    ended = subprocess.run([sys.executable, str(script), f"{tmp_path}/"], env=environment,
                           capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    values = {way: [json.loads((tmp_path / f"{way}{rank}").read_text()) for rank in range(2)]
              for way in ("sluice", "disabled")}
    assert len({value["digest"] for way in values.values() for value in way}) == 1, values
    assert [value["steps"] for value in values["sluice"]] == [6, 6], values
