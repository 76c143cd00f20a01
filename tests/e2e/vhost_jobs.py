"""A process with several jobs at one vhost-user socket: test_vhost_jobs.py starts one a rank.

    vhost_jobs.py long|urgent|jumbo ADDRESS RANK

Gradients are small integers, so that sums are exact. Prints one JSON line.
"""

import json
import sys
import threading
import time

import numpy
import sluice

WORLD, ROUNDS = 2, 40
BULK_ELEMS = 1_000_000


def join(address, rank, name, tensors, **options):
    return sluice.Job(tensors, address, job=name, secret="lab", rank=rank, world_size=WORLD,
                      run_id=1, averaging="sum", join_timeout=30, **options)


def values(rank, step, elems, salt):
    return ((numpy.arange(elems) * 7 + 29 * step + 31 * rank + salt) % 61 - 30).astype("f4")


def run_step(job, rank, step, tensors, salt):
    """Whether all sums are exact."""
    held = []
    for index, (name, elems, _dtype) in enumerate(tensors):
        gradient = values(rank, step, elems, salt + index)
        held.append(gradient)
        job.submit(name, gradient, priority=index)
    job.wait_step(60)
    return all(numpy.array_equal(gradient, sum(values(other, step, gradient.size, salt + index)
                                               for other in range(WORLD)))
               for index, gradient in enumerate(held))


def long_and_short(address, rank):
    """A job that goes on while others with other tensors come to its socket and leave it."""
    tensors = [("weight", 40_000, "float32"), ("bias", 77, "float32")]
    steps, exact, over = 0, True, threading.Event()
    with join(address, rank, "long", tensors) as job:
        def others():
            nonlocal exact
            for turn in range(3):
                own = [("one", 9_000 + turn, "float32")]
                with join(address, rank, f"short{turn}", own) as short:
                    for step in range(1, ROUNDS + 1):
                        exact &= run_step(short, rank, step, own, 100 * turn)
                    short.barrier()
            over.set()

        thread = threading.Thread(target=others)
        thread.start()
        while True:  # as many steps on both ranks: rank 0 says whether one more comes
            steps += 1
            exact &= run_step(job, rank, steps, tensors, 0)
            flag = numpy.array([over.is_set()], dtype="u1")
            job.broadcast(flag)
            if flag[0]:
                break
        thread.join()
        for _ in range(ROUNDS):  # alone at the socket
            steps += 1
            exact &= run_step(job, rank, steps, tensors, 0)
        job.barrier()
    return {"exact": bool(exact), "steps": steps}


def urgent_and_bulk(address, rank):
    """How many sums of an urgent job come back while one of a big one is on its way."""
    bulk_tensors, urgent_tensors = [("big", BULK_ELEMS, "float32")], [("small", 300, "float32")]
    with join(address, rank, "bulk", bulk_tensors) as bulk, \
            join(address, rank, "urgent", urgent_tensors) as urgent:
        gradient = values(rank, 1, BULK_ELEMS, 0)
        begin = time.monotonic()
        bulk.submit("big", gradient, priority=255)
        exact, urgent_s = True, []
        for step in range(1, 11):
            start = time.monotonic()
            exact &= run_step(urgent, rank, step, urgent_tensors, 5)
            urgent_s.append(time.monotonic() - start)
        bulk.wait_step(60)
        bulk_s = time.monotonic() - begin
        exact &= numpy.array_equal(gradient, sum(values(other, 1, BULK_ELEMS, 0)
                                                 for other in range(WORLD)))
        bulk.barrier()
        urgent.barrier()
    return {"exact": bool(exact), "urgent_s": sorted(urgent_s), "bulk_s": bulk_s}


def jumbo_frames(address, rank):
    tensors = [("t", 100_000, "float32")]
    with join(address, rank, "jumbo", tensors, mtu=9000) as job:
        exact = [run_step(job, rank, step, tensors, 3) for step in range(3)]
        return {"exact": all(exact), "chunk_bytes": job.stats()["chunk_bytes"]}


if __name__ == "__main__":
    mode, url, own_rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print(json.dumps({"long": long_and_short, "urgent": urgent_and_bulk,
                      "jumbo": jumbo_frames}[mode](url, own_rank)))
