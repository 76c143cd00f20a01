"""The sfcd bench: the cost of convergence detection, beside the sums that it looks at.

Sign flips are detected on finished sums: sign bits are packed into words, compared with those of
the last round (XOR, popcount) and stored. Here every step ends a round, which is the worst case:
SAINA's own round is an epoch, ours is 5 steps. Eight workers, k = 8, float32.

Two paths. `slots` is production: a shard's handle() from the parsed packet to the completed slot,
the closed step and the policy's next k; a job with the policy `saina` against one with `fixed`.
`kernels` calls only the sums, and so has less to hide the signs behind. Both read the contributions
of a step (11 MB, eight times 1.4 MB) from one memory, in the order chunk by chunk; the last rows
repeat two chunks, so that all of it stays in the first-level cache, which no real step does.
`norms` adds the squared norm of every contribution and sum, that `ramp` and `goodput` ask for.

Counted: CPU time of the thread for one chunk, all eight contributions of it. A sample is four steps
a few milliseconds apart, alone, with, with, alone, or with, alone, alone, with, in turns, after six
that warm the caches; its ratio is of the two sums. Setting up a step (numbers in the packets,
results taken from the queue) is not counted; sending results is left out, which makes the ratio
worse.

What can go wrong: where the system puts two jobs' memory moves a ratio by a few hundredths either
way, so the program is started again for each repetition, and the medians are of all samples; a
neighbour on the last-level cache moves both sides and widens the range. Each step ends by checking
the last sum, the number of completed slots and that no sign flipped, since the contributions
repeat.
"""
import report

DESCRIPTION = "sums with sign flips counted at every step, against sums alone (one core)"

SIDES = {"all": "all signs", "one_in_32": "one sign in 32", "norms": "squared norms"}


def add_options(parser):
    report.add_repetitions(parser, default=9)
    parser.add_argument("--rounds", type=int, default=20, metavar="N",
                        help="samples of each row a repetition (default 20)")


def measure(options):
    """Returns {(path, chunk bytes, chunks, side): (alone, with, ratio) Samples} and the target."""
    samples, target = {}, "?"
    for _ in range(options.repetitions):
        text = report.run_program(
            [report.program("bench/bench_sfcd"), f"--rounds={options.rounds}"], timeout_s=120)
        for line in text.splitlines():
            if line.startswith("target "):
                target = line.split()[1]
                continue
            path, chunk_bytes, chunks, side, alone, both = line.split()
            entry = samples.setdefault((path, int(chunk_bytes), int(chunks), side),
                                       tuple(report.Samples() for _ in range(3)))
            for quantity, value in zip(entry, (alone, both, float(both) / float(alone))):
                quantity.add(value)
    return samples, target


def run(options):
    samples, target = measure(options)
    count = options.repetitions * options.rounds
    print(f"k = 8 of 8, signs at every step, instruction set {target}; median [least .. largest] "
          f"of {count} interleaved samples, CPU time")
    report.table(["path", "ns a chunk, sums alone", "with", "", "ratio"],
                 [[f"{path}, {chunk_bytes} B, {chunks} chunks", alone.cell(0), SIDES[side],
                   both.cell(0), ratio.cell(3)]
                  for (path, chunk_bytes, chunks, side), (alone, both, ratio) in samples.items()])

    def median(*key):
        return samples[key][2].median

    report.result("sfcd", cost_ratio=median("slots", 1344, 1024, "all"),
                  cost_ratio_8832=median("slots", 8832, 160, "all"),
                  one_in_32=median("slots", 1344, 1024, "one_in_32"),
                  kernels=median("kernels", 1344, 1024, "all"),
                  kernels_cached=median("kernels", 1344, 2, "all"),
                  norms=median("kernels", 1344, 1024, "norms"))
