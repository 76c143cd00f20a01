"""One rank of the real run; real.py starts it in a host of the lab.

    real_worker.py JSON    RANK, WORLD_SIZE, addresses: in the environment

It holds one job a schedule over the same tensors, and takes an iteration of each in turn: sleeps
for backward, submits each gradient when it is ready with its layer as the priority, waits for each
tensor before its layer's forward pass, and sleeps for that. It prints one line of JSON at the end.
"""
import json
import sys
import time

import numpy as np

import sluice

TIMEOUT_S = 120


def sleep_until(at_s):
    left_s = at_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)


def iterate(job, tensors, gradients):
    """One iteration; its seconds, from the start of backward to the end of forward."""
    began_s = time.monotonic()
    order = sorted(range(len(tensors)), key=lambda i: (tensors[i]["ready_s"], -i))
    for index in order:
        sleep_until(began_s + tensors[index]["ready_s"])
        job.submit(index, gradients[index], priority=index * 256 // max(len(tensors), 256))
    at_s = time.monotonic()
    for index, tensor in enumerate(tensors):
        job.wait(index, timeout=TIMEOUT_S)
        at_s = max(at_s, time.monotonic()) + tensor["forward_s"]
        sleep_until(at_s)
    return time.monotonic() - began_s


def main():
    task = json.loads(sys.argv[1])
    tensors = task["tensors"]
    specs = [(str(index), tensor["elem_count"], "float32") for index, tensor in enumerate(tensors)]
    gradients = [np.ones(tensor["elem_count"], dtype=np.float32) for tensor in tensors]
    jobs = {schedule: sluice.Job(specs, job=f"prophet-{schedule}", schedule=schedule,
                                 averaging="weight", **sizes)
            for schedule, sizes in task["schedules"].items()}
    seconds = {schedule: [] for schedule in jobs}
    for _ in range(task["iterations"]):
        for schedule, job in jobs.items():
            seconds[schedule].append(iterate(job, tensors, gradients))
    if any(gradient.min() != 1 or gradient.max() != 1 for gradient in gradients):
        sys.exit("the average of ones is not one")
    stats = {name: job.stats() for name, job in jobs.items()}
    print(json.dumps({
        "seconds": seconds,
        **{what: {name: counters[what] for name, counters in stats.items()}
           for what in ("retransmissions", "bytes_sent")}}), flush=True)
    for job in jobs.values():
        job.close()


if __name__ == "__main__":
    main()
