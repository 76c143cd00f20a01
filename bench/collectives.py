"""The collectives bench: operations of a group, Sluice against Gloo, in labs.

As in the allreduce bench (allreduce.py), each side has a lab of its own with the same hosts, links
and queues; repetitions alternate. A time is from the first rank's start to the last rank's end, on
the machine's common clock; every rank checks every element. SLUICE_PYTHON may name an interpreter
with a current torch: Gloo has no reduce-scatter of one tensor and no bfloat16 in older ones, and
what a library lacks has no figure.

  allreduce_vs_gloo  Gloo's time / ours, of an all-reduce of 25 MB
  rs_ag_vs_gloo      of a reduce-scatter of 25 MB beside an all-gather of 25 MB
  small_vs_gloo      of an all-reduce of 4 KB, medians
  hsdp_vs_gloo       of a step of a GPT with HSDP, all dimensions of its mesh over the backend
  overhead_vs_attach a step of the GPT with DDP over the backend, of one under attach()
  rounding_vs_gloo   error of a 16-bit sum, Gloo's / ours: a ring rounds at every hop, the box once
  group_ms           a new group of all ranks, to the end of its first barrier
  reconfigure_ms     another set of an elastic job's members, all or all but one of --workers: from
                     the first call to the end of the last member's first barrier
  new_length_ms      an all-reduce of 4 KB of a length never seen, less one of a known length

All are of --workers ranks at --rate Mb/s and --mtu. --long has a table of all-reduces of 4 KB to
100 MB, and of a reduce-scatter beside an all-gather, of 4 and 8 ranks at 200 and 1,000 Mb/s and
both MTUs; the ideals are those of the links (allreduce.py).
"""
import itertools
import json
import math
import os
import statistics
import sys

import report
from allreduce import Side, gloo_env, ring_ideal_s, sluice_env

DESCRIPTION = "operations of a group against Gloo: big and small sums, reduce-scatter, all-gather"

