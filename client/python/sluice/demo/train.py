"""An ordinary DistributedDataParallel script, with one added line.

Trains a small CNN with batch normalisation on scikit-learn's handwritten digits. Start it with
`python3 -m sluice launch -n 4 train.py`, or with torchrun. SLUICE_DISABLE=1 leaves the gradients to
DDP's own all-reduce, here over Gloo, without a change to the script.
"""

import argparse
import hashlib
import json
import os
import signal
import time

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

SEED = 7
TEST_SHARE = 0.3


def digits():
    """(training set, test images, test labels); the split never changes."""
    bunch = load_digits()
    images = (bunch.images.astype(numpy.float32) / 16.0)[:, None]
    train_x, test_x, train_y, test_y = train_test_split(
        images, bunch.target, test_size=TEST_SHARE, random_state=SEED, stratify=bunch.target)
    train = TensorDataset(torch.from_numpy(train_x), torch.from_numpy(train_y))
    return train, torch.from_numpy(test_x), torch.from_numpy(test_y)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))


def hinder(options, step, restarts=0):
    """What the demonstration does to this rank: it computes longer, or is killed in a step."""
    if options.die_at is not None and step >= options.die_at and not restarts:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(options.pause)


def train(model, data, options):
    """Returns (loss of each step, seconds)."""
    rank = dist.get_rank()
    sampler = DistributedSampler(data, seed=SEED, drop_last=True)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, drop_last=True)
    steps = options.epochs * len(loader)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=steps)
    criterion = nn.CrossEntropyLoss()
    losses = []
    start = time.perf_counter()
    with tqdm(total=steps, desc=options.label, unit="step", disable=rank != 0, ncols=78) as bar:
        for epoch in range(options.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                hinder(options, len(losses) + 1)
                loss = criterion(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
                bar.update()
                bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    return losses, time.perf_counter() - start


def accuracy(model, images, labels):
    """Share of right answers.

    All ranks ask the DDP model, not model.module: a forward of the DDP model first copies rank 0's
    buffers to all ranks (broadcast_buffers=True, the default), and in eval mode no forward changes
    them. So batch normalisation's running statistics are equal on all ranks afterwards.
    """
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def fingerprint(module):
    """sha256 of all parameters and buffers, in registration order."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def options(text, more=lambda parser: None):
    """The command line; `more` adds to it."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--label", default="training", help="name on the progress bar")
    parser.add_argument("--out", help="folder for rank<R>.json")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S",
                        help="seconds by which each step of this rank takes longer")
    parser.add_argument("--die-at", type=int, metavar="STEP",
                        help="kill this process with SIGKILL in that step, or the next that it "
                             "computes")
    more(parser)
    return parser.parse_args()


def main():
    chosen = options(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    data, test_images, test_labels = digits()

    model = DistributedDataParallel(network())
    import sluice.torch; sluice.torch.attach(model)  # noqa: E702 - the one added line

    losses, seconds = train(model, data, chosen)
    result = dict(rank=dist.get_rank(), steps=len(losses), seconds=seconds, losses=losses,
                  accuracy=accuracy(model, test_images, test_labels),
                  sha256=fingerprint(model.module))
    if chosen.out:
        with open(os.path.join(chosen.out, f"rank{result['rank']}.json"), "w") as file:
            json.dump(result, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
