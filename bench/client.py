"""The client bench: CPU time of a session over UDP against the barest sender and receiver.

A rank sums tensors over 127.0.0.1 with an appliance in another process; beside it a program of a
few lines sends as many datagrams of the same lengths from memory of the same size, and receives as
many back, with UDP_SEGMENT and UDP_GRO, and without (client_bench.cc). Counted is the CPU time of
the worker's process, kernel included, for a contribution and its result. The barest receiver looks
at nothing, so ratio_raw holds the protocol, the average, and its way into the caller's memory;
ratio_stored is against one that copies each payload to where one was sent from, which no sum can do
without. one_used: a step in which all tensors but one are left out, as a share of one with all.

What can go wrong: the loopback interface neither segments nor sums, so a packet of a train is
cheaper than on any device, and the ratio is an upper bound. The kernel's share of a packet depends
on how many come at once, and so on how fast the other process is: with fewer than two free cores
trains are short on both sides.
"""
import json

import report

DESCRIPTION = "CPU time of a session over UDP against the barest sender and receiver"

SIDES = {"session": "session", "session-one": "session, one tensor used", "raw": "barest, trains",
         "raw-stored": "barest, trains, payloads stored",
         "raw-single": "barest, single datagrams"}
TENSORS = 16


def add_options(parser):
    report.add_repetitions(parser, default=9)
    parser.add_argument("--steps", type=int, default=10, metavar="N",
                        help="steps a repetition (default 10)")
    parser.add_argument("--bytes", type=int, default=3 << 19, metavar="N",
                        help=f"of each of the {TENSORS} tensors (default 1.5 MiB)")
    parser.add_argument("--against", metavar="PROGRAM",
                        help="an older bench_client, whose session runs in turns with this one's")


def run(options):
    runs = {side: (report.program("bench/bench_client"), side) for side in SIDES}
    labels = dict(SIDES)
    if options.against:
        runs["older"] = (options.against, "session")
        labels["older"] = "session, older"
    milliseconds = {side: report.Samples() for side in ("session", "session-one")}
    counted_steps = options.steps - (options.steps + 4) // 5
    samples = {(side, what): report.Samples()
               for side in runs for what in ("cpu", "user", "kilopackets")}
    for _ in range(options.repetitions):
        for side, (program, argument) in runs.items():
            one = json.loads(report.run_program(
                [program, argument, str(TENSORS), str(options.bytes), str(options.steps)],
                timeout_s=120))
            samples[side, "cpu"].add(one["cpu_ns"] / one["packets"])
            samples[side, "user"].add(one["user_ns"] / one["packets"])
            samples[side, "kilopackets"].add(one["packets"] / one["seconds"] / 1000)
            if side in milliseconds:
                milliseconds[side].add(1000 * one["seconds"] / counted_steps)
    report.table(["ns of CPU, a packet and its result", "all", "in user space", "thousands a s"],
                 [[label, samples[side, "cpu"].cell(0), samples[side, "user"].cell(0),
                   samples[side, "kilopackets"].cell(0)] for side, label in labels.items()])
    report.table(["milliseconds a step", ""],
                 [[f"{TENSORS} tensors of {options.bytes} bytes", milliseconds["session"].cell(2)],
                  ["one of them, the rest left out", milliseconds["session-one"].cell(2)]])
    cpu = {side: samples[side, "cpu"].median for side in runs}
    figures = {"ratio_raw": cpu["session"] / max(cpu["raw"], 1.0),
               "ratio_stored": cpu["session"] / max(cpu["raw-stored"], 1.0),
               "ratio_single": cpu["session"] / max(cpu["raw-single"], 1.0),
               "ns_per_packet": cpu["session"]}
    figures["one_used"] = (milliseconds["session-one"].median
                           / max(milliseconds["session"].median, 1e-9))
    if options.against:
        figures["vs_older"] = cpu["session"] / max(cpu["older"], 1.0)
    report.result("client", **figures)
