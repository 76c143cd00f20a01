"""The pipe bench: goodput over long and lossy links, on sockets in a lab and in virtual time.

Four workers, each behind a cable of its own to the appliance, sum 25 MB; the cables have a rate, a
delay, random loss in each direction and a queue of 1,000 frames. pipe_lab.py has the lab, whose
rows make the RESULT line, and says what they mean.

In virtual time (--virtual-only) all of it is the simulator of the tests around production sessions
and shards, so a row is the same each time. A cell is the goodput of the second and third sum: the
time that a link takes for a sum's frames at MTU 1,500, over the sum's. `first` is that of the first
sum, which begins with a window of 64 packets. What may differ on real machines: processors and
sockets cost no time here, and a receive buffer holds twice what the path carries.
"""
import pipe_lab
import report

DESCRIPTION = "goodput over long and lossy links, in the lab against Gloo, or in virtual time"

MBPS, MBYTES = 200, 25
ROUND_TRIPS_MS = (0.2, 2, 30, 100)
LOSSES = (0, 0.01, 0.1, 1)  # percent, of each direction


def add_options(parser):
    parser.add_argument("--mbps", type=int, default=MBPS, help=f"rate of a cable (default {MBPS})")
    parser.add_argument("--mbytes", type=int, default=MBYTES, help=f"of a sum (default {MBYTES})")
    parser.add_argument("--virtual-only", action="store_true", help="the simulator, not the lab")
    pipe_lab.add_options(parser)


def measure(round_trip_ms, loss, mbps=MBPS, mbytes=MBYTES):
    """Goodput of later sums and of the first, as shares; shares sent again, and again in vain."""
    line = report.run_program(
        [report.program("bench/bench_pipe"), f"--rtt_us={round(1000 * round_trip_ms)}",
         f"--loss_ppm={round(10_000 * loss)}", f"--mbps={mbps}", f"--mbytes={mbytes}",
         "--steps=3"], 900)
    ideal_s, *seconds, again, in_vain, _, _ = map(float, line.split())
    return ideal_s / (sum(seconds[1:]) / len(seconds[1:])), ideal_s / seconds[0], again, in_vain


def run(options):
    if not options.virtual_only:
        pipe_lab.run(options)
        return
    cells = {(round_trip, loss): measure(round_trip, loss, options.mbps, options.mbytes)
             for round_trip in ROUND_TRIPS_MS for loss in LOSSES}
    report.table(
        ["round trip", *(f"loss {loss} %: later, first, again, in vain" for loss in LOSSES)],
        [[f"{round_trip} ms"] + ["{:.2f}, {:.2f}, {:.2%}, {:.2%}".format(*cells[round_trip, loss])
                                 for loss in LOSSES] for round_trip in ROUND_TRIPS_MS])
    report.result("pipe", lan=cells[0.2, 0][0], lan_1=cells[0.2, 1][0], wan=cells[30, 0][0],
                  wan_001=cells[30, 0.01][0], wan_01=cells[30, 0.1][0], wan_1=cells[30, 1][0],
                  far_01=cells[100, 0.1][0],
                  resent_in_vain=max(cell[3] for cell in cells.values()))
