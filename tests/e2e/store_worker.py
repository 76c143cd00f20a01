"""One rank of a training with StaleSynchronous; its name, address, ... from the environment.

    store_worker.py BOUND WHERE ITERATIONS SECONDS [FILE]

The last quarter of the iterations begins once FILE is there. Prints "joined" and, at the end, one
line of JSON.
"""

import hashlib
import json
import os
import sys
import time

import sluice.torch
import torch


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 300),
                               torch.nn.Tanh(), torch.nn.Linear(300, 5))


def loss_of(model, generator, count):
    inputs = torch.randn(count, 20, generator=generator)
    return torch.nn.functional.cross_entropy(model(inputs), inputs[:, :5].argmax(1))


def main():
    bound, where, steps, seconds, *held_until = sys.argv[1:]
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with sluice.torch.StaleSynchronous(
            model, optimizer, bound=None if bound == "none" else int(bound), optimizer_at=where,
            reproducible=bound == "0") as stale:
        rank = stale.store.rank
        generator = torch.Generator().manual_seed(rank)
        print("joined", flush=True)
        own = []
        while stale.iterations < int(steps):
            own.append(stale.iterations)
            while len(own) > 3 * int(steps) // 4 and not all(map(os.path.exists, held_until)):
                time.sleep(0.01)
            optimizer.zero_grad()
            loss_of(model, generator, 16).backward()
            if bound != "none":
                assert all(clocks.held >= stale.iterations - int(bound)
                           for clocks in stale.clocks().values())
            optimizer.step()
            time.sleep(float(seconds))
        stale.synchronise(30)
        stats = stale.stats()
        with torch.no_grad():  # of all ranks' steps; one that was ahead has not trained on them
            loss = loss_of(model, generator, 2000).item()
        print(json.dumps({
            "sha": hashlib.sha256(b"".join(p.detach().numpy().tobytes()
                                           for p in model.parameters())).hexdigest(),
            "loss": loss, "iterations": own,
            "retransmissions": stats["retransmissions"], "probes": stats["probes"],
            "kept": stale.store.kept, "suspended_ns": stats["suspended_ns"],
            "restarts": stats["appliance_restarts"]}))


if __name__ == "__main__":
    main()
