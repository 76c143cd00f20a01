"""One rank of a training whose appliance may be killed and started again.

    restart_worker.py HOW STEPS [STEP ...]  rank, address, ... from the environment
                                            HOW: attach, overlap, or backend: the process
                                            group's own, without any hook

A small network learns numbers drawn from a seed, with a broadcast every few steps. Prints the
number of each step that is done; after each STEP rank 0 waits for a line on its standard input, and
the others wait in their next step. Prints at the end a line of JSON: the digest of all parameters,
and how many restarts the job has survived.
"""

import hashlib
import json
import os
import sys
import time

import numpy
import sluice.torch
import torch
from sluice import _torch_state
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BROADCAST_EVERY = 3
WIDTH = 512


def main():
    how, steps = sys.argv[1], int(sys.argv[2])
    waits_after = {int(step) for step in sys.argv[3:]}
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    torch.distributed.init_process_group(  # Gloo's frames pass the same appliance
        "sluice" if how == "backend" else "gloo")
    net = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = DistributedDataParallel(net, gradient_as_bucket_view=True)  # as overlap() needs it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    options = {"job": f"restart-{how}", "reproducible": True}
    attachment = None
    if how != "backend":
        attach = sluice.torch.overlap if how == "overlap" else sluice.torch.attach
        arguments = (model, optimizer) if how == "overlap" else (model,)
        attachment = attach(*arguments, **options)
    draws = torch.Generator().manual_seed(1 + rank)
    pauses = []
    for step in range(1, steps + 1):
        begun = time.monotonic()
        images = torch.randn(16, 64, generator=draws)
        labels = torch.randint(10, (16,), generator=draws)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step % BROADCAST_EVERY == 0:
            told = numpy.full(20_000, step if rank == 1 else 0, numpy.int32)
            if attachment is None:
                torch.distributed.broadcast(torch.from_numpy(told), 1)
            else:
                attachment.job.broadcast(told, root=1)
            assert (told == step).all(), (step, told)
        pauses.append(time.monotonic() - begun)
        print(step, flush=True)
        if rank == 0 and step in waits_after:
            sys.stdin.readline()
    if attachment is None:
        torch.distributed.barrier()
        group = torch.distributed.distributed_c10d._get_default_group()
        restarts = group._shared.session.stats()["appliance_restarts"]
        torch.distributed.destroy_process_group()
    else:
        attachment.job.barrier()
        restarts = attachment.stats()["appliance_restarts"]
        attachment.detach()
    digest = hashlib.sha256(_torch_state.encode(net.state_dict())).hexdigest()
    print(json.dumps({"digest": digest, "restarts": restarts, "longest_s": max(pauses)}))


main()
