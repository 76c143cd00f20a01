"""One rank of a training that goes on over its process group while its appliance is dead.

    fallback_worker.py FILE   rank, address, ... from the environment

Prints "STEP WAY" after each step, WAY: box or group. Ends after five steps over the box that FILE
has seen: until it is there the training goes on. Prints at the end a line of JSON: the digest of
all parameters, and counts.
"""

import hashlib
import json
import logging
import os
import sys
import time
from pathlib import Path

import sluice.torch
import torch
from sluice import _torch_state
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAST_STEPS = 5


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    attachment = sluice.torch.attach(model, job="fallback", fallback="group", fallback_after=1.0)
    draws = torch.Generator().manual_seed(1 + rank)
    over, step, left = Path(sys.argv[1]), 0, LAST_STEPS
    while left:
        step += 1
        images = torch.randn(16, 64, generator=draws)
        labels = torch.randint(10, (16,), generator=draws)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        seen = torch.tensor(float(over.exists()))
        torch.distributed.all_reduce(seen)  # all ranks count alike
        left -= bool(seen) and not attachment.is_away
        print(step, "group" if attachment.is_away else "box", flush=True)
        time.sleep(0.02)
    stats = attachment.stats()
    attachment.detach()
    digest = hashlib.sha256(_torch_state.encode(net.state_dict())).hexdigest()
    print(json.dumps({"digest": digest, "steps": step, "group_steps": stats["group_steps"]}))


main()
