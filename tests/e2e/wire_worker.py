"""One rank of trainings whose gradients travel in several formats, one training after another.

    wire_worker.py STEPS SEEDS FORMAT...     rank, address, ... from the environment

A small network learns scikit-learn's handwritten digits, from a seed, twice. In the first training
every step waits for all ranks. In the second each step waits for all ranks but one: a rank drawn
from the seed is late, and its gradient is requeued. Prints one line of JSON, a list with an entry
for each training.
"""

import hashlib
import json
import os
import sys
import time

import sluice.torch
import torch
from sklearn.datasets import load_digits
from sluice import _torch_state
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = int(os.environ["WORLD_SIZE"])
POLICIES = {"all": {"policy": "sync"},
            "fastest": {"policy": "fixed", "k": WORLD_SIZE - 1, "late": "requeue"}}
BATCH, TRAINED, LATE_S = 32, 1200, 0.02


def train(images, labels, policy, wire, seed, steps):
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    trained, held = order[:TRAINED], order[TRAINED:]
    slow = torch.randint(WORLD_SIZE, (steps + 1,)).tolist()
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, job=f"{policy}-{wire}-{seed}", wire=wire,
                                     **POLICIES[policy])
    loop = sluice.torch.Loop(attachment, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    rank = attachment.job.rank
    draws = torch.Generator().manual_seed(seed * WORLD_SIZE + rank)
    for step in loop.steps(steps):
        if policy == "fastest" and slow[step] == rank:
            time.sleep(LATE_S)
        batch = trained[torch.randint(TRAINED, (BATCH,), generator=draws)]
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(net(images[trained]), labels[trained])
        right = (net(images[held]).argmax(1) == labels[held]).float().mean()
    stats = attachment.stats()
    attachment.detach()
    return {"policy": policy, "wire": wire, "seed": seed,
            "loss": float(loss), "accuracy": 100 * float(right),
            "digest": hashlib.sha256(_torch_state.encode(net.state_dict())).hexdigest(),
            "bytes": stats["bytes_sent"], "missed": loop.missed,
            **{name: stats[f"{name}_chunks"]
               for name in ("delivered", "requeued", "kept", "discarded")}}


def main():
    steps, seeds, formats = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    found = load_digits()
    images = torch.from_numpy(found.data / 16).float()
    labels = torch.from_numpy(found.target)
    print(json.dumps([train(images, labels, policy, wire, seed, steps)
                      for seed in range(seeds) for policy in POLICIES for wire in formats]))


main()
