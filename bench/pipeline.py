"""The pipeline bench: parse, fold and result on one core, against a bare rx + sum + tx loop.

Both sides work on the same replay port (replay_port.h): prepared frames of 8 workers in memory, 1
KiB of float32 payload each, 32 a burst, 1,024 chunks (1 MiB) a step. Both read the same bytes,
fold with the same kernels and write as many result frames as they read contributions, 8 for each
chunk.

The appliance's side runs the production code of an lcore in its order: Ethernet, MAC table, IP and
UDP (checksums verified in software), steering, packet validation, shard, result encoding, UDP
checksum of each result, egress queue. The bare side reads the chunk's number in place, checks
nothing, and copies a header made beforehand and the sum; it has no checksums and no queue. So the
ratio is the price of everything that is not the sum, and 1 can't be reached. A second row leaves
the received UDP checksums unread, as for links that are shared memory.

Counted: mpps is contributions received a second (results sent are as many again); gbps is their
payload, without headers, 10^9 bits a second. Time is the thread's CPU time.

What can go wrong: there is no device, so nothing of a driver's cost is in it: a real port makes
both sides slower and the ratio better. The port patches step, number and checksum into each frame
so that every step is a new one; a row shows that cost alone, and both sides pay it. The frames of
a step (9 MiB) come from the last-level cache, which other guests of the host may share: medians of
a busy host can move by a third, the ratio by less. Each side ends by checking its last sum, and
the number of results of every step: a wrong one stops the bench.
"""
import report

DESCRIPTION = "parse, fold and result on one core against a bare rx + sum + tx loop"

ROWS = [
    ("appliance_verify", "appliance"),
    ("appliance_trust", "appliance, received UDP checksums unread"),
    ("bare", "bare rx + sum + tx"),
    ("port_alone", "replay port alone"),
]


def add_options(parser):
    report.add_repetitions(parser, default=9)


def run(options):
    found, context = report.google_benchmark("bench_pipeline", options.repetitions, 0.3)

    def side_of(row):
        return row["run_name"]
    mpps = report.samples_by(side_of, lambda row: row["contributions"] / 1e6, found)
    gbps = report.samples_by(side_of, lambda row: row["payload_bits"] / 1e9, found)
    print(f"8 workers, 1 KiB payloads, one core, instruction set "
          f"{context['fold_target']}; median [least .. largest] of "
          f"{options.repetitions} interleaved repetitions, CPU time")
    bare = mpps["bare"].median
    report.table(["side", "contributions in, Mpps", "payload Gb/s", "of bare"],
                 [[label, mpps[side].cell(2), gbps[side].cell(1), f"{mpps[side].median / bare:.2f}"]
                  for side, label in ROWS])
    headline = "appliance_verify"
    report.result("pipeline", mpps=mpps[headline].median, gbps=gbps[headline].median,
                  ratio_bare=mpps[headline].median / bare)
