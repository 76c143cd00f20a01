"""The allreduce bench: 25 MB of gradients summed over n workers, Sluice against Gloo, in labs.

Each side has a lab of its own (tests/lab) with the same n hosts, links, queues of 2 MB and
offloads; what shapes them costs neither side a timer a frame. Sluice's has sluiced on af_packet
ports, Gloo's the kernel's bridge, which forwards faster than a switch in user space and merges what
it receives, so the choice favours Gloo. Both labs stand at once; the repetitions alternate, one
side idle while the others run; the first round of each is not counted (connections, congestion
windows). A time is from the first rank's start to the last rank's end of one sum, after a barrier,
on the machine's common clock. Every rank checks every element of every sum.

Sides: sluice with wire = float32 and bfloat16; gloo as it is and with DDP's fp16 compression hook.
All sum float32: what is narrowed, rounded and kept as residual on the way is in the time.

cpu s is the processor time of the whole machine for one sum, less that of processes that are not
the bench's. "bare" is what a bare sender's frames take of one link's two directions, in Mb/s of the
wire, before the sums: equal on both sides where links and not processors are the limit. "shape" is
what shaping takes of all cores at most while the links are full, the hosts' uplinks, and the
bridge's ports for Gloo (lab_traffic.py); sluiced shapes its ports itself: that is part of its time.

The ideals, per link and direction, count bytes of the wire (frames and 24 bytes each), as the lab's
rates do:
  ours: the tensor in frames of results, the larger direction: chunk + 130 bytes of headers (IPv4).
  ring: 2 (n - 1) / n of it in TCP segments of mtu - 52 bytes, frames of mtu + 14.
vs_ideal is our time / our ideal (1 is best); vs_gloo is Gloo's time / ours (more is better for us);
bf16_vs_gloo is Gloo's time with float32 / ours with bfloat16, and cpu_vs_gloo Gloo's cpu s / ours,
both at the smallest n; gloo_vs_ring is Gloo's time / the ring's ideal, at the largest n, and says
whether Gloo was given a fair run; gbit_ is at 1,000 Mb/s. Ratios are of medians.

What can go wrong: all workers, the switch and the kernel share this machine's cores. When the
column "busy" comes near 100 % the processors and not the links set the time, for whichever side
shows it; then lower --rate. Gloo's time depends on the queue's length; it is stated for that
reason. Other processes on the machine make both sides slower; the range shows it.
"""
import json
import os
import select
import sys
import time
from typing import NamedTuple, Optional

import report
from cores import BusyShare, MachineTime
from lab_traffic import shaping_share
from sluice import _plan_model as planned

DESCRIPTION = "25 MB summed over 4 and 8 workers in the namespace lab, against Gloo and ideals"

START_TIMEOUT_S = 120
ROUND_TIMEOUT_S = 120
GBIT_MBPS = 1000
LONG_RATES = (50, 200, GBIT_MBPS, None)
MOST_WORKERS = 64  # whose masks are one word
SIDES = {  # name in the table: library, dtype
    "sluice": ("sluice", "float32"), "sluice bf16": ("sluice", "bfloat16"),
    "gloo": ("gloo", "float32"), "gloo fp16": ("gloo", "float16"),
}
PLAIN = ("sluice", "gloo")


class Setting(NamedTuple):
    """What the sides of one run have in common."""

    rate: Optional[float]  # Mb/s; None: unshaped
    mtu: int
    world_size: int
    sides: tuple

    def __str__(self):
        rate = f"{self.rate:g} Mb/s" if self.rate else "unshaped"
        return f"{rate} mtu {self.mtu} n={self.world_size}"


class TooSlow(report.BenchError):
    """A rank did not end in time."""


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--rate", type=float, default=200.0, metavar="MBPS",
                        help="of every link, both ways, Mb/s (default 200)")
    parser.add_argument("--megabytes", type=float, default=25.0, metavar="MB",
                        help="of float32 in one sum, 10^6 bytes (default 25)")
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8], metavar="N",
                        help="world sizes (default 4 8)")
    parser.add_argument("--pmd", default="af_packet", choices=["af_packet", "af_xdp"],
                        help="the appliance's ports (default af_packet)")
    parser.add_argument("--worker-cpu", action="store_true",
                        help="a worker's processor time alone (worker_cpu.py); with --long also at "
                             "1,000 Mb/s and unshaped")
    parser.add_argument("--long", action="store_true",
                        help="all rates, both MTUs, all sides at every world size: half an hour")


