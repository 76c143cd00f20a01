"""The scale bench: a contribution's time and a chunk's memory as work grows.

A production shard with its arrivals and its results, and nothing of a port: 4 workers of one job
with 25 MB of gradients, against 64 workers of each of 16 jobs with 1 GiB of gradients together;
chunks of 1 KiB, k = n. Bursts of 32 chunks of one worker, the workers of a job in turn, the jobs in
turn; results are written into a ring of buffers. A third side is the small one with gradients
pruned to 1 %, whose contributions to 32 chunks are one packet: sparse_ns_ratio is what a worker's
part of a chunk costs then, over what it costs whole. Time is the thread's CPU time, from the bytes
of a contribution to those of its share of the results; every step is counted whole.

bytes is what the appliance sets aside for a job, over its chunks: two steps of the window, 1 KiB of
sums each, and what it keeps of a chunk besides.

What can go wrong: the large side's sums are in no cache, and it needs 2.2 GiB of memory.
"""
import report

DESCRIPTION = "a contribution's time and a chunk's memory, 64 workers of 16 jobs against 4 of one"

GOALS = {"ns_ratio": 1.2, "bytes_ratio": 1.05}


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--mib", type=int, default=1024, metavar="N",
                        help="gradients of the large side, MiB (default: 1024)")


def run(options):
    nanoseconds = {side: report.Samples() for side in ("small", "sparse", "large")}
    memory = {}
    text = report.run_program([report.program("bench/bench_scale"), str(options.repetitions),
                               str(options.mib)], timeout_s=900)
    for line in text.splitlines():
        side, spent, bytes_per_chunk = line.split()
        nanoseconds[side].add(spent)
        memory[side] = float(bytes_per_chunk)
    print(f"median [least .. largest] of {options.repetitions} interleaved passes, CPU time")
    labels = {"small": "4 workers, 1 job, 25 MB",
              "sparse": "the same, pruned to 1 %",
              "large": f"64 workers, 16 jobs, {options.mib} MiB"}
    report.table(["size", "ns a worker and chunk", "bytes a chunk"],
                 [[labels[side], nanoseconds[side].cell(1), f"{memory[side]:.0f}"]
                  for side in labels])
    print("goals, at most: " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))
    report.result("scale", ns_ratio=nanoseconds["large"].median / nanoseconds["small"].median,
                  bytes_ratio=memory["large"] / memory["small"],
                  sparse_ns_ratio=nanoseconds["sparse"].median / nanoseconds["small"].median)
