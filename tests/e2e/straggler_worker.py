"""One rank of a training whose steps take a fixed time: its compute, padded by sleep.

    straggler_worker.py SECONDS UNTIL     policy, rank, ... from the environment

Prints "step NUMBER MONOTONIC_SECONDS CPU_SECONDS" when it starts to compute a step (CPU of the one
before) and, after the file UNTIL has appeared and all ranks have finished, one line of JSON.
"""

import hashlib
import json
import os
import sys
import time

import sluice.torch
import torch
from sluice import _torch_state
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def network():
    torch.manual_seed(int(os.environ["RANK"]))  # rank 0's weights must win
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 36, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def main():
    seconds, until = float(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    net = network()
    model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    loop = sluice.torch.Loop(attachment, optimizer, scheduler)
    generator = torch.Generator().manual_seed(1000 + attachment.job.rank)
    cpu = time.process_time()
    for step in loop.steps():
        start = time.monotonic()
        print(f"step {step} {start:.6f} {time.process_time() - cpu:.6f}", flush=True)
        cpu = time.process_time()
        if os.path.exists(until):
            break
        images = torch.randn(8, 1, 8, 8, generator=generator)
        labels = torch.randint(10, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(images), labels)
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        loss.backward()
    loop.finish()
    state = [net.state_dict(), optimizer.state_dict(), scheduler.state_dict()]
    stats = attachment.stats()
    print(json.dumps({
        "model": hashlib.sha256(_torch_state.encode(state[0])).hexdigest(),
        "all": hashlib.sha256(_torch_state.encode(state)).hexdigest(),
        "applied": loop.applied, "missed": loop.missed, "resyncs": loop.resyncs,
        "batches": int(net[1].num_batches_tracked),
        "restarts": stats["appliance_restarts"],
        "late_chunks": stats["late_chunks"], "cancelled_bytes": stats["cancelled_bytes"]}))
    attachment.detach()


main()
