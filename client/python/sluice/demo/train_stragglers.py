"""The training of train.py for ranks that need not wait for each other.

DDP runs in a process group of this worker alone, and a `Loop` runs the optimizer, so a step is
complete with the gradients of K ranks: the other ranks apply it too, and their late gradients go
into the step that is open then. A rank that was killed and started again takes the parameters of a
rank that lives.
"""

import json
import math
import os
import time

import sluice.torch
import torch
from sluice.demo import train as plain
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

_WARM_UP_STEPS = 30


def rate(step, total):
    """The share of the greatest learning rate: a warm-up, then a cosine to a hundredth."""
    progress = min(1.0, step / total)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (0.01 + 0.99 * cosine)


def batches(data, batch, rank, world_size):
    """Batches of this rank without end, in an order that depends on epoch and rank alone."""
    sampler = DistributedSampler(data, world_size, rank, seed=plain.SEED, drop_last=True)
    loader = DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    options = plain.options(__doc__.splitlines()[0], lambda parser: (
        parser.add_argument("--k", type=int, required=True, help="ranks that complete a step"),
        parser.add_argument("--until", help="file that a rank makes once it has come back; the "
                                            "training goes on until it is there")))
    torch.set_num_threads(1)
    torch.manual_seed(plain.SEED)
    data, test_images, test_labels = plain.digits()
    net = plain.network()
    model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, policy="fixed", k=options.k, late="requeue")
    rank, world_size = attachment.job.rank, attachment.job.world_size
    total = options.epochs * (len(data) // world_size // options.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, total))
    loop = sluice.torch.Loop(attachment, optimizer, schedule)
    again = int(os.environ.get("SLUICE_RESTART_COUNT", "0"))
    source = batches(data, options.batch, rank, world_size)
    losses = {}
    start = time.perf_counter()
    with tqdm(total=total, desc=options.label, unit="step", disable=rank != 0, ncols=78) as bar:
        for step in loop.steps():
            if again and options.until:
                open(options.until, "w").close()
            if step > total and (not options.until or os.path.exists(options.until)):
                break
            plain.hinder(options, step, again)
            images, labels = next(source)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            losses[step] = loss.item()
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{losses[step]:.3f}", refresh=False)
        loop.finish()
    seconds = time.perf_counter() - start
    net.eval()
    with torch.no_grad():
        accuracy = (net(test_images).argmax(1) == test_labels).float().mean().item()
    if options.out:
        with open(os.path.join(options.out, f"rank{rank}.json"), "w") as file:
            json.dump(dict(rank=rank, steps=loop.applied, seconds=seconds, accuracy=accuracy,
                           losses=[losses.get(step) for step in range(1, loop.applied + 1)],
                           missed=loop.missed, sha256=plain.fingerprint(net)), file)
    attachment.detach()


if __name__ == "__main__":
    main()
