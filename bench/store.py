"""The store bench: an iteration of a parameter store with bound 0 against a sum of the same bytes.

Two ranks, threads of one process over an in-process appliance, each in a job of sums and in a store
(store_bench.cc). Both have short turns, so that other work hits them alike, and each of them
goes first in every other pair of turns. An iteration of the store pushes every layer and pulls it
as soon as it is pushed, so as many bytes travel each way as in a step of sums. ratio_allreduce is
the median of the ratios of the pairs. pushes_per_s and pulls_per_s are packets, all ranks together,
in turns that push everything first and pull then, with a barrier between.

What can go wrong: there are more threads than cores, so other work slows either side, and in a
single pair by far; the quartiles show it. A median leaves rare events out, such as the store's
iterations of 30 ms; ratio_all_time, of all turns' time, has them in.
"""
import statistics

import report

DESCRIPTION = "a parameter store's iteration of bound 0 against a sum of the same bytes"


def add_options(parser):
    report.add_repetitions(parser, default=120)
    parser.add_argument("--steps", type=int, default=2, metavar="N",
                        help="steps a turn (default 2)")
    parser.add_argument("--kib", type=int, default=512, metavar="N",
                        help="KiB of each of 8 layers (default 512)")


def run(options):
    text = report.run_program(
        [report.program("bench/bench_store"), "2", "8", str(options.kib * 1024),
         str(options.steps), str(options.repetitions)], timeout_s=300)
    ratios, pushes, pulls, sums, both = (report.Samples() for _ in range(5))
    for line in text.splitlines():
        sum_s, store_s, push_s, pull_s, packets = map(float, line.split())
        ratios.add(store_s / sum_s)
        pushes.add(packets / push_s)
        pulls.add(packets / pull_s)
        sums.add(1e3 * sum_s / options.steps)
        both.add(1e3 * store_s / options.steps)
    report.table(["two ranks, 8 layers", "ms"],
                 [["a step of sums", sums.cell(2)], ["an iteration of the store", both.cell(2)]])
    quarter, _, three_quarters = statistics.quantiles(ratios.values, n=4)
    print(f"{len(ratios.values)} pairs of turns: the store's takes {ratios.median:.2f} times that "
          f"of sums, in half of them {quarter:.2f} to {three_quarters:.2f}")
    report.result("store", pushes_per_s=pushes.median, pulls_per_s=pulls.median,
                  ratio_allreduce=ratios.median,
                  ratio_all_time=sum(both.values) / sum(sums.values))
