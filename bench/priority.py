"""The priority bench: the delay of a most urgent frame at a port full of least urgent ones.

In virtual time (judged): the production queue, shaper and rounds (dataplane/core/egress.h) in front
of a device with a ring of 1,024 frames and a link of 1, 10 and 100 Gb/s. Latency is from a frame's
arrival at the switch to its last bit on the link; the owner of the port looks at it every 5 us (2
us at 100 Gb/s). Urgent frames of 64 or 1,518 bytes come at random times, 1 % of the link. Idle:
nothing else. Full: least urgent frames of 1,518 bytes arrive at 1.5 times the link's rate, and the
share of the least urgent class is on. The port is shaped to 95 % of its link; rows without a shaper
show what that is for: the device's ring, which knows no classes, stands in front.

p99_ratio is p99 on the full port divided by p99 on the idle one, 10 Gb/s and 1,518 bytes. Every
shaped row must keep p99 full <= 1.2 * p99 idle + one burst, a burst being what 32 least urgent
frames take on the link: the column `at most` is that as a ratio, and a row above it fails the
bench. That allows much on slow links, so `waited` says what the full port really added to p99, in
least urgent frames; most_frames_waited is the largest of the shaped rows. Medians of five seeds;
the unit test Priority asserts the same.

In the lab (beside it, not judged): sluiced on af_packet between three hosts of a namespace lab. TCP
of two iperf3 streams from host 2 to host 1, marked CS1 (least urgent), fills host 1's port, which
is shaped to half of what the same streams reach without a shaper. Host 0 pings host 1, marked CS7
(most urgent), with and without that traffic, and marked CS1 to show the queue. Round trips, so both
directions; only one is full.

What can go wrong: in the lab hosts and switch share the machine's cores, and full means that the
streams' ends and the switch compete with the ping for them: the round trip grows by what the
processors take, which no queue can prevent. Against that, sluiced sleeps when nothing happens
(adaptive polling, the default), so a ping through an idle port pays for waking it, and p50 on the
full port can be the lower one. On a busy machine TCP may not fill the port: the line above the
lab's table says what part of the rate it got. Nothing is dropped from the samples.
"""
import shutil
import statistics
import time

import lab_traffic
import report


DESCRIPTION = "p99 of the most urgent on a full port against an idle one, virtual and in the lab"

GOAL = 1.2  # and one burst
BURST_FRAMES = 32
HEADLINE = (10, 1518)
CS1, CS7 = 0x20, 0xe0
FULL_PORT = 'name = "host1"\n'


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--pings", type=int, default=1000, metavar="N",
                        help="in one repetition of one side (default 1000)")
    parser.add_argument("--virtual-only", action="store_true", help="leave the lab out")


def virtual():
    """Prints the table; returns (p99 ratio of the headline, most frames waited)."""
    columns = {}
    for line in report.run_program([report.program("bench/bench_priority")], 300).splitlines():
        gbps, size, shaped, _, *figures = line.split()
        columns.setdefault((int(gbps), int(size), shaped == "1"), []).append(
            [float(figure) for figure in figures])
    rows, ratios, waited = [], {}, []
    for (gbps, size, shaped), seeds in columns.items():
        idle_p50, idle, full_p50, full, burst, share = map(statistics.median, zip(*seeds))
        name = f"{gbps} Gb/s, {size} bytes" + ("" if shaped else ", no shaper")
        ratios[gbps, size, shaped] = full / idle
        limit = GOAL + burst / idle
        frames = (full - idle) / (burst / BURST_FRAMES)
        if shaped:
            waited.append(frames)
            if full / idle > limit:
                raise report.BenchError(f"{name}: p99 ratio {full / idle:.2f}, over {limit:.2f}")
        rows.append([name, f"{idle_p50 / 1e3:.1f}", f"{idle / 1e3:.1f}", f"{full_p50 / 1e3:.1f}",
                     f"{full / 1e3:.1f}", f"{full / idle:.2f}", f"{limit:.2f}" if shaped else "",
                     f"{frames:.1f}", f"{share:.2f}"])
    print("virtual time, us; medians of 5 seeds")
    report.table(["link, urgent frame", "idle p50", "idle p99", "full p50", "full p99", "p99 ratio",
                  "at most", "waited, frames", "least urgent's share"], rows)
    return ratios[(*HEADLINE, True)], max(waited)


