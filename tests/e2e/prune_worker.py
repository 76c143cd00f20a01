"""One rank of a job with pruned gradients; its name, address, ... from the environment.

    prune_worker.py FILE STEPS ELEMS SECONDS OPTIONS    OPTIONS: of sluice.Job, as JSON

FILE is in a folder of the job.

A step's gradient takes SECONDS. Where a policy does not wait for the last rank, that rank waits for
the others to be ahead before it submits, until it has been late once. The last TAIL steps have
gradients of zeros, and the ranks' order of speed is reversed there, so that late ranks get in. A
rank that is at the end gives its state to others until all are. The rank writes its contributions,
the total of all steps' sums and its residual to FILE, and prints one line of JSON.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import sluice

TAIL, TAIL_S = 8, 0.45


def main():
    path, steps, elems, seconds, options = sys.argv[1:]
    steps, elems, seconds = int(steps), int(elems), float(seconds)
    options = json.loads(options)
    total, given, residual, summed = np.zeros((4, elems), np.float32)
    resyncs = submitted = 0
    with sluice.Job([("pruned", elems, "float32")], averaging="sum", prune_min_elems=1,
                    **options) as job:
        draw = np.random.default_rng(job.rank)
        slow = "policy" in options and job.rank == job.world_size - 1
        ends = [Path(path).with_name(f"rank{rank}.end") for rank in range(job.world_size)]
        while True:
            turn = job.next_turn(60)
            if turn.step > steps + TAIL:
                ends[job.rank].touch()
            if turn.kind == "compute":
                last = turn.step > steps
                if turn.step > steps + TAIL:
                    break
                time.sleep(TAIL_S - min(seconds, TAIL_S) if last else seconds)
                # The first two steps are those of all ranks.
                while (slow and 2 < turn.step <= steps and job.stats()["late_chunks"] == 0
                       and job.behind() == 0 and not job.must_resync):
                    time.sleep(0.001)
                gradient = np.zeros(elems, np.float32)
                if not last:
                    gradient[:] = np.rint(draw.normal(0, 20, elems))
                try:
                    job.submit(0, gradient, summed)
                    given += gradient
                    submitted += 1
                except sluice.Behind:
                    pass  # the next turn knows
            elif turn.kind == "catch_up":
                job.catch_up(0, summed)
            elif turn.kind == "apply":
                if not job.is_absent(0):
                    total += summed
                step = turn.step
            elif turn.kind == "save":
                job.send_state(total.tobytes(), step)
            else:
                total[:], step = np.frombuffer(turn.data, np.float32), turn.step
                resyncs += 1
        while not all(end.exists() for end in ends):
            if job.state_wanted() is not None:
                job.send_state(total.tobytes(), step)
            time.sleep(0.02)
        job.get_residual(0, residual)
        stats = job.stats()
        job.finish()
    np.savez(path, given=given, total=total, residual=residual)
    print(json.dumps({"submitted": submitted, "resyncs": resyncs, "applied": step, **stats}))


if __name__ == "__main__":
    main()
