"""One rank of the ddp_overlap bench, for any side; ddp_overlap.py starts it in a host of the lab.

    ddp_overlap_worker.py gloo|plain|overlap BATCH WIDTH BUFFERS

RANK, WORLD_SIZE and the addresses are in the environment. BUFFERS is DDP's broadcast_buffers.
It prints the bytes of the model and of a chunk once joined. Then, for each line on standard input,
a line of JSON:

    compute N   seconds of forward, backward and optimizer without communication, medians of N;
                for the side gloo
    steps N     monotonic nanoseconds at the starts of N + 1 steps in full flight, after one more

The clock is common to the ranks of one machine. End of input ends it.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel

IMAGE = (3, 32, 32)
CLASSES = 10
BUCKET_MB = 1
WARM_UP_STEPS = 1


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential() if stride == 1 else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = relu(self.first_norm(self.first(x)))
        return relu(self.second_norm(self.second(y)) + self.shortcut(x))


def residual_net(width):
    """A residual network of four stages with one block each, for small images."""
    stages = [Block(width << max(0, stage - 1), width << stage, 1 if stage == 0 else 2)
              for stage in range(4)]
    return nn.Sequential(
        nn.Conv2d(IMAGE[0], width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width << 3, CLASSES))


class Training:
    def __init__(self, side, batch, width, buffers):
        torch.manual_seed(1)
        dist.init_process_group("gloo")
        net = residual_net(width)
        self.bytes = sum(p.numel() * p.element_size() for p in net.parameters())
        self.model = DistributedDataParallel(net, gradient_as_bucket_view=True,
                                             bucket_cap_mb=BUCKET_MB,
                                             broadcast_buffers=bool(buffers))
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        self.chunk_bytes = 0
        if side != "gloo":
            import sluice.torch
            attachment = (sluice.torch.attach(self.model) if side == "plain" else
                          sluice.torch.overlap(self.model, self.optimizer))
            self.chunk_bytes = attachment.stats()["chunk_bytes"]
        self.images = torch.randn(batch, *IMAGE)
        self.labels = torch.randint(CLASSES, (batch,))

    def step(self):
        cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def steps(self, count):
        """Full flight at both ends: a step of overlap() ends in the forward of the next one."""
        dist.barrier()
        starts = []
        for _ in range(WARM_UP_STEPS + count + 1):
            starts.append(time.monotonic_ns())
            self.step()
        return starts[WARM_UP_STEPS:]

    def compute(self, count):
        dist.barrier()
        rows = []
        for _ in range(count):
            times = [time.monotonic()]
            with self.model.no_sync():
                loss = cross_entropy(self.model(self.images), self.labels)
                times.append(time.monotonic())
                loss.backward()
            times.append(time.monotonic())
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            times.append(time.monotonic())
            rows.append([later - earlier for earlier, later in zip(times, times[1:])])
        return [statistics.median(column) for column in zip(*rows)]


def main():
    torch.set_num_threads(1)
    training = Training(sys.argv[1], *map(int, sys.argv[2:]))
    print(json.dumps([training.bytes, training.chunk_bytes]), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(json.dumps({"compute": training.compute, "steps": training.steps}[name](int(count))),
              flush=True)


if __name__ == "__main__":
    main()