class FullPort:
    """A lab of three hosts; the port of host 1 is shaped to half of what it carries."""

    def __init__(self, lab):
        self.lab = lab
        self.appliance = lab.start_appliance(report.build_dir())
        with self.stream(4) as received_bps:
            self.rate_mbps = int(received_bps() / 2e6)
        self.appliance.terminate()
        self.appliance.wait(20)
        config = lab.config().replace(FULL_PORT, f"{FULL_PORT}rate_mbps = {self.rate_mbps}\n")
        lab.start_appliance(report.build_dir(), config)

    def stream(self, seconds):
        return lab_traffic.tcp_stream(self.lab, 2, 1, seconds, ["-P", "2", "-S", str(CS1)])

    def ping_us(self, tos, count, interval):
        return lab_traffic.ping_us(self.lab, 0, self.lab.address(1), count, interval, tos)

    def waiting_bytes(self):
        for line in self.lab.scrape().splitlines():
            if line.startswith('sluice_port_queue_class_bytes{port="host1",class="63"}'):
                return float(line.split()[-1])
        return 0.0


def measure(port, options):
    """{side: (p50 samples, p99 samples)}, share of the shaped rate that TCP got."""
    sides = {name: (report.Samples(), report.Samples()) for name in ("idle", "full", "least")}

    def add(side, times_us):
        sides[side][0].add(statistics.median(times_us))
        sides[side][1].add(times_us[int(len(times_us) * 0.99)])

    got = report.Samples()
    for _ in range(options.repetitions):
        add("idle", port.ping_us(CS7, options.pings, 0.002))
        with port.stream(int(options.pings * 0.002) + 8) as received_bps:
            time.sleep(2)  # until the streams fill the port
            add("full", port.ping_us(CS7, options.pings, 0.002))
            if port.waiting_bytes() == 0:
                raise report.BenchError("the port was not full: nothing least urgent waited")
            add("least", port.ping_us(CS1, 50, 0.02))
            got.add(received_bps() / 1e6 / port.rate_mbps)
    return sides, got


def in_the_lab(options):
    """Prints the lab's table; returns its p99 ratio, or None where there is no lab."""
    from lab import Lab, LabError, missing
    reason = missing() or (None if shutil.which("iperf3") else "iperf3 is missing (apt install it)")
    if reason:
        print(f"lab: left out, {reason}")
        return None
    try:
        with Lab(hosts=3) as lab:
            port = FullPort(lab)
            sides, got = measure(port, options)
    except LabError as error:
        raise report.BenchError(str(error)) from error
    print(f"\nlab, round trips in us; port shaped to {port.rate_mbps} Mb/s, of which TCP got "
          f"{got.cell()}; median [least .. largest] of {options.repetitions} interleaved "
          f"repetitions of {options.pings} pings")
    idle = sides["idle"]
    labels = {"idle": "most urgent, idle port", "full": "most urgent, full port",
              "least": "least urgent, full port (50 pings)"}
    report.table(["ping", "p50", "p99", "p50 of idle", "p99 of idle"],
                 [[labels[name], p50.cell(0), p99.cell(0), f"{p50.median / idle[0].median:.2f}",
                   f"{p99.median / idle[1].median:.2f}"] for name, (p50, p99) in sides.items()])
    return sides["full"][1].median / idle[1].median


def run(options):
    ratio, waited = virtual()
    lab_ratio = None if options.virtual_only else in_the_lab(options)
    figures = {} if lab_ratio is None else {"lab_p99_ratio": lab_ratio}
    report.result("priority", p99_ratio=ratio, most_frames_waited=waited, **figures)
