"""The queue bench: the cost of queueing a packet, against DPDK's rte_sched and rte_ring.

One thread moves the same buffers through each side in bursts of 32, in and out again, while a fixed
number of packets (depth) stands in the queue; a packet's class is drawn at random from the classes
used (1, 4, 13 or 64), the same sequence for each side. Counted: one enqueue and one dequeue of one
packet. Time is the thread's CPU time.

  ours       a port's way out as the appliance uses it (dataplane/core/egress.h): 64 strict classes,
             the share of the least urgent, the shaper's check, and per class packets, bytes, depth
             and waiting times
  rte_sched  DPDK's hierarchical scheduler, one subport, rates of 100 Gb/s that never limit, no
             congestion management, its own statistics, pkt_write for each packet's class. Up to 13
             classes are the 13 strict traffic classes of one pipe (one queue each). It has no more:
             64 classes are 8 in each of 8 pipes, among which it takes turns, so there it does less
             than asked
  rte_ring   one ring, one producer, one consumer, no classes: the least that a queue of pointers
             can cost

The RESULT line is about 13 classes, the most that both sides order strictly, and 256 packets deep;
vs_rte_sched is its time divided by ours, the least of the table beside it.

What can go wrong: ours reads each buffer's length, rte_sched reads and writes its header, the ring
touches none: in a switch that header is in the cache, as it is here. rte_sched comes as Debian
compiles it (-march=corei7). One thread on one core: neighbours show in the ranges.
"""
import report

DESCRIPTION = "enqueue and dequeue of a port's queue against rte_sched and rte_ring (one core)"

CLASSES = (1, 4, 13, 64)
DEPTHS = (0, 256, 3840)
HEADLINE = (13, 256)


def add_options(parser):
    report.add_repetitions(parser, default=9)
    report.add_seconds(parser, default=0.05)


def run(options):
    def key_of(row):
        side, classes, depth = row["run_name"].split("/")[:3]
        return side, int(classes), int(depth)
    found, _ = report.google_benchmark("bench_queue", options.repetitions, options.seconds,
                                       timeout_s=1200)
    samples = report.samples_by(key_of, lambda row: row["s_per_packet"] * 1e9, found)
    print(f"ns of CPU time for one enqueue and one dequeue; median [least .. largest] of "
          f"{options.repetitions} interleaved repetitions; one core")
    rows, ratios = [], {}
    for classes in CLASSES:
        for depth in DEPTHS:
            ours, sched, ring = (samples[side, classes, depth]
                                 for side in ("ours", "rte_sched", "rte_ring"))
            ratios[classes, depth] = sched.median / ours.median
            rows.append([f"{classes} classes, {depth} deep", ours.cell(1), sched.cell(1),
                         ring.cell(2), f"{ratios[classes, depth]:.1f}"])
    report.table(["queue", "ours", "rte_sched", "rte_ring", "rte_sched / ours"], rows)
    report.result("queue", ns_per_packet=samples["ours", *HEADLINE].median,
                  vs_rte_sched=ratios[HEADLINE], vs_rte_sched_least=min(ratios.values()))
