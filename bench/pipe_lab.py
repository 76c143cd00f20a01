"""The pipe bench's rows in the lab: real sockets over cables with delay and loss, Gloo beside.

Each side has a lab (tests/lab) of four workers, whose links are cables in user space (cables.py):
the same rate, round trip, queue and faults in both. Sluice's has sluiced on af_packet ports, shaped
to the cables' rate; Gloo's the kernel's bridge. A contribution or a result crosses one cable. What
Gloo's ranks send each other crosses two, as it would through that switch: twice the round trip and
the loss.

goodput is payload / (link x time) as a share of what the link can carry of payload in frames of our
results, the longer ones: 0.896 of the wire's rate at MTU 1,500. Gloo's is by the same formula; its
ring sends 2 (n - 1) / n of the payload in TCP segments, so four ranks reach 0.70 at most. `first`
is the first sum's, of a new job or new connections; goodput is the median of the later ones. A side
has --limit-s seconds a row: a sum that ends later is not counted, and where that is the first, `<`
stands before the goodput that it missed.

Rows, by round trip and loss (percent of each way of each cable): lan 0.2 ms, near 2 ms, wan 30 ms,
far 100 ms; none, 0.01, 0.1 and 1 %. Then, at 30 ms:
  queue32     a queue of 32 frames
  bursts      0.1 % lost, ten in a row
  jitter      up to 10 ms more delay
  duplicates  1 % of the frames twice
  reordered   5 % of the frames are held back by up to a round trip while others pass
  tail        sums of one chunk, 1 % lost, so that nothing follows what is lost: how much longer
              those take that a loss met, in round trips (median; largest in the note)
  tcp         an iperf3 stream of CUBIC on host 0's cable while the workers sum: each one's share of
              what the cable carries of its payload
"in vain" is the share of contributions that were sent again although the first one arrived, as the
appliance counts them; where a cable makes duplicates, at most what the workers sent again.
"late" is the share of frames that a cable handed on over 1 ms late, as the processors were taken;
with many of them, or "busy" near 100 %, processors and not links set the time: lower --mbps.
"""
import contextlib
import statistics
import sys
import time
from typing import NamedTuple

import lab_traffic
import report
from allreduce import Side, TooSlow, gloo_env, our_ideal_s, sluice_env
from cores import BusyShare
from sluice import _plan_model as planned

WORKERS, MTU, SUMS = 4, 1500, 5
LIMIT_S = 60.0
TAIL_SUMS, TCP_S, TCP_WARM_S = 300, 25, 5
SEGMENT_SHARE = (MTU - 52) / (MTU + 38)  # payload of a full TCP segment, of the wire
TRIPS_MS = {"lan": 0.2, "near": 2, "wan": 30, "far": 100}
LOSSES = {"": 0, "_001": 0.01, "_01": 0.1, "_1": 1}  # percent
TCP_BUFFERS = "4096 131072 33554432"  # as much as any of these paths holds
AGAIN = ("duplicate", "late", "too_old")
SHORT = {"rows": ("near", "wan_01"), "mbps": 50, "mbytes": 2}
HEADLINES = ("lan", "lan_1", "wan", "wan_01", "wan_1", "far_01")


class Row(NamedTuple):
    name: str
    cable: dict
    kind: str = "sums"  # or tail, tcp


WAN = {"round_trip_ms": TRIPS_MS["wan"]}
ROWS = [Row(trip + suffix, {"round_trip_ms": ms, "loss": loss})
        for trip, ms in TRIPS_MS.items() for suffix, loss in LOSSES.items()] + [
    Row("queue32", {**WAN, "queue": 32}), Row("bursts", {**WAN, "loss": 0.1, "burst": 10}),
    Row("jitter", {**WAN, "jitter_ms": 10}), Row("duplicates", {**WAN, "duplicate": 1}),
    Row("reordered", {**WAN, "reorder": 5, "reorder_ms": TRIPS_MS["wan"]}),
    Row("tail", {**WAN, "loss": 1}, "tail"), Row("tcp", WAN, "tcp")]


