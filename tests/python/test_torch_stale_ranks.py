"""StaleSynchronous over vhost-user, where a rank's link loses packets: with bound 0 parameters are,
update by update, those of a synchronous training that one process computes for all ranks.
"""

import pytest
from ranks import run

pytest.importorskip("torch")

from updates import allowed_ulps  # noqa: E402

RANKS = 4
STEPS = 100


def against_a_reference(rank, steps):
    """How each training went: its distance from the reference, its loss, what the link cost."""
    import sluice.torch
    import torch
    from updates import ulps_apart

    torch.set_num_threads(1)
    ranks = 4

    def network():
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(12, 90), torch.nn.Tanh(), torch.nn.Linear(90, 4))

    def batches(of_rank):
        generator = torch.Generator().manual_seed(100 + of_rank)
        for _ in range(steps):
            inputs = torch.randn(8, 12, generator=generator)
            yield inputs, inputs[:, :4].argmax(1)

    def loss_of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    def make(kind, model):
        if kind == "adam":
            return torch.optim.Adam(model.parameters(), lr=0.003)
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9 * (kind == "momentum"))

    def mean(values):  # in the order of ranks, and then divided: as the appliance does
        total = values[0].clone()
        for value in values[1:]:
            total += value
        return total / torch.tensor(float(ranks))

    def apart(kind, where, history):
        """The greatest distance of an update in `history` from that of gradients, by one optimizer;
        or from the mean of what each rank's own optimizer has changed."""
        model = network()
        parameters = list(model.parameters())
        replicas = [network() for _ in range(ranks)]
        optimizers = [make(kind, replica) for replica in replicas]
        shared = make(kind, model)
        found = [ulps_apart(mine, first, 0.003) for mine, first in zip(parameters, history[0])]
        trained = zip(history, history[1:], zip(*(batches(of_rank) for of_rank in range(ranks))))
        for before, after, each in trained:
            with torch.no_grad():
                for common, value in zip(parameters, before):
                    common.copy_(value)
            pushed = []
            for replica, optimizer, batch in zip(replicas, optimizers, each):
                with torch.no_grad():
                    for mine, common in zip(replica.parameters(), parameters):
                        mine.copy_(common)
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
            found += [ulps_apart(mine, wanted, 0.003) for mine, wanted in zip(after, parameters)]
        return max(found)

    def copies(model):
        return [parameter.detach().clone() for parameter in model.parameters()]

    outcomes = {}
    for where in ("store", "worker"):
        for kind in ("sgd", "momentum", "adam"):
            model = network()
            optimizer = make(kind, model)
            with sluice.torch.StaleSynchronous(
                    model, optimizer, bound=0, optimizer_at=where, reproducible=True,
                    job=f"{where}-{kind}") as stale:
                history = []
                for batch in batches(rank):
                    stale.flush()
                    history.append(copies(model))
                    optimizer.zero_grad()
                    loss = loss_of(model, batch)
                    loss.backward()
                    optimizer.step()
                stale.settle(60)
                history.append(copies(model))
                stats = stale.stats()
            assert len(history) == steps + 1
            outcomes[f"{where}-{kind}"] = [apart(kind, where, history), loss.item(),
                                           stats["retransmissions"]]
    return outcomes


def test_bound_0_is_the_synchronous_training_update_by_update(lossy_appliance, tmp_path):
    values = run(against_a_reference, RANKS, tmp_path, box=lossy_appliance, timeout_s=280,
                 arguments={"steps": STEPS})
    for outcome in values:
        assert len(outcome) == 6
        for name, (apart, _, _) in outcome.items():
            where, kind = name.split("-")
            assert apart <= allowed_ulps(kind, where), outcome
        assert all(loss < 1.2 for _, loss, _ in outcome.values()), outcome
    assert sum(again for _, _, again in values[RANKS - 1].values()) > 0, "its link loses packets"
