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
the received UDP checksums unread, as for links that are shared memory. In a third, results end in
one buffer with the payload for all members, as on ports that send frames in parts: shared_payloads
is its rate over that of a copy a member; the references to buffers are not in it. A fourth is the
bare loop with what a host does in place of a programmable switch: 32-bit integers in network order,
summed in a plain loop, same compiler and flags. reproducible_cost is the time of a job that sums in
the order of ranks over that of one that sums as they come; the port gives out the last rank first,
so that all contributions to a chunk but one are early and wait, the most that there can be.

Two rows put the stages before the shard (Ethernet, MAC table, IP, UDP, steering) in front of the
bare loop. The table's last column is what a contribution and its result take: bare, found_trust,
found_verify and the appliance are each the one before and one thing more, the last the shard, its
results' headers, numbers and checksums, and the queue.

On two cores each has a shard of one job and a port of its own, and no core begins a step before
both have ended the last one. two_cores is what the appliance gains from the second core over what
the bare loop gains: 1 when shards cost each other nothing.

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

GOALS = {"ratio_bare": 0.65, "ratio_bare_trusted": 0.80, "vs_scalar": 2.2, "two_cores": 0.85,
         "reproducible_cost": 1.5}

ROWS = [
    ("appliance_verify", "appliance"),
    ("appliance_trust", "appliance, received UDP checksums unread"),
    ("appliance_shared", "appliance, one payload for all members"),
    ("appliance_reproducible", "appliance, sums in the order of ranks"),
    ("bare", "bare rx + sum + tx"),
    ("found_trust", "bare behind the appliance's parsing, checksums unread"),
    ("found_verify", "bare behind the appliance's parsing, checksums verified"),
    ("integers", "bare, big-endian integers one by one"),
    ("port_alone", "replay port alone"),
    ("appliance_two_cores", "appliance, two cores"),
    ("bare_two_cores", "bare rx + sum + tx, two cores"),
]


def add_options(parser):
    report.add_repetitions(parser, default=9)
    report.add_seconds(parser, default=0.3)


def run(options):
    found, context = report.google_benchmark("bench_pipeline", options.repetitions,
                                             options.seconds)

    def side_of(row):
        return row["run_name"].split("/")[0]
    mpps = report.samples_by(side_of, lambda row: row["contributions"] / 1e6, found)
    gbps = report.samples_by(side_of, lambda row: row["payload_bits"] / 1e9, found)
    print(f"8 workers, 1 KiB payloads, instruction set {context['fold_target']}; "
          f"median [least .. largest] of {options.repetitions} interleaved repetitions; "
          f"CPU time on one core, elapsed time on two")
    rate = {side: mpps[side].median for side, _ in ROWS}
    report.table(["side", "contributions in, Mpps", "payload Gb/s", "of bare", "ns"],
                 [[label, mpps[side].cell(2), gbps[side].cell(1),
                   f"{rate[side] / rate['bare']:.2f}", f"{1e3 / rate[side]:.0f}"]
                  for side, label in ROWS])
    ratios = {
        "ratio_bare": rate["appliance_verify"] / rate["bare"],
        "ratio_bare_trusted": rate["appliance_trust"] / rate["bare"],
        "vs_scalar": rate["appliance_verify"] / rate["integers"],
        "two_cores": (rate["appliance_two_cores"] / rate["appliance_verify"]) /
                     (rate["bare_two_cores"] / rate["bare"]),
        "shared_payloads": rate["appliance_shared"] / rate["appliance_verify"],
        "reproducible_cost": rate["appliance_verify"] / rate["appliance_reproducible"],
    }
    print("goals: " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    report.result("pipeline", mpps=rate["appliance_verify"], gbps=gbps["appliance_verify"].median,
                  **ratios)