class Measured:
    """What a side showed in a row; None: nothing of this kind."""

    def __init__(self):
        self.later = self.first = self.in_vain = self.late = self.busy = self.figure = None
        self.below = False  # its goodput is below `later`: not even the first sum ended
        self.note = ""

    def cells(self):
        text = lambda value, form: "" if value is None else format(value, form)
        return [("< " if self.below else "") + text(self.later, ".3f"), text(self.first, ".3f"),
                text(self.in_vain, ".2%"), text(self.busy, ".0f"), text(self.late, ".2%"),
                self.note]


def add_options(parser):
    names = [row.name for row in ROWS]
    parser.add_argument("--short", action="store_true",
                        help="for a smoke test: rows " + " and ".join(SHORT["rows"]) +
                             f", {SHORT['mbytes']} MB at {SHORT['mbps']} Mb/s")
    parser.add_argument("--rows", nargs="+", choices=names, metavar="ROW", default=names,
                        help=f"of {' '.join(names)} (default all)")
    parser.add_argument("--sides", nargs="+", choices=["sluice", "gloo"],
                        default=["sluice", "gloo"], help="(default both)")
    parser.add_argument("--congestion", default="cubic", metavar="NAME",
                        help="of Gloo's TCP (default cubic)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, metavar="S",
                        help=f"of a side in a row (default {LIMIT_S:.0f})")


class RowLab:
    """A row's lab for one side: cables laid, appliance started, ranks joined."""

    def __init__(self, row, library, options):
        self.row, self.library, self.options = row, library, options
        self.hosts = WORKERS + (row.kind == "tcp")
        self.chunk_bytes = planned.chunk_bytes(MTU, WORKERS)
        self.elem_count = (256 if row.kind == "tail" else int(options.mbytes * 1e6) // 4)
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_exc):
        self._stack.close()

    def _build(self):
        import cables
        import lab
        enter, mbps, ours = self._stack.enter_context, self.options.mbps, self.library == "sluice"
        self.lab = enter(lab.Lab(self.hosts, mbps, "af_packet" if ours else "bridge", MTU,
                                 cabled=True))
        self.counts = enter(cables.laid(self.lab, report.build_dir(),
                                        cables.Cable(mbps=mbps, **self.row.cable)))
        self.lab.congestion(self.options.congestion)
        for host in range(WORKERS):
            for way in ("tcp_wmem", "tcp_rmem"):
                self.lab.popen(host, ["sysctl", "-qw", f"net.ipv4.{way}={TCP_BUFFERS}"]).wait(30)
        if ours:
            self.lab.start_appliance(report.build_dir())
        self.side = Side(self.lab, self.library, WORKERS, [self.elem_count, "float32", MTU],
                         sluice_env(self.lab) if ours else gloo_env(self.lab))
        self.side.wait_ready()

    def ideal_s(self, payload_bytes):
        return our_ideal_s(payload_bytes, self.chunk_bytes, self.options.mbps)

    def page(self):
        """Of the appliance: contributions that it summed, and those that it had already."""
        import lab
        page = self.lab.scrape()
        twice = sum(float(line.split()[-1]) for line in page.splitlines()
                    if line.startswith("sluice_packets_total{")
                    and any(f'reason="{reason}"' in line for reason in AGAIN))
        return lab.metric(page, "sluice_job_contributions_total"), twice


def measure_sums(at, measured):
    ideal_s = at.ideal_s(at.elem_count * 4)
    deadline = time.monotonic() + at.options.limit_s
    with contextlib.suppress(TooSlow):
        for repetition in range(SUMS + 1):
            at.side.round(counted=True, timeout_s=max(0.0, deadline - time.monotonic()))
    seconds = at.side.seconds.values
    if seconds:
        measured.first = ideal_s / seconds[0]
        measured.later = ideal_s / statistics.median(seconds[1:] or seconds)
    else:
        measured.below, measured.later = True, ideal_s / at.options.limit_s
    if len(seconds) <= SUMS:
        measured.note = f"{len(seconds)} sums in {at.options.limit_s:.0f} s"


