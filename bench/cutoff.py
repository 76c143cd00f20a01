"""The cutoff bench: from the k-th contribution to the first result, seen by the workers' side.

`sluiced` with one vhost-user port and one busy polling lcore runs a job of 8 workers with the
policy `fixed`, k = 6, 64 chunks of 1,344 bytes. All 8 workers live in one generator on one busy
core, which speaks to the appliance through the client's own DPDK plug-in (a virtio-user port),
joins by the protocol and then measures itself: the time from just before it sends the contribution
that completes a slot to the moment when the first of the 8 result frames is in its hands. The other
5 contributions were sent 20 to 40 us before (row "the k-th alone", which the RESULT line is about),
or go out in the same burst ("k in one burst"). One sample a chunk; after each the generator waits
for all 8 results.

From that the cost of the link is subtracted: the same generator sends one frame of the same size to
a bare echo loop (rx burst, tx burst, nothing else) behind the same kind of port with the same
rings. Blocks of 256 samples (--steps) alternate in one run: the kth, the echo, all k. There are two
cores: one is the generator's, the other belongs to the appliance or to the echo, whichever the
block is about; the other one of the two is stopped (SIGSTOP) meanwhile, so both are measured on one
busy core.

p50_us is the median less the echo's median. p99_us is the 99th percentile less the echo's median,
not its 99th percentile: the worst of a path is not excused by the worst of another.

What can go wrong: whatever else runs on these two cores preempts either end for milliseconds, which
the 99th percentiles show, the echo's too. The appliance writes UDP checksums in software, as on
every port, and reads none on shared memory. It writes all 8 results and sends them in one burst, so
their copies are part of the time to the first. A lost frame (30 s) or a wrong mask ends the bench
with no RESULT line.
"""
import os
import statistics
import tempfile

import report
from served import Served, appliance, percentile, plugin_environment

DESCRIPTION = "k-th contribution to first result over vhost-user, less a bare echo (two cores)"

SAMPLES_A_STEP = 64
KINDS = {"kth": "the k-th alone", "all": "k in one burst", "echo": "bare echo"}


def add_options(parser):
    report.add_repetitions(parser, default=20)
    parser.add_argument("--k", type=int, default=6, choices=range(2, 9), metavar="K",
                        help="of 8 workers (default 6)")
    parser.add_argument("--steps", type=int, default=4, choices=range(1, 101), metavar="N",
                        help="steps a block, of 64 samples each (default 4)")


def measure(options, cpus):
    """Returns {kind: [samples of a block, in microseconds, ...]}."""
    generator = report.program("bench/bench_cutoff")
    echo_program = report.program("bench/bench_cutoff_echo")
    with tempfile.TemporaryDirectory(prefix="sluice-cutoff-") as folder:
        echo = Served("the echo", [echo_program, f"{folder}/echo.sock", str(cpus[0])],
                      os.path.join(folder, "echo.log"), "ready")
        with appliance(folder) as box, echo as echoing:
            text = report.run_program(
                [generator, f"--appliance={folder}/appliance.sock", f"--appliance_pid={box.pid}",
                 f"--echo={folder}/echo.sock", f"--echo_pid={echoing.pid}",
                 f"--blocks={options.repetitions}", f"--steps={options.steps}", f"--k={options.k}",
                 f"--cpu={cpus[-1]}"], timeout_s=300, env=plugin_environment())
    blocks = {kind: [] for kind in KINDS}
    for line in text.splitlines():
        kind, *samples = line.split()
        if kind in blocks:
            blocks[kind].append([float(sample) for sample in samples])
    return blocks


def run(options):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise report.BenchError("two cores are needed: the generator's and the appliance's")
    blocks = measure(options, cpus)
    flat = {kind: [sample for block in blocks[kind] for sample in block] for kind in blocks}
    echo = statistics.median(flat["echo"])
    print(f"8 workers, k = {options.k}, 64 chunks of 1,344 bytes, one busy core a side; "
          "microseconds; "
          f"medians of {len(blocks['kth'])} interleaved blocks of "
          f"{options.steps * SAMPLES_A_STEP} samples as median [least .. largest]")
    rows = []
    for kind, label in KINDS.items():
        medians = report.Samples([statistics.median(block) for block in blocks[kind]])
        p50, p99 = statistics.median(flat[kind]), percentile(flat[kind], 0.99)
        less = ["", ""] if kind == "echo" else [f"{p50 - echo:.1f}", f"{p99 - echo:.1f}"]
        rows.append([label, len(flat[kind]), medians.cell(1), f"{p50:.1f}", f"{p99:.1f}", *less])
    report.table(["from, to the first result", "samples", "block medians", "p50", "p99",
                  "p50 less echo", "p99 less echo"], rows)
    kth = flat["kth"]
    report.result("cutoff", p50_us=statistics.median(kth) - echo,
                  p99_us=percentile(kth, 0.99) - echo,
                  burst_p50_us=statistics.median(flat["all"]) - echo, echo_p50_us=echo,
                  echo_p99_us=percentile(flat["echo"], 0.99), samples=len(kth))

