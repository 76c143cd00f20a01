"""The latency bench: one chunk of two workers, from submit to result, over vhost-user.

Two ranks, jobs of one process, each behind a vhost-user port of its own, sum one tensor of one
chunk by the client library (latency_bench.cc). Rank 1's contribution has been in the appliance for
300 us when rank 0 submits and waits; that is timed, to the return of sluice_wait_tensor(). So it
holds two threads' wake-ups in the client, which sleeps when nothing comes, and both ways through
the switch. RESULT is about `sluiced` polling busily, on a core of its own where there are two;
beside it stands adaptive polling, whose vhost-user ports it looks at after naps. Blocks alternate,
and the one that is not measured is stopped (SIGSTOP).

What can go wrong: whatever else runs on these cores delays the wake-ups: the 99th percentile is
then the scheduler's. A wrong sum ends the bench with no RESULT line.
"""
import os
import signal
import statistics
import tempfile
import time

import report
from served import appliance, percentile, plugin_environment

DESCRIPTION = "submit to result of one chunk, two workers, over vhost-user"

KINDS = ("busy", "adaptive")
QUIET_S = 0.01


def add_options(parser):
    report.add_repetitions(parser, default=9)
    parser.add_argument("--samples", type=int, default=500, metavar="N",
                        help="samples a repetition (default 500)")
    parser.add_argument("--bytes", type=int, default=1344, metavar="N",
                        help="of the chunk (default 1,344, the largest at MTU 1,500)")


def block(program, folder, kind, options):
    urls = [f"vhost://10.77.0.1:7700{folder}/{kind}{rank}.sock" for rank in range(2)]
    cpus = sorted(os.sched_getaffinity(0))
    keep_off = ["taskset", "-c", ",".join(map(str, cpus[1:] or cpus))]  # the first is sluiced's
    text = report.run_program([*keep_off, program, *urls, str(options.samples),
                               str(options.bytes)], timeout_s=120, env=plugin_environment())
    return [float(line) for line in text.splitlines()]


def run(options):
    program = report.program("bench/bench_latency")
    samples = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="sluice-latency-") as folder:
        def box(kind):
            return appliance(folder, (f"{kind}0", f"{kind}1"), kind, kind)
        with box("busy") as busy, box("adaptive") as adaptive:
            boxes = {"busy": busy, "adaptive": adaptive}
            for _ in range(options.repetitions):
                for kind in KINDS:
                    for other, process in boxes.items():
                        process.send_signal(signal.SIGCONT if other == kind else signal.SIGSTOP)
                    time.sleep(QUIET_S)
                    samples[kind].append(block(program, folder, kind, options))
    print(f"one chunk of {options.bytes} bytes, two workers, from rank 0's submit to its result; "
          f"microseconds; medians of {options.repetitions} interleaved repetitions of "
          f"{options.samples} samples as median [least .. largest]")
    rows, figures = [], {}
    for kind in KINDS:
        flat = [sample for repetition in samples[kind] for sample in repetition]
        p50, p99 = statistics.median(flat), percentile(flat, 0.99)
        medians = report.Samples([statistics.median(one) for one in samples[kind]])
        rows.append([kind, len(flat), medians.cell(1), f"{p50:.1f}", f"{p99:.1f}",
                     f"{min(flat):.1f}"])
        prefix = "" if kind == "busy" else f"{kind}_"
        figures |= {f"{prefix}p50_us": p50, f"{prefix}p99_us": p99}
    report.table(["polling", "samples", "repetitions' medians", "p50", "p99", "least"], rows)
    report.result("latency", **figures, cores=len(os.sched_getaffinity(0)))
