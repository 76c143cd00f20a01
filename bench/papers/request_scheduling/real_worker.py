"""One rank of a training in the lab; real.py starts it in a host of its own.

    real_worker.py JSON    RANK, WORLD_SIZE, addresses: in the environment

Prints one line of JSON at the end.
"""
import json
import os
import sys
import time

import torch

import sluice.torch
from papers.saina import models, stragglers, tasks
from papers.saina.training import BATCH


class Layer(torch.nn.Module):
    """The network's parameters, one flat row, are one layer of the store."""

    def __init__(self, network, seed):
        super().__init__()
        self.network, self.row = network, torch.nn.Parameter(network.initial(seed))

    def forward(self, images):
        return self.network.logits(self.row.unsqueeze(0), images.unsqueeze(1))[:, 0]


def main():
    task = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    data = tasks.load("generated", task["seed"])
    shards = tasks.Shards(data, workers, BATCH, stragglers.is_skewed(task["setting"]), task["seed"])
    durations = stragglers.Durations(task["setting"], workers, task["seed"])
    model = Layer(models.Network("small"), task["seed"])
    optimizer = torch.optim.SGD(model.parameters(), lr=task["rate"])
    with sluice.torch.StaleSynchronous(model, optimizer, bound=task["bound"],
                                       optimizer_at="store") as stale:
        stale.flush()
        stale.store.barrier()
        began, pushed = time.monotonic(), []
        while time.monotonic() < began + task["limit_s"]:
            stale.flush()  # a gradient's time begins when its parameters are here
            due = time.monotonic() + task["scale"] * durations.next_us(rank) / stragglers.US
            indices = torch.from_numpy(shards.next_batch(rank))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(data.train_images[indices]),
                                                     data.train_labels[indices])
            loss.backward()
            time.sleep(max(0.0, due - time.monotonic()))
            optimizer.step()
            pushed.append(time.monotonic())
        said = {"began_s": began, "pushed_s": pushed, "suspended_s": stale.suspended_s,
                "staleness": stale.staleness}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