class Side:
    """n ranks of one side in one lab, driven line by line."""

    script = "allreduce_worker.py"
    python = report.PYTHON

    def __init__(self, lab, name, world_size, arguments, env):
        self.name = name
        self.seconds, self.busy, self.cpu_s = report.Samples(), report.Samples(), report.Samples()
        self.retransmissions = 0
        self.chunk_bytes = 0
        command = [self.python, os.path.join(report.ROOT, "bench", self.script), name,
                   *map(str, arguments)]
        self.ranks = [
            lab.popen(rank, command,
                      env={**env, "RANK": str(rank), "WORLD_SIZE": str(world_size)},
                      stdin=-1, stdout=-1, text=True)
            for rank in range(world_size)]

    def wait_ready(self):
        for line in self._lines(START_TIMEOUT_S):
            if line.strip() != "ready":
                raise report.BenchError(f"{self.name}: a worker said {line.strip()!r}, not ready")

    def begin(self, sums):
        """Has all ranks begin so many sums in a row."""
        for process in self.ranks:
            process.stdin.write(f"go {sums}\n")
            process.stdin.flush()

    def round(self, counted, sums=1, timeout_s=ROUND_TIMEOUT_S):
        """So many sums in a row on all ranks; their time is kept when `counted`. Returns what each
        rank said."""
        busy, cpu = BusyShare(), MachineTime()
        self.begin(sums)
        rows = [json.loads(line) for line in self._lines(timeout_s)]
        if counted:
            span_ns = max(row["end_ns"] for row in rows) - min(row["start_ns"] for row in rows)
            self.seconds.add(span_ns / 1e9)
            self.busy.add(busy.percent())
            self.cpu_s.add(cpu.seconds())
        self.retransmissions = sum(row["retransmissions"] for row in rows)
        self.chunk_bytes = rows[0]["chunk_bytes"]
        return rows

    def _lines(self, timeout_s):
        """One line of each rank. A rank that ends or is silent too long fails the bench by name."""
        deadline = time.monotonic() + timeout_s
        lines = []
        for rank, process in enumerate(self.ranks):
            ready, _, _ = select.select([process.stdout], [], [],
                                        max(0.0, deadline - time.monotonic()))
            line = process.stdout.readline() if ready else None
            if line is None:
                raise TooSlow(f"{self.name}: rank {rank} said nothing for {timeout_s:.0f} s")
            if not line:
                raise report.BenchError(f"{self.name}: rank {rank} ended; its message is above")
            lines.append(line)
        return lines


def our_ideal_s(total_bytes, chunk_bytes, rate_mbps):
    # Bytes are counted as if they were float32.
    wire_bytes = planned.box_wire_bytes(total_bytes / 4, total_bytes / chunk_bytes, "float32",
                                        MOST_WORKERS)
    return wire_bytes * 8 / (rate_mbps * 1e6)


def ring_ideal_s(total_bytes, world_size, rate_mbps, mtu=1500):
    return planned.ring_wire_bytes(total_bytes, world_size, mtu) * 8 / (rate_mbps * 1e6)


def sluice_env(lab):
    build = report.build_dir()
    env = {"SLUICE_ADDRESS": lab.url, "SLUICE_JOB": "bench", "SLUICE_SECRET": "lab",
           "SLUICE_RUN_ID": str(time.monotonic_ns()),
           "PYTHONPATH": os.path.join(report.ROOT, "client", "python")}
    if "SLUICE_LIBRARY" not in os.environ:
        env["SLUICE_LIBRARY"] = os.path.join(build, "client", "libsluice.so")
    return env


def gloo_env(lab):
    return {"MASTER_ADDR": lab.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}


def settings(options):
    """The runs, in the table's order."""
    if options.long:
        rates = dict.fromkeys((*LONG_RATES, options.rate))
        return [Setting(rate, mtu, n, tuple(SIDES)) for rate in rates for mtu in (1500, 9000)
                for n in options.workers]
    least = min(options.workers)
    runs = [Setting(options.rate, 1500, n, tuple(SIDES) if n == least else PLAIN)
            for n in options.workers]
    return runs + [Setting(GBIT_MBPS, 1500, least, PLAIN)] * (options.rate != GBIT_MBPS)


