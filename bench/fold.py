"""The fold bench: the sum kernels against memcpy of the same bytes.

Payload bytes are counted: those of one contribution. The kernel reads them, reads
the accumulator and writes it; memcpy reads them and writes the same accumulator. So the kernel
moves half as much again between core and cache as memcpy does.

Of the fused kernels the bytes of the gradient, or of the sum, are counted, in float32. A result in
float32 is made where its sum stands, as in a slot.

Time is the thread's CPU time, not the wall clock: another process on the core does not count, but
the caches that it dirtied do.

What can go wrong: at 1 GiB glibc's memcpy may use stores that bypass the caches, so that row
compares two strategies, not two loops; both move memory that is shared with other cores and other
guests. A virtual machine without huge pages pays for address translation on both sides. Without
2.5 GiB of free memory the 1 GiB row is left out, with a line that says so.
"""
import report

DESCRIPTION = "float32 sum kernel against memcpy, 256 KiB to 1 GiB (one core)"

# What the program calls a side, and how the table does.
ROWS = [
    ("float32", 256 << 10, "float32, 256 KiB"),
    ("float32", 8 << 20, "float32, 8 MiB"),
    ("float32", 1 << 30, "float32, 1 GiB"),
    ("float32_chunks", 256 << 10, "float32, 256 KiB in 1 KiB calls"),
    ("float16", 256 << 10, "float16, 256 KiB"),
    ("bfloat16", 256 << 10, "bfloat16, 256 KiB"),
    ("int8_chunks", 256 << 10, "int8, 256 KiB in 1 KiB calls"),
] + [(f"{kernel}_{wire}", 256 << 10, f"{text} {wire}, 256 KiB of float32 in 1 KiB calls")
     for kernel, text, wires in (
         ("result", "a result and its checksum in", ("float32", "bfloat16")),
         ("signs", "the same with its signs, in", ("float32", "bfloat16")),
         ("norm", "the same with its squared norm, in", ("float32", "bfloat16")),
         ("pack", "gradient + residual to", ("float16", "bfloat16", "int8")),
         ("residual", "what is lost to", ("float16", "bfloat16", "int8")),
         ("mean", "unbiased mean in", ("float16", "bfloat16", "int8")))
     for wire in wires]
# A call of 1 KiB is compared with memcpy in calls of 1 KiB.
REFERENCE = {side: "memcpy_chunks" for side, _, _ in ROWS if "_" in side}
BIG_ROW_NEEDS_BYTES = 5 << 29


def add_options(parser):
    report.add_repetitions(parser, default=9)
    report.add_seconds(parser, default=0.3)
    parser.add_argument("--mib", type=int, default=1024, metavar="N",
                        help="the longest payload, MiB (default 1024)")
    parser.add_argument("--target", default="", metavar="NAME",
                        help="instruction set by Highway's name, AVX2 for one (default: the best)")


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(options, max_bytes):
    """Returns {(side, bytes): Samples of Gb/s} and the instruction set's name."""
    def key_of(row):
        side, size = row["run_name"].split("/")[:2]
        return side, int(size)
    rows, context = report.google_benchmark(
        "bench_fold", options.repetitions, options.seconds,
        f"--fold_target={options.target}", f"--max_bytes={max_bytes}")
    return (report.samples_by(key_of, lambda row: row["payload_bits"] / 1e9, rows),
            context["fold_target"])


def run(options):
    enough = available_bytes() >= BIG_ROW_NEEDS_BYTES
    samples, target = measure(options, min(options.mib, 1024 if enough else 8) << 20)
    print(f"instruction set: {target}; Gb/s of payload, median [least .. largest] of "
          f"{options.repetitions} interleaved repetitions, CPU time")
    rows, ratios = [], {}
    for side, size, label in ROWS:
        if (side, size) not in samples:
            print(f"left out: {label} (beyond --mib, or more than the free memory: it needs "
                  f"{BIG_ROW_NEEDS_BYTES >> 20} MiB)")
            continue
        kernel = samples[side, size]
        copy = samples[REFERENCE.get(side, "memcpy"), size]
        ratios[side, size] = kernel.median / copy.median
        rows.append([label, kernel.cell(1), copy.cell(1), f"{ratios[side, size]:.2f}"])
    report.table(["payload", "fold Gb/s", "memcpy Gb/s", "fold/memcpy"], rows)
    headline = ("float32", 256 << 10)
    report.result("fold", gbps=samples[headline].median, ratio_memcpy=ratios[headline])
