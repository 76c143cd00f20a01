"""The collectives bench: operations of a group, Sluice against Gloo, in labs.

As in the allreduce bench (allreduce.py), each side has a lab of its own with the same hosts, links
and queues; repetitions alternate. A time is from the first rank's start to the last rank's end, on
the machine's common clock; every rank checks every element. SLUICE_PYTHON may name an interpreter
with a current torch: Gloo has no reduce-scatter of one tensor and no bfloat16 in older ones, and
what a library lacks has no figure.

  allreduce_vs_gloo  Gloo's time / ours, of an all-reduce of 25 MB
  rs_ag_vs_gloo      of a reduce-scatter of 25 MB beside an all-gather of 25 MB
  small_vs_gloo      of an all-reduce of 4 KB, medians
  rounding_vs_gloo   error of a 16-bit sum, Gloo's / ours: a ring rounds at every hop, the box once
  group_ms           a new group of all ranks, to the end of its first barrier
  reconfigure_ms     another set of an elastic job's members, all or all but one of --workers: from
                     the first call to the end of the last member's first barrier
  new_length_ms      an all-reduce of 4 KB of a length never seen, less one of a known length

All are of --workers ranks at --rate Mb/s and --mtu.
"""
import json
import os
import statistics
import sys

import report
from allreduce import Side, gloo_env, sluice_env

DESCRIPTION = "operations of a group against Gloo: big and small sums, reduce-scatter, all-gather"

SMALL_BYTES, SMALL_COUNT = 4096, 300
GROUPS = 20
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
        begins = zip(*(each["begins_ns"] for each in said))
        ends = zip(*(each["ends_ns"] for each in said))
        return [(max(end) - min(begin)) / 1e9 for begin, end in zip(begins, ends)]


def big(sides, kind, elems, repetitions):
    """{name: its times}, one side after the other, each first time left out."""
    times = {name: [] for name in sides}
    for repetition in range(repetitions + 1):
        for name, side in sides.items():
            found = side.times(kind, elems, 1)
            if found is not None and repetition > 0:
                times[name] += found
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return times


def measure(sides, options):
    """(rows of the table, figures)."""
    rows, figures = [], {}

    def compare(what, key, times, scale=1.0, unit="s"):
        for name, found in times.items():
            cell = f"{statistics.median(found) * scale:.3f} [{min(found) * scale:.3f} .. " \
                   f"{max(found) * scale:.3f}] {unit}" if found else "not there"
            rows.append([what, name, cell])
        if key and all(times.values()):
            figures[key] = statistics.median(times["gloo"]) / statistics.median(times["sluice"])

    elems = int(options.megabytes * 1e6) // 4
    compare(f"all-reduce {options.megabytes:g} MB", "allreduce_vs_gloo",
            big(sides, "all_reduce", elems, options.repetitions))
    compare(f"reduce-scatter and all-gather {options.megabytes:g} MB", "rs_ag_vs_gloo",
            big(sides, "rs_ag", elems, options.repetitions))
    small = SMALL_BYTES // 4
    of_each = lambda kind, count: {name: side.times(kind, small, count) or []
                                   for name, side in sides.items()}
    known = of_each("all_reduce", SMALL_COUNT)
    compare("all-reduce 4 KB", "small_vs_gloo", known, 1e3, "ms")
    fresh = of_each("length", SMALL_COUNT)
    compare("all-reduce 4 KB, new length", None, fresh, 1e3, "ms")
    figures["new_length_ms"] = 1e3 * (statistics.median(fresh["sluice"]) -
                                      statistics.median(known["sluice"]))
    made = of_each("group", GROUPS)
    compare("new group", None, made, 1e3, "ms")
    figures["group_ms"] = 1e3 * statistics.median(made["sluice"])
    changed = sides["sluice"].times("reconfigure", 0, RECONFIGURATIONS)
    compare("another set of members", None, {"sluice": changed}, 1e3, "ms")
    figures["reconfigure_ms"] = 1e3 * statistics.median(changed)
    errors = {name: side.ask("rounding", ROUNDING_ELEMS, 1) for name, side in sides.items()}
    for name, said in errors.items():
        rows.append(["16-bit sum's error", name,
                     f"{said[0]['error']:.2e} {said[0]['dtype']}" if said else "not there"])
    if all(errors.values()) and errors["gloo"][0]["dtype"] == errors["sluice"][0]["dtype"]:
        figures["rounding_vs_gloo"] = errors["gloo"][0]["error"] / errors["sluice"][0]["error"]
    return rows, figures


def run(options):
    import lab as lab_module
    report.program("dataplane/sluiced")
    lab_options = {"hosts": options.workers, "rate_mbps": options.rate, "mtu": options.mtu}
    try:
        with lab_module.Lab(pmd="af_packet", **lab_options) as ours, \
                lab_module.Lab(pmd="bridge", **lab_options) as bridge:
            ours.start_appliance(report.build_dir())
            sides = {"sluice": Ranks(ours, "sluice", options.workers, [options.mtu],
                                     sluice_env(ours)),
                     "gloo": Ranks(bridge, "gloo", options.workers, [options.mtu],
                                   gloo_env(bridge))}
            for side in sides.values():
                side.wait_ready()
            rows, figures = measure(sides, options)
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None
    print(f"{options.workers} ranks, links of {options.rate:g} Mb/s, MTU {options.mtu}; "
          f"Gloo: kernel bridge; median [least .. largest]")
    report.table(["operation", "side", "time"], rows)
    report.result("collectives", **figures)
