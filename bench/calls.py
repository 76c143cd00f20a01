"""The calls bench: how long submit(), wait with timeout 0 and end_step() take beside full traffic.

One and two ranks, threads of one process over an in-process appliance, submit 32 tensors of 256 KiB
a step and poll each until it is done (calls_bench.cc). That is the worst case for the session's
lock: no system call of a transport keeps the progress thread away from it. With --against another
program of an older tree runs in turns with this one, and the ratios are of the medians of its
repetitions.

What can go wrong: with two ranks there are four threads; where there are fewer cores, the 99th
percentile is the operating system's and not the lock's: the last columns count the calls over 3 us,
those in which the caller slept (for the lock), and those in which another thread got its core.
"""
import collections
import json
import math

import report

DESCRIPTION = "p50 and p99 of an application's calls beside full traffic"

CALLS = ("submit", "wait_tensor", "end_step")
SHAPE = ("32", "262144")  # tensors, bytes of each


def add_options(parser):
    report.add_repetitions(parser, default=7)
    parser.add_argument("--steps", type=int, default=200, metavar="N",
                        help="steps a repetition (default 200)")
    parser.add_argument("--against", metavar="PROGRAM",
                        help="an older bench_calls, run in turns with this one")


def run(options):
    sides = {"this tree": report.program("bench/bench_calls")}
    if options.against:
        sides["the older one"] = options.against
    rows, medians = [], {}
    for ranks in (1, 2):
        samples = {(side, call, at): report.Samples()
                   for side in sides for call in CALLS for at in ("p50", "p99")}
        seconds = {side: report.Samples() for side in sides}
        slow = collections.Counter()
        for _ in range(options.repetitions):
            for side, program in sides.items():
                text = report.run_program([program, str(ranks), *SHAPE, str(options.steps)],
                                          timeout_s=300)
                times = json.loads(text)
                seconds[side].add(times["seconds"])
                for call in CALLS:
                    for at in ("p50", "p99"):
                        samples[side, call, at].add(times[call][at] / 1000)
                    for what in ("slow", "slept", "preempted"):
                        slow[side, call, what] += times[call].get(what, math.nan)  # an older one
        for side in sides:
            for call in CALLS:
                rows.append([f"{ranks} rank{'s' * (ranks > 1)}, {side}: {call}",
                             samples[side, call, "p50"].cell(2),
                             samples[side, call, "p99"].cell(1)]
                            + [slow[side, call, what] for what in ("slow", "slept", "preempted")])
            rows.append([f"{ranks} rank{'s' * (ranks > 1)}, {side}: all steps, s",
                         seconds[side].cell(3)] + [""] * 4)
        medians[ranks] = {key: one.median for key, one in samples.items()}
    report.table(["us", "p50", "p99", "over 3", "slept", "preempted"], rows)
    figures = {f"{call}_{at}_us": medians[1]["this tree", call, at]
               for call in CALLS for at in ("p50", "p99")}
    if options.against:
        for call in CALLS:
            for at in ("p50", "p99"):
                figures[f"{call}_{at}_ratio"] = (medians[1]["this tree", call, at]
                                                 / medians[1]["the older one", call, at])
    report.result("calls", **figures)
