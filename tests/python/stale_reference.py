"""Trainings with StaleSynchronous and bound 0, against one process that computes for all ranks.

    stale_reference.py STEPS

trains as one rank of the launcher's environment and prints outcomes() as a line of JSON.
"""

import json
import os
import sys

import torch
from updates import allowed_ulps, ulps_apart

KINDS = ("sgd", "momentum", "adam")
RATE = 0.003  # of Adam


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(12, 90), torch.nn.Tanh(), torch.nn.Linear(90, 4))


def batches(rank, steps):
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        inputs = torch.randn(8, 12, generator=generator)
        yield inputs, inputs[:, :4].argmax(1)


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def make(kind, model):
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=RATE)
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 * (kind == "momentum"))


def mean(values):
    """In the order of ranks, and then divided: as the appliance does."""
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total / torch.tensor(float(len(values)))


def updates(kind, where, ranks, steps, starts=None):
    """Parameters after each step of the synchronous job, one optimizer for the mean of gradients
    ('store'), or of one that takes the mean of what each rank's own optimizer has changed
    ('worker'). `starts`: what each step begins at, instead of the parameters of the one before."""
    model = network()
    parameters = list(model.parameters())
    replicas = [network() for _ in range(ranks)]
    optimizers = [make(kind, replica) for replica in replicas]
    shared = make(kind, model)
    for step, each in enumerate(zip(*(batches(rank, steps) for rank in range(ranks)))):
        if starts is not None:
            assign(parameters, starts[step])
        pushed = []
        for replica, optimizer, batch in zip(replicas, optimizers, each):
            assign(replica.parameters(), parameters)
            optimizer.zero_grad()
            loss_of(replica, batch).backward()
            if where == "worker":
                optimizer.step()
                pushed.append([(mine - common).detach() for mine, common in
                               zip(replica.parameters(), parameters)])
            else:
                pushed.append([mine.grad for mine in replica.parameters()])
        means = [mean(values) for values in zip(*pushed)]
        if where == "store":
            for common, gradient in zip(parameters, means):
                common.grad = gradient
            shared.step()
        else:
            with torch.no_grad():
                for common, delta in zip(parameters, means):
                    common += delta
        yield parameters


def assign(parameters, values):
    with torch.no_grad():
        for mine, value in zip(parameters, values):
            mine.copy_(value)


def copies(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def apart(kind, where, ranks, history):
    """The greatest distance of an update in `history`, parameters before each step and after the
    last, from the reference's, in ulps."""
    found = [ulps_apart(mine, first, RATE) for mine, first in
             zip(history[0], network().parameters())]
    wanted = updates(kind, where, ranks, len(history) - 1, history)
    for after, parameters in zip(history[1:], wanted):
        found += [ulps_apart(mine, other, RATE) for mine, other in zip(after, parameters)]
    return max(found)


def flat(parameters):
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def outcomes(rank, ranks, steps):
    """By training: how far its updates are from those of its reference, in ulps, its greatest
    difference from the synchronous job as a part of the greatest parameter, the last loss, and
    contributions that were sent again."""
    import sluice.torch

    torch.set_num_threads(1)
    found = {}
    for kind in KINDS:
        *_, last = updates(kind, "store", ranks, steps)
        synchronous = flat(last)
        for where in ("store", "worker"):
            model = network()
            optimizer = make(kind, model)
            history = []
            with sluice.torch.StaleSynchronous(model, optimizer, bound=0, optimizer_at=where,
                                               push_at="backward" if kind == "momentum" else "step",
                                               reproducible=True, job=f"{where}-{kind}") as stale:
                for batch in batches(rank, steps):
                    stale.flush()
                    history.append(copies(model))
                    optimizer.zero_grad()
                    loss = loss_of(model, batch)
                    loss.backward()
                    optimizer.step()
                stale.synchronise(60)
                history.append(copies(model))
                stats = stale.stats()
            mine = flat(model.parameters())
            found[f"{where}-{kind}"] = {
                "apart": apart(kind, where, ranks, history), "loss": loss.item(),
                "off": ((mine - synchronous).abs().max() / synchronous.abs().max()).item(),
                "retransmissions": stats["retransmissions"]}
    return found


def check(values):
    """What all ranks have returned is what client/python/STORE.md promises."""
    for found in values:
        assert len(found) == 2 * len(KINDS)
        for name, each in found.items():
            where, kind = name.split("-")
            assert each["apart"] <= allowed_ulps(kind, where), (name, found)
            assert each["loss"] < 1.2, (name, found)
        # Averaging what SGD and momentum change is what they make of the mean, but for rounding.
        for kind in ("sgd", "momentum"):
            assert found[f"worker-{kind}"]["off"] < 1e-5, found
        # Else no tolerance would be met by chance.
        assert found["worker-adam"]["off"] > 1e-3, found


if __name__ == "__main__":
    print(json.dumps(outcomes(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]),
                              int(sys.argv[1]))))
