"""The latency bench: one chunk of two workers, from submit to result, over vhost-user.

Two ranks, jobs of one process, each behind a vhost-user port of its own, sum one tensor of one
chunk by the client library (latency_bench.cc). Rank 1's contribution has been in the appliance for
300 us, or for 20 ms in which nothing moved, when rank 0 submits and waits; that is timed, to the
return of sluice_wait_tensor(). So it holds two threads' wake-ups in the client, which sleeps when
nothing comes, and both ways through the switch. RESULT is about `sluiced` polling busily, on a
core of its own where there are two; beside it stands adaptive polling, which a guest's interrupt
wakes. Blocks alternate, and the one that is not measured is stopped (SIGSTOP). After them the
processor time of the adaptive one is read while nobody is there.

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
ARRIVAL_US, IDLE_US = 300, 20_000
# Of a row: what stands before its figures in the RESULT line.
ROWS = {("busy", ARRIVAL_US): "", ("adaptive", ARRIVAL_US): "adaptive_",
        ("busy", IDLE_US): "idle_", ("adaptive", IDLE_US): "idle_adaptive_"}
QUIET_S = 0.01


def add_options(parser):
    report.add_repetitions(parser, default=9)
    parser.add_argument("--samples", type=int, default=500, metavar="N",
                        help="samples a repetition (default 500)")
    parser.add_argument("--bytes", type=int, default=1344, metavar="N",
                        help="of the chunk (default 1,344, the largest at MTU 1,500)")
    parser.add_argument("--idle-s", type=float, default=5, metavar="S",
                        help="how long nobody is there (default 5)")


def block(program, folder, kind, quiet_us, options):
    urls = [f"vhost://10.77.0.1:7700{folder}/{kind}{rank}.sock" for rank in range(2)]
    cpus = sorted(os.sched_getaffinity(0))
    keep_off = ["taskset", "-c", ",".join(map(str, cpus[1:] or cpus))]  # the first is sluiced's
    samples = options.samples if quiet_us == ARRIVAL_US else -(-options.samples // 10)
    text = report.run_program([*keep_off, program, *urls, str(samples), str(options.bytes),
                               str(quiet_us)], timeout_s=120, env=plugin_environment())
    return [float(line) for line in text.splitlines()]


def share_of_a_core(process, seconds):
    """Of the processor time, from a second without work on."""
    def used_s():
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    time.sleep(min(seconds, 1.5))
    start_s, before = time.monotonic(), used_s()
    time.sleep(seconds)
    return (used_s() - before) / (time.monotonic() - start_s)


def run(options):
    program = report.program("bench/bench_latency")
    samples = {row: [] for row in ROWS}
    with tempfile.TemporaryDirectory(prefix="sluice-latency-") as folder:
        def box(kind):
            return appliance(folder, (f"{kind}0", f"{kind}1"), kind, kind)
        with box("busy") as busy, box("adaptive") as adaptive:
            boxes = {"busy": busy, "adaptive": adaptive}
            for _ in range(options.repetitions):
                for kind, quiet_us in ROWS:
                    for other, process in boxes.items():
                        process.send_signal(signal.SIGCONT if other == kind else signal.SIGSTOP)
                    time.sleep(QUIET_S)
                    samples[kind, quiet_us].append(
                        block(program, folder, kind, quiet_us, options))
            idle_share = share_of_a_core(adaptive, options.idle_s)
    print(f"one chunk of {options.bytes} bytes, two workers, from rank 0's submit to its result; "
          f"microseconds; medians of {options.repetitions} interleaved repetitions of "
          f"{options.samples} samples, a tenth of them after 20 ms, as median [least .. largest]")
    rows, figures = [], {}
    for (kind, quiet_us), prefix in ROWS.items():
        blocks = samples[kind, quiet_us]
        flat = [sample for one in blocks for sample in one]
        p50, p99 = statistics.median(flat), percentile(flat, 0.99)
        medians = report.Samples([statistics.median(one) for one in blocks])
        rows.append([kind, f"{quiet_us / 1000:g} ms", len(flat), medians.cell(1), f"{p50:.1f}",
                     f"{p99:.1f}", f"{min(flat):.1f}"])
        figures |= {f"{prefix}p50_us": p50, f"{prefix}p99_us": p99}
    report.table(["polling", "quiet before", "samples", "repetitions' medians", "p50", "p99",
                  "least"], rows)
    print(f"without a worker, adaptive polling takes {100 * idle_share:.1f} % of a core")
    report.result("latency", **figures, idle_share=idle_share, cores=len(os.sched_getaffinity(0)))