def measure(lab_module, options, setting):
    """{name: Side} with their samples, and {library: (up, down)} of a bare sender."""
    import links
    elem_count = int(options.megabytes * 1e6) // 4
    lab_options = {"hosts": setting.world_size, "rate_mbps": setting.rate, "mtu": setting.mtu}
    with lab_module.Lab(pmd=options.pmd, **lab_options) as ours, \
            lab_module.Lab(pmd="bridge", **lab_options) as bridge:
        ours.start_appliance(report.build_dir())
        bare = {"sluice": links.carried_mbps(ours, 0, 1), "gloo": links.carried_mbps(bridge, 0, 1)}
        sides = {}
        for name in setting.sides:
            library, dtype = SIDES[name]
            env = sluice_env(ours) if library == "sluice" else gloo_env(bridge)
            env["SLUICE_JOB"] = dtype
            env["MASTER_PORT"] = str(29500 + len(sides))
            sides[name] = Side(ours if library == "sluice" else bridge, library,
                               setting.world_size, [elem_count, dtype, setting.mtu], env)
        for side in sides.values():
            side.wait_ready()
        for repetition in range(options.repetitions + 1):
            for side in sides.values():
                side.round(counted=repetition > 0)
                print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return sides, bare


def ideals_s(setting, sides, total_bytes):
    """{name: the ideal of its algorithm}; empty: unshaped links have none."""
    ideals = {}
    for name, side in sides.items():
        library, dtype = SIDES[name]
        sent_bytes = total_bytes // 4 * planned.ELEM_BYTES[dtype]
        if setting.rate is not None:
            ideals[name] = (our_ideal_s(sent_bytes, side.chunk_bytes, setting.rate)
                            if library == "sluice" else
                            ring_ideal_s(sent_bytes, setting.world_size, setting.rate,
                                         setting.mtu))
    return ideals


def rows_of(setting, sides, bare, ideals, shaper_share):
    """The table's rows; `shaper_share`: what one shaper takes of all cores, in percent."""
    rows = []
    for name, side in sides.items():
        library = SIDES[name][0]
        up, down = bare[library]
        shapers = setting.world_size * (1 if library == "sluice" else 2)
        ideal = ideals.get(name)
        rows.append([
            f"{setting} {name}", side.seconds.cell(3), f"{ideal:.3f}" if ideal else "",
            f"{side.seconds.median / ideal:.2f}" if ideal else "", side.cpu_s.cell(2),
            f"{side.busy.median:.0f} %",
            f"{shapers * shaper_share:.1f} %" if setting.rate else "", f"{up:.0f}/{down:.0f}",
            side.retransmissions if library == "sluice" else ""])
    return rows


def run(options):
    import lab as lab_module
    import worker_cpu  # which uses this module
    report.program("dataplane/sluiced")
    total_bytes = int(options.megabytes * 1e6) // 4 * 4
    rows, figures, shares = [], {}, {}
    least, most = min(options.workers), max(options.workers)
    try:
        if options.worker_cpu:
            report.result("allreduce", **worker_cpu.measure_all(options))
            return
        for setting in settings(options):
            if setting.rate and (setting.rate, setting.mtu) not in shares:
                shares[setting.rate, setting.mtu] = shaping_share(setting.rate, setting.mtu)
            sides, bare = measure(lab_module, options, setting)
            ideals = ideals_s(setting, sides, total_bytes)
            rows += rows_of(setting, sides, bare, ideals,
                            shares.get((setting.rate, setting.mtu), 0.0))
            seconds = {name: side.seconds.median for name, side in sides.items()}
            vs_gloo = seconds["gloo"] / seconds["sluice"]
            n = setting.world_size
            if setting.mtu != 1500:
                continue
            if setting.rate == options.rate:
                figures[f"n{n}_vs_ideal"] = seconds["sluice"] / ideals["sluice"]
                figures[f"n{n}_vs_gloo"] = vs_gloo
                if n == least:
                    figures["bf16_vs_gloo"] = seconds["gloo"] / seconds["sluice bf16"]
                    figures["cpu_vs_gloo"] = sides["gloo"].cpu_s.median / \
                        max(sides["sluice"].cpu_s.median, 0.01)
                if n == most:
                    figures["gloo_vs_ring"] = seconds["gloo"] / ideals["gloo"]
            if setting.rate == GBIT_MBPS and n == least:
                figures[f"gbit_n{n}_vs_gloo"] = vs_gloo
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None
    print(f"{options.megabytes:g} MB of float32, links alike both ways, 2 MB queues; "
          f"Sluice: {options.pmd} ports, bf16: wire = \"bfloat16\"; "
          f"Gloo: kernel bridge; median [least .. largest] of {options.repetitions} interleaved "
          f"repetitions")
    report.table(["side", "seconds", "ideal s", "time/ideal", "cpu s", "busy", "shape", "bare",
                  "retransmissions"], rows)
    order = ("vs_ideal", "vs_gloo", "bf16_vs_gloo", "cpu_vs_gloo", "gloo_vs_ring")
    rank = lambda key: order.index(key.split("_", 1)[1]) if key[0] == "n" else \
        order.index(key) if key in order else len(order)
    report.result("allreduce", **dict(sorted(figures.items(), key=lambda item: rank(item[0]))))
