"""The switch bench: TCP and ping between two lab hosts through sluiced, and through a Linux bridge.

Each side has a lab of its own (tests/lab) with two hosts on veth links, unshaped, offloads off
(frames of at most 1,514 bytes and finished checksums on every side), IPv4. The sides are the
kernel's bridge, and sluiced on af_packet and on af_xdp ports, each with adaptive polling (the
default: it sleeps when idle, so a lone ping pays for waking it) and with busy polling (as on a box
with a core a shard). All labs stand at once; a repetition measures one side after the other, and
the appliances that are not measured are stopped (SIGSTOP) meanwhile.

tcp: one iperf3 stream for a few seconds after one that is not counted; bits that the receiver's
application got. ping: round trips at the given rate with nothing else on the links; median and
99th percentile of a repetition, none left out. cores busy: share of all cores that TCP's run used.
tcp_vs_bridge is our rate / the bridge's (more is better), ping_vs_bridge our median round trip /
the bridge's (less is better), of medians; _busy and _xdp name the side.

Classes: what the classification of one forwarded frame costs by number and kind of rules
(bench/classify_bench.cc), CPU time of one core.

What can go wrong: both hosts, the kernel's copies and the switch share the machine's cores. On two
cores the rates say what a frame costs in CPU and not what a box of its own forwards; other
processes make every side slower, and the range shows it.
"""
import contextlib
import shutil
import signal
import statistics

import lab_traffic
import report
from cores import BusyShare


DESCRIPTION = "TCP and ping between two hosts through sluiced, against a Linux bridge"

SIDES = [  # name, pmd, polling
    ("bridge", "bridge", None),
    ("af_packet", "af_packet", "adaptive"),
    ("af_packet busy", "af_packet", "busy"),
    ("af_xdp", "af_xdp", "adaptive"),
    ("af_xdp busy", "af_xdp", "busy"),
]
CLASS_ROWS = [
    ("ethernet", "Ethernet header alone"), ("rules/0", "no rules"),
    ("dscp/1", "1 rule by DSCP"), ("dscp/8", "8"), ("dscp/64", "64"),
    ("ports/1", "1 rule by port"), ("ports/8", "8"), ("ports/64", "64"),
    ("prefixes/1", "1 rule by prefix"), ("prefixes/8", "8"), ("prefixes/64", "64"),
]


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--seconds", type=int, default=3, metavar="S",
                        help="of TCP that count in one repetition (default 3)")
    parser.add_argument("--pings", type=int, default=400, metavar="N",
                        help="in one repetition (default 400)")
    parser.add_argument("--interval", type=float, default=0.005, metavar="S",
                        help="between two pings (default 0.005)")


class Side:
    """One lab with its switch, and what was measured in it."""

    def __init__(self, lab, name, appliance):
        self.lab, self.name, self.appliance = lab, name, appliance
        self.gbps, self.busy = report.Samples(), report.Samples()
        self.median_us, self.p99_us = report.Samples(), report.Samples()
        self.pause()

    def pause(self):
        if self.appliance:
            self.appliance.send_signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def awake(self):
        if self.appliance:
            self.appliance.send_signal(signal.SIGCONT)
        try:
            # The first ping resolves the address and tells the switch where the hosts are.
            lab_traffic.ping_us(self.lab, 0, self.lab.address(1), 3, 0.2)
            yield
        finally:
            self.pause()

    def measure_tcp(self, seconds):
        busy = BusyShare()
        with lab_traffic.tcp_stream(self.lab, 0, 1, seconds, ["-O", "1"]) as received_bps:
            self.gbps.add(received_bps() / 1e9)
        self.busy.add(busy.percent())

    def measure_ping(self, count, interval):
        times_us = lab_traffic.ping_us(self.lab, 0, self.lab.address(1), count, interval)
        self.median_us.add(statistics.median(times_us))
        self.p99_us.add(times_us[int(len(times_us) * 0.99)])


def start_side(stack, name, pmd, polling):
    from lab import Lab, LabError
    lab = stack.enter_context(Lab(hosts=2, pmd=pmd, offloads=False))
    if polling is None:
        return Side(lab, name, None)
    try:
        appliance = lab.start_appliance(report.build_dir(), lab.config(polling=polling))
    except LabError as error:
        if pmd != "af_xdp":
            raise
        print(f"{name}: left out, no AF_XDP here: {str(error).splitlines()[-1]}")
        return None
    stack.callback(appliance.send_signal, signal.SIGCONT)  # a stopped process can't end itself
    return Side(lab, name, appliance)


def measure_classes(repetitions):
    """{row: Samples of ns a frame} of bench_classify."""
    rows, _ = report.google_benchmark("bench_classify", repetitions, 0.1, timeout_s=300)
    return report.samples_by(lambda row: row["run_name"],
                             lambda row: 1e9 / row["items_per_second"], rows)


def print_classes(repetitions):
    rows = measure_classes(repetitions)
    print(f"classification of one forwarded frame; median [least .. largest] of {repetitions} "
          f"interleaved repetitions, CPU time")
    report.table(["rules, none of which fits", "ns a frame"],
                 [[label, rows[row].cell(1)] for row, label in CLASS_ROWS])
    return rows


def print_sides(sides, options):
    bridge = sides[0]
    print(f"one TCP stream and {options.pings} pings a repetition; median [least .. largest] of "
          f"{options.repetitions} interleaved repetitions")
    report.table(
        ["switch", "TCP Gb/s", "of bridge", "cores busy %", "ping median us", "of bridge",
         "ping p99 us"],
        [[side.name, side.gbps.cell(), f"{side.gbps.median / bridge.gbps.median:.2f}",
          side.busy.cell(0), side.median_us.cell(0),
          f"{side.median_us.median / bridge.median_us.median:.2f}", side.p99_us.cell(0)]
         for side in sides])


def run(options):
    from lab import missing
    reason = missing() or (None if shutil.which("iperf3") else "iperf3 is missing (apt install it)")
    if reason:
        raise report.BenchError(reason)
    report.program("dataplane/sluiced")
    with contextlib.ExitStack() as stack:
        started = [start_side(stack, *side) for side in SIDES]
        sides = [side for side in started if side]
        for _ in range(options.repetitions):
            for side in sides:
                with side.awake():
                    side.measure_tcp(options.seconds)
                    side.measure_ping(options.pings, options.interval)
    print_sides(sides, options)
    classes = print_classes(options.repetitions)
    bridge = sides[0]
    figures = {}
    for side in sides[1:]:
        suffix = side.name.removeprefix("af_packet").replace("af_xdp", "_xdp").replace(" ", "_")
        figures[f"tcp_vs_bridge{suffix}"] = side.gbps.median / bridge.gbps.median
        figures[f"ping_vs_bridge{suffix}"] = side.median_us.median / bridge.median_us.median
    report.result("switch", **figures, classify_ns=classes["rules/0"].median,
                  classify_64_ports_ns=classes["ports/64"].median)