def measure_tail(at, measured):
    round_trip_s = at.row.cable["round_trip_ms"] / 1e3 * (1 if at.library == "sluice" else 2)
    try:
        ends = [row["ends_ns"] for row in at.side.round(True, TAIL_SUMS, at.options.limit_s)][0]
    except TooSlow:
        measured.note = f"not {TAIL_SUMS} sums in {at.options.limit_s:.0f} s"
        return
    took = [(end - begin) / 1e9 for begin, end in zip(ends, ends[1:])]
    calm = statistics.median(took)
    more = [(each - calm) / round_trip_s for each in took if each > calm + round_trip_s / 2]
    if more:
        measured.figure = statistics.median(more)
        measured.note = (f"{len(more)} of {len(took)} sums met a loss: {measured.figure:.2f} round "
                         f"trips more, at most {max(more):.2f}; others {calm * 1e3:.1f} ms")


def measure_tcp(at, measured):
    at.side.begin(sums=1_000_000)  # until the lab ends
    stream = lab_traffic.tcp_stream(at.lab, 0, WORKERS, TCP_S,
                                    ["-C", "cubic", "-O", str(TCP_WARM_S)])
    with stream as received_bps:
        time.sleep(TCP_WARM_S)
        since, (before, _) = time.monotonic(), at.page()
        time.sleep(TCP_S)
        until, (after, _) = time.monotonic(), at.page()
        measured.figure = received_bps() / (at.options.mbps * 1e6 * SEGMENT_SHARE)
    payload_bytes = (after - before) / WORKERS * at.chunk_bytes
    measured.later = at.ideal_s(payload_bytes) / (until - since)
    measured.note = f"TCP {measured.figure:.2f} of the cable, sums {measured.later:.2f}"


MEASURES = {"sums": measure_sums, "tail": measure_tail, "tcp": measure_tcp}


def measure(row, library, options):
    measured = Measured()
    with RowLab(row, library, options) as at:
        busy = BusyShare()
        MEASURES[row.kind](at, measured)
        measured.busy = busy.percent()
        if library == "sluice":
            contributions, twice = at.page()
            if row.cable.get("duplicate"):  # the cable's own are no fault of the workers
                twice = min(twice, at.side.retransmissions)
            measured.in_vain = twice / max(contributions, 1)
    ways = at.counts.values()
    carried = max(1, sum(way["carried"] for way in ways))
    measured.late = sum(way["late"] for way in ways) / carried
    overrun = sum(way["overrun"] for way in ways) / carried
    if overrun > 1e-5:
        measured.note += f"; the process lost {overrun:.2%} itself"
    return measured


def run(options):
    import lab as lab_module
    report.program("dataplane/sluiced")
    report.program("tests/lab/lab_cable")
    if options.short:
        options.rows, options.mbps, options.mbytes = SHORT.values()
    print(f"{options.mbytes} MB, {WORKERS} workers, cables of {options.mbps} Mb/s, which carry "
          f"{planned_share():.3f} of it as payload; Gloo: {options.congestion}", flush=True)
    done, lines = {}, []
    try:
        for row in ROWS:
            for side in options.sides if row.name in options.rows else ():
                if side == "sluice" or row.kind != "tcp":
                    done[row.name, side] = measure(row, side, options)
                    lines.append([f"{row.name} {side}", *done[row.name, side].cells()])
                    print(*lines[-1], sep="  ", file=sys.stderr, flush=True)
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None
    report.table(["row", "goodput", "first", "in vain", "busy %", "late", ""], lines)
    report.result("pipe", **figures_of({name: measured for (name, side), measured in done.items()
                                        if side == "sluice"}))


def planned_share():
    chunk_bytes = planned.chunk_bytes(MTU, WORKERS)
    return chunk_bytes * 8 / 1e6 / our_ideal_s(chunk_bytes, chunk_bytes, 1)


def figures_of(ours):
    """The RESULT line's, of the rows that were measured."""
    figures = {name: ours[name].later for name in HEADLINES if name in ours}
    if "tail" in ours:
        figures["tail_rtts"] = ours["tail"].figure
    in_vain = [measured.in_vain for measured in ours.values() if measured.in_vain is not None]
    if in_vain:
        figures["resent_in_vain"] = max(in_vain)
    if "tcp" in ours:
        figures["tcp_share"] = ours["tcp"].figure
    return figures
