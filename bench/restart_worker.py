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


def progress_ns():
    """Processor time of the library's own thread so far, kernel included."""
    for task in os.scandir("/proc/self/task"):
        with open(f"{task.path}/comm", encoding="ascii") as file:
            if file.read().strip() != "sluice":
                continue
        with open(f"{task.path}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0])
    return 0


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
    stats, progressed_ns = job.stats(), progress_ns()
    job.barrier()
    job.close()
    print(json.dumps({"steps": step, "wrong": wrong, "restarts": stats["appliance_restarts"],
                      "sent": stats["bytes_sent"], "again": stats["retransmissions"],
                      "progress_ns": progressed_ns}))


if os.environ.get("RANK"):
    main()
