"""The allreduce bench: 25 MB of float32 summed over n workers, Sluice against Gloo, in labs.

Each side has a lab of its own (tests/lab) with the same n hosts and the same links, each shaped
with htb at both ends to the rate and a queue of 2 MB: Sluice's with sluiced on af_packet ports,
Gloo's with the kernel's bridge, which forwards faster than a switch in user space, so the choice
favours Gloo. Both labs stand at once; the repetitions alternate, one side idle while the
other runs; the first round of each is not counted (connections, congestion windows). A time is
from the first rank's start to the last rank's end of one sum, after a barrier, on the machine's
common clock. Every rank checks every element of every sum.

The ideals, per link and direction, count bytes of Ethernet frames as htb does:
  ours: 25 MB in frames of results, the larger direction: chunk + 130 bytes of headers (IPv4).
  ring: 2 (n - 1) / n of 25 MB in TCP segments of 1,448 bytes, frames of 1,514.
vs_ideal is our time / our ideal (1 is best); vs_gloo is Gloo's time / ours (more is better for
us); gloo_vs_ring is Gloo's time / the ring's ideal, at the largest n, and says whether Gloo was
given a fair run. Ratios are of medians.

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

import report
from cores import BusyShare

DESCRIPTION = "25 MB summed over 4 and 8 workers in the namespace lab, against Gloo and ideals"

START_TIMEOUT_S = 120
ROUND_TIMEOUT_S = 120
ETHERNET_IP_UDP_BYTES = 14 + 20 + 8
RESULT_HEADER_BYTES = 16 + 72 + 8  # common, result, one mask word: up to 64 workers
TCP_SEGMENT_BYTES = 1448
TCP_FRAME_BYTES = 1514


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


class Side:
    """n ranks of one side in one lab, driven line by line."""

    script = "allreduce_worker.py"

    def __init__(self, lab, name, world_size, arguments, env):
        self.name = name
        self.seconds, self.busy = report.Samples(), report.Samples()
        self.retransmissions = 0
        self.chunk_bytes = 0
        command = [report.PYTHON, os.path.join(report.ROOT, "bench", self.script), name,
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

    def round(self, counted):
        """One sum on all ranks; its time is kept when `counted`."""
        busy = BusyShare()
        for process in self.ranks:
            process.stdin.write("go\n")
            process.stdin.flush()
        rows = [json.loads(line) for line in self._lines(ROUND_TIMEOUT_S)]
        if counted:
            span_ns = max(row["end_ns"] for row in rows) - min(row["start_ns"] for row in rows)
            self.seconds.add(span_ns / 1e9)
            self.busy.add(busy.percent())
        self.retransmissions = sum(row["retransmissions"] for row in rows)
        self.chunk_bytes = rows[0]["chunk_bytes"]

    def _lines(self, timeout_s):
        """One line of each rank. A rank that ends or is silent too long fails the bench by name."""
        deadline = time.monotonic() + timeout_s
        lines = []
        for rank, process in enumerate(self.ranks):
            ready, _, _ = select.select([process.stdout], [], [],
                                        max(0.0, deadline - time.monotonic()))
            line = process.stdout.readline() if ready else None
            if line is None:
                raise report.BenchError(f"{self.name}: rank {rank} said nothing for {timeout_s} s")
            if not line:
                raise report.BenchError(f"{self.name}: rank {rank} ended; its message is above")
            lines.append(line)
        return lines


def our_ideal_s(total_bytes, chunk_bytes, rate_mbps):
    chunks = -(-total_bytes // chunk_bytes)
    wire_bytes = total_bytes + chunks * (ETHERNET_IP_UDP_BYTES + RESULT_HEADER_BYTES)
    return wire_bytes * 8 / (rate_mbps * 1e6)


def ring_ideal_s(total_bytes, world_size, rate_mbps):
    payload_bytes = 2 * (world_size - 1) / world_size * total_bytes
    wire_bytes = payload_bytes * TCP_FRAME_BYTES / TCP_SEGMENT_BYTES
    return wire_bytes * 8 / (rate_mbps * 1e6)


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


def measure(lab_module, options, world_size):
    """Both sides at one world size; returns (sluice, gloo) with their samples."""
    elem_count = int(options.megabytes * 1e6) // 4
    links = {"hosts": world_size, "rate_mbps": options.rate}
    with lab_module.Lab(pmd=options.pmd, **links) as ours, \
            lab_module.Lab(pmd="bridge", **links) as bridge:
        ours.start_appliance(report.build_dir())
        gloo = Side(bridge, "gloo", world_size, [elem_count], gloo_env(bridge))
        gloo.wait_ready()
        sluice = Side(ours, "sluice", world_size, [elem_count], sluice_env(ours))
        sluice.wait_ready()
        for repetition in range(options.repetitions + 1):
            for side in (sluice, gloo):
                side.round(counted=repetition > 0)
                print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return sluice, gloo


def run(options):
    import lab as lab_module
    report.program("dataplane/sluiced")
    total_bytes = int(options.megabytes * 1e6) // 4 * 4
    rows, figures, gloo_vs_ring = [], {}, None
    try:
        for world_size in options.workers:
            sluice, gloo = measure(lab_module, options, world_size)
            ours_ideal = our_ideal_s(total_bytes, sluice.chunk_bytes, options.rate)
            ring_ideal = ring_ideal_s(total_bytes, world_size, options.rate)
            for side, ideal in ((sluice, ours_ideal), (gloo, ring_ideal)):
                rows.append([f"n={world_size} {side.name}", side.seconds.cell(3), f"{ideal:.3f}",
                             f"{side.seconds.median / ideal:.2f}", f"{side.busy.median:.0f} %",
                             side.retransmissions if side is sluice else ""])
            figures[f"n{world_size}_vs_ideal"] = sluice.seconds.median / ours_ideal
            figures[f"n{world_size}_vs_gloo"] = gloo.seconds.median / sluice.seconds.median
            gloo_vs_ring = gloo.seconds.median / ring_ideal
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None
    print(f"{options.megabytes:g} MB of float32, links {options.rate:g} Mb/s both ways, "
          f"2 MB queues; Sluice: {options.pmd} ports; Gloo: kernel bridge; "
          f"median [least .. largest] of {options.repetitions} interleaved repetitions")
    report.table(["side", "seconds", "ideal s", "time/ideal", "busy", "retransmissions"], rows)
    figures = dict(sorted(figures.items(), key=lambda item: item[0].split("_", 1)[1] == "vs_gloo"))
    report.result("allreduce", **figures, gloo_vs_ring=gloo_vs_ring)
