"""The big bench: a job of 1 or 4 GiB of gradients joins and runs; a small job beside it.

`sluiced` with vhost-user ports, polling adaptively. The big job: 2 workers (tests/e2e/worker.cc,
which compares every element), 8 tensors of float32. The small one: 2 workers that sum 8 KB every
5 ms, 200 steps at a time, again and again: alone, while the big job joins (its slots are made
then), and while it runs. Its step's 50th and 99th percentile are those of rank 0.

Memory: what the appliance's and the workers' resident sets grew by, over the big job's chunks. The
appliance needs two steps of sums and a little a chunk, a worker its gradients and a little a chunk;
both are to stay the same, however many chunks there are.

What can go wrong: five processes share what cores there are, so `beside` holds the scheduler's
delays too: what belongs to the appliance's order of work is the bench `fairness`. It refuses to
start where less memory is free than the job takes. A wrong sum ends it with no RESULT line.
"""
import math
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import report

DESCRIPTION = "1 or 4 GiB of gradients: joining, a step, memory a chunk, a small job beside it"

TENSORS = 8
SMALL = {"steps": 200, "pause_ms": 5, "tensors": 1, "elems": 2000}
RESERVE_GIB = 1.5
CHUNK_BYTES = 1344  # at MTU 1,500


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--gib", type=float, default=1.0, metavar="GIB",
                        help="of the big job's gradients (default 1)")
    parser.add_argument("--steps", type=int, default=3, metavar="N",
                        help="of the big job (default 3)")


def memory_bytes(pid, field):
    """VmRSS or VmHWM of a process; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))


def free_gib():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def note_join(worker, joined):
    """Appends the time at which a worker says so; before that it may say what it waits for."""
    for line in worker.stdout:
        if line.strip() == "JOINED":
            joined.append(time.monotonic())
            return


class Small:
    """The small job, as often as it is asked for."""

    def __init__(self, box, workers):
        self.box, self.workers, self.count = box, workers, 0

    def run(self):
        """p50 and p99 of rank 0's steps, in milliseconds."""
        self.count += 1
        ranks = [self.workers.start(None, 0, self.box.url(rank), rank, 2, job=f"small{self.count}",
                                    **SMALL) for rank in range(2)]
        done = [self.workers.finish(rank) for rank in ranks]
        for one in done:
            if one["exit"] != 0:
                raise report.BenchError(f"the small job failed: {one}")
        return done[0]["step_p50_ms"], done[0]["step_p99_ms"]


def measure(options, workers, vhost_box):
    """{phase: [(p50, p99) of the small job]}, seconds to join, bytes of (box, worker), reports."""
    mib = int(options.gib * 1024)
    limits = f"job_memory_mib = {3 * mib}\ntotal_memory_mib = {3 * mib + 256}"
    elems = int(options.gib * 2**30) // 4 // TENSORS
    small_steps = {"alone": [], "joining": [], "running": []}
    with tempfile.TemporaryDirectory(prefix="sluice-big-") as folder, \
            vhost_box.VhostBox(folder, ports=4, limits=limits) as box:
        small = Small(box, workers)
        small_steps["alone"] = [small.run() for _ in range(options.repetitions)]
        box_before = memory_bytes(box.process.pid, "VmRSS")
        began = time.monotonic()
        big = [workers.start(None, 0, box.url(2 + rank), rank, 2, job="big", steps=options.steps,
                             tensors=TENSORS, elems=elems, join_timeout_ms=120_000)
               for rank in range(2)]
        joined = []
        waits = [threading.Thread(target=note_join, args=(one, joined)) for one in big]
        for wait in waits:
            wait.start()
        worker_bytes = box_bytes = 0
        while any(one.poll() is None for one in big):
            small_steps["running" if len(joined) == 2 else "joining"].append(small.run())
            worker_bytes = max(worker_bytes, memory_bytes(big[0].pid, "VmHWM"))
            box_bytes = max(box_bytes, memory_bytes(box.process.pid, "VmRSS"))
        for wait in waits:
            wait.join()
        reports = [workers.finish(one, 600) for one in big]
    for one in reports:
        if one["exit"] != 0:
            raise report.BenchError(f"the big job failed: {one}")
    return small_steps, max(joined) - began, (box_bytes - box_before, worker_bytes), reports


def run(options):
    os.environ["SLUICE_BUILD"] = report.build_dir()  # the two modules read it
    import vhost_box
    import workers
    report.program("tests/e2e/e2e_worker")
    needed = 4.2 * options.gib + RESERVE_GIB  # two steps in the appliance, gradients of two workers
    if free_gib() < needed:
        raise report.BenchError(f"{free_gib():.1f} GiB are free; {needed:.1f} are needed")
    small_steps, join_s, (box_bytes, worker_bytes), reports = measure(options, workers, vhost_box)
    chunks = TENSORS * math.ceil(options.gib * 2**30 / TENSORS / CHUNK_BYTES)
    step_s = reports[0]["step_p50_ms"] / 1e3
    print(f"{options.gib:g} GiB of float32 in {TENSORS} tensors, 2 workers over vhost-user, "
          f"{options.steps} steps; beside it 8 KB every 5 ms")
    rows, p99 = [], {}
    for phase, samples in small_steps.items():
        if not samples:
            continue  # too short for a run of the small job
        rows.append([f"small job, {phase}", len(samples) * SMALL["steps"],
                     report.Samples([p50 for p50, _ in samples]).cell(2),
                     report.Samples([p99 for _, p99 in samples]).cell(2)])
        p99[f"p99_{phase}_ms"] = statistics.median(p99 for _, p99 in samples)
    report.table(["", "steps", "p50 ms", "p99 ms"], rows)
    print(f"joined in {join_s:.1f} s; a step {step_s:.1f} s, "
          f"{options.gib * 8.59 / step_s:.2f} Gb/s a worker; the appliance took "
          f"{box_bytes / 2**30:.2f} GiB, a worker {worker_bytes / 2**30:.2f}")
    report.result("big", gib=options.gib, join_s=join_s, step_s=step_s,
                  box_bytes_chunk=box_bytes / chunks, worker_bytes_chunk=worker_bytes / chunks,
                  **p99)