SMALL_BYTES, SMALL_COUNT = 4096, 300
LONG_BYTES = (SMALL_BYTES, 65_536, 1_000_000, 25_000_000, 100_000_000)
LONG_WORKERS, LONG_RATES, MTUS = (4, 8), (200, 1000), (1500, 9000)
MANY_BELOW = 100_000  # bytes: so small an operation is repeated SMALL_COUNT times
GROUPS = 20
STEPS = 3  # of training in a repetition
RECONFIGURATIONS = 50
ROUNDING_ELEMS = 100_000


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--rate", type=float, default=200.0, metavar="MBPS",
                        help="of every link, both ways, Mb/s (default 200)")
    parser.add_argument("--mtu", type=int, default=9000, help="(default 9000)")
    parser.add_argument("--megabytes", type=float, default=25.0, metavar="MB",
                        help="of a big operation, 10^6 bytes (default 25)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="(default 8)")
    parser.add_argument("--width", type=int, default=256, metavar="N",
                        help="of the GPT of four blocks (default 256: 3.2 M parameters)")
    parser.add_argument("--long", action="store_true",
                        help="the table of sizes, ranks, rates and MTUs, without a RESULT: an hour")


class Ranks(Side):
    script = "collectives_worker.py"
    python = os.environ.get("SLUICE_PYTHON", report.PYTHON)

    def ask(self, kind, elems, count):
        """What each rank said; None: this side's library lacks it."""
        for process in self.ranks:
            process.stdin.write(f"{kind} {elems} {count}\n")
            process.stdin.flush()
        said = [json.loads(line) for line in self._lines(120)]
        return None if any("missing" in each for each in said) else said

    def times(self, kind, elems, count):
        """Of each operation, over all ranks; None: the library lacks it."""
        said = self.ask(kind, elems, count)
        if said is None:
            return None
        if len({each.get("digest") for each in said}) > 1:
            raise report.BenchError(f"{self.name}, {kind}: the ranks' parameters differ")
        begins = zip(*(each["begins_ns"] for each in said))
        ends = zip(*(each["ends_ns"] for each in said))
        return [(max(end) - min(begin)) / 1e9 for begin, end in zip(begins, ends)]


def big(asked, elems, repetitions, count=1):
    """{name: its times} of {name: (side, kind)}, one after the other, each first time left out."""
    times = {name: [] for name in asked}
    for repetition in range(repetitions + 1):
        for name, (side, kind) in asked.items():
            found = side.times(kind, elems, count)
            if found is not None and repetition > 0:
                times[name] += found
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def cell(times, scale=1.0, unit="s"):
    """The median and the range; none: the side's library lacks the operation."""
    return f"{statistics.median(times) * scale:.3f} [{min(times) * scale:.3f} .. " \
           f"{max(times) * scale:.3f}] {unit}" if times else "not there"


def ratio(times, over, under):
    """Of the medians of these two; NaN where one is not there."""
    return statistics.median(times[over]) / statistics.median(times[under]) \
        if times[over] and times[under] else math.nan


def measure(sides, options):
    """(rows of the table, figures)."""
    rows, figures = [], {}
    both = lambda kind: {name: (side, kind) for name, side in sides.items()}

    def compare(what, times, scale=1.0, unit="s"):
        rows.extend([what, name, cell(found, scale, unit)] for name, found in times.items())
        return times

    elems = int(options.megabytes * 1e6) // 4
    figures["allreduce_vs_gloo"] = ratio(
        compare(f"all-reduce {options.megabytes:g} MB",
                big(both("all_reduce"), elems, options.repetitions)), "gloo", "sluice")
    figures["rs_ag_vs_gloo"] = ratio(
        compare(f"reduce-scatter and all-gather {options.megabytes:g} MB",
                big(both("rs_ag"), elems, options.repetitions)), "gloo", "sluice")
    small = SMALL_BYTES // 4
    of_each = lambda kind, count: {name: side.times(kind, small, count) or []
                                   for name, side in sides.items()}
    pairs = of_each("length", SMALL_COUNT)
    known = compare("all-reduce 4 KB",
                    {name: times[0::2] for name, times in pairs.items()}, 1e3, "ms")
    fresh = compare("all-reduce 4 KB, new length",
                    {name: times[1::2] for name, times in pairs.items()}, 1e3, "ms")
    figures["small_vs_gloo"] = ratio(known, "gloo", "sluice")
    figures["new_length_ms"] = 1e3 * (statistics.median(fresh["sluice"]) -
                                      statistics.median(known["sluice"]))
    train = {**both("ddp"), "attach": (sides["sluice"], "attach")}
    figures["hsdp_vs_gloo"] = ratio(
        compare(f"{STEPS} steps with HSDP",
                big(both("hsdp"), options.width, options.repetitions, STEPS)), "gloo", "sluice")
    figures["overhead_vs_attach"] = ratio(
        compare(f"{STEPS} steps with DDP",
                big(train, options.width, options.repetitions, STEPS)), "sluice", "attach")
    errors = {name: side.ask("rounding", ROUNDING_ELEMS, 1) for name, side in sides.items()}
    for name, said in errors.items():
        rows.append(["16-bit sum's error", name,
                     f"{said[0]['error']:.2e} {said[0]['dtype']}" if said else "not there"])
    if all(errors.values()) and errors["gloo"][0]["dtype"] == errors["sluice"][0]["dtype"]:
        figures["rounding_vs_gloo"] = errors["gloo"][0]["error"] / errors["sluice"][0]["error"]
    made = compare("new group", of_each("group", GROUPS), 1e3, "ms")
    figures["group_ms"] = 1e3 * statistics.median(made["sluice"])
    changed = sides["sluice"].times("reconfigure", 0, RECONFIGURATIONS)
    compare("another set of members", {"sluice": changed}, 1e3, "ms")
    figures["reconfigure_ms"] = 1e3 * statistics.median(changed)
    return rows, figures


def long_rows(sides, options, setting):
    """The table's rows of one setting."""
    workers, rate, mtu = setting
    rows = []
    for kind, sizes in (("all_reduce", LONG_BYTES), ("rs_ag", (25_000_000,))):
        for size in sizes:
            count = SMALL_COUNT if size < MANY_BELOW else 1
            times = big({name: (side, kind) for name, side in sides.items()}, size // 4,
                        options.repetitions, count)
            ring_s = ring_ideal_s(size, workers, rate, mtu)
            rows.append([f"{workers} ranks, {rate} Mb/s, MTU {mtu}", kind, f"{size:,}",
                         *(cell(times[name], 1e3, "ms") for name in ("sluice", "gloo")),
                         f"{ratio(times, 'gloo', 'sluice'):.2f}",
                         f"{1e3 * ring_s:.1f}" if kind == "all_reduce" else ""])
    return rows


def in_labs(options, setting, function):
    """What function(sides) returns."""
    import lab as lab_module
    workers, rate, mtu = setting
    lab_options = {"hosts": workers, "rate_mbps": rate, "mtu": mtu}
    try:
        with lab_module.Lab(pmd="af_packet", **lab_options) as ours, \
                lab_module.Lab(pmd="bridge", **lab_options) as bridge:
            ours.start_appliance(report.build_dir())
            environment = {**gloo_env(ours), **sluice_env(ours), "SLUICE_MTU": str(mtu)}
            sides = {"sluice": Ranks(ours, "sluice", workers, [], environment),
                     "gloo": Ranks(bridge, "gloo", workers, [], gloo_env(bridge))}
            for side in sides.values():
                side.wait_ready()
            return function(sides)
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None


def run(options):
    report.program("dataplane/sluiced")
    if options.workers % 2:
        raise report.BenchError(f"--workers {options.workers}: HSDP takes two halves")
    print("Gloo: kernel bridge; median [least .. largest]")
    if options.long:
        rows = []
        for setting in itertools.product(LONG_WORKERS, LONG_RATES, MTUS):
            rows += in_labs(options, setting, lambda sides: long_rows(sides, options, setting))
        report.table(["links", "operation", "bytes", "sluice", "gloo", "gloo/sluice",
                      "ring's ideal ms"], rows)
        return
    setting = (options.workers, options.rate, options.mtu)
    rows, figures = in_labs(options, setting, lambda sides: measure(sides, options))
    print(f"{options.workers} ranks, links of {options.rate:g} Mb/s, MTU {options.mtu}")
    report.table(["operation", "side", "time"], rows)
    report.result("collectives", **{key: figure for key, figure in figures.items()
                                    if not math.isnan(figure)})
