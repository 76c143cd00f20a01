"""One rank of `bench restart`: sums known integers, step after step, until rank 0 is told to end.

    restart_worker.py ELEMENTS RESTART_S     rank, address, ... from the environment

Checks every element of every sum. Prints a line a step, "STEP NANOSECONDS" (of the system's clock),
and at the end one of JSON. Rank 0 ends when its input does, and all others with the same step.
"""
import json
import os
import select
import sys
import time

import numpy
import sluice


def main():
    elements, restart_s = int(sys.argv[1]), float(sys.argv[2])
    job = sluice.Job([("weight", elements, "float32"), ("end", 1, "float32")], averaging="sum",
                     restart_timeout=restart_s)
    # Small integers, so sums are exact in any order.
    index = numpy.arange(elements, dtype=numpy.float32) % 61
    ranks = job.world_size
    step, wrong, over = 0, 0, False
    print("JOINED", flush=True)
    while not over:
        step += 1
        data = index * (job.rank + 1) + step % 100
        told = job.rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        end = numpy.full(1, told, numpy.float32)
        job.submit("weight", data)
        job.submit("end", end)
        job.wait_step(timeout=300)
        wrong += not (data == index * (ranks * (ranks + 1) // 2) + step % 100 * ranks).all()
        over = end[0] != 0
        print(step, time.time_ns(), flush=True)
    stats = job.stats()
    job.barrier()
    job.close()
    print(json.dumps({"steps": step, "wrong": wrong, "restarts": stats["appliance_restarts"],
                      "sent": stats["bytes_sent"], "again": stats["retransmissions"]}))


if os.environ.get("RANK"):
    main()
