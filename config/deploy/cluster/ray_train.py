"""Trains over the appliance with Ray Train: python3 ray_train.py [--workers N].

Run it where Ray's head runs, with SLUICE_ADDRESS and SLUICE_SECRET in the environment. The wheel is
installed on all nodes, with torch 2.15 or newer: Ray makes the process group before the function
runs. Prints, as its last line, a digest of each worker's parameters: they are equal. With
`--backends sluice gloo` it trains over both.
"""

import argparse
import hashlib
import json
import os
import pathlib
import tempfile

import ray
import ray.train
import ray.train.torch

# What each worker needs of the client's environment variables; more of them go here likewise.
VARIABLES = ("SLUICE_ADDRESS", "SLUICE_SECRET", "SLUICE_JOB", "PYTHONPATH")


def train(config):
    import torch
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank = ray.train.get_context().get_world_rank()
    data = torch.Generator().manual_seed(rank)
    for step in range(config["steps"]):
        x = torch.randn(16, 32, generator=data)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ray.train.report({"step": step, "loss": loss.item()})
    values = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
    pathlib.Path(config["results"], str(rank)).write_text(hashlib.sha256(values).hexdigest())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=["sluice"])
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    ray.init(runtime_env={"env_vars": environment})
    print(json.dumps({backend: trained(backend, options) for backend in options.backends}))
    ray.shutdown()


def trained(backend, options):
    """A digest of each worker's parameters."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # shared, where there are more nodes
        ray.train.torch.TorchTrainer(
            train, train_loop_config={"steps": options.steps, "results": folder},
            scaling_config=ray.train.ScalingConfig(num_workers=options.workers),
            torch_config=ray.train.torch.TorchConfig(backend=backend),
            run_config=ray.train.RunConfig(storage_path=folder)).fit()
        return [pathlib.Path(folder, str(rank)).read_text() for rank in range(options.workers)]


if __name__ == "__main__":
    main()
