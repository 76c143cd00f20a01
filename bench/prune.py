"""The prune bench: the pruning of a gradient on its way out, on one core.

Counted are the gradient's bytes, in float32, at a density of 1 %. `select` is what the client does
when a packet is filled: gradient + residual, what of it is above the threshold, and the packet's
entry of that (places and values), a chunk of 1,344 bytes a call. `passes` makes the same bytes in
two passes, as narrower formats need, which round in between, and `loop` with a plain loop over the
elements; all are compared before anything is measured. `copy` is memcpy of the gradient, which
reads half as much. `residual` is what is left of it when a result has come. The others are
thresholds, which a tensor needs once a step.

Time is the thread's CPU time, not the wall clock: another process on the core does not count, but
the caches that it dirtied do, and what shares a core's units with it.
"""
import report

DESCRIPTION = "pruning kernels against a plain loop and memcpy, Gb/s of gradient (one core)"
KERNELS = ["select", "passes", "loop", "copy", "residual", "static", "sampled", "sigma", "dynamic",
           "dynamic_raw"]
PLACES = {"cache": "258 KiB", "memory": "67 MB"}


def add_options(parser):
    report.add_repetitions(parser, default=9)
    report.add_seconds(parser, default=0.05)
    parser.add_argument("--target", default="", metavar="NAME",
                        help="instruction set by Highway's name, AVX2 for one (default: the best)")


def run(options):
    rows, context = report.google_benchmark("bench_prune", options.repetitions, options.seconds,
                                            f"--target={options.target}")
    samples = report.samples_by(lambda row: tuple(row["run_name"].split("/")[:2]),
                                lambda row: row["gradient_bits"] / 1e9, rows)
    print(f"instruction set: {context['target']}; Gb/s of gradient, median [least .. largest] of "
          f"{options.repetitions} interleaved repetitions, CPU time")
    report.table(["kernel", *(f"{place}, {size}" for place, size in PLACES.items())],
                 [[kernel, *(samples[kernel, place].cell(1) for place in PLACES)]
                  for kernel in KERNELS])
    ours, loop, copy = (samples[kernel, "cache"].median for kernel in ("select", "loop", "copy"))
    report.result("prune", gbps_core=ours, ratio_scalar=ours / loop, ratio_copy=ours / copy)
