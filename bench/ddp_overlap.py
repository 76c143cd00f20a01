"""The ddp_overlap bench: images per second of DDP training over shaped links, three ways.

A residual network (four stages, 38 parameters, BatchNorm, 32x32 synthetic images, SGD with
momentum), trained by real PyTorch ranks in labs (tests/lab), one host and one thread each:

  gloo     plain DDP over the kernel's bridge, as in the allreduce bench
  plain    sluice.torch.attach(), over sluiced on af_packet ports
  overlap  sluice.torch.overlap(), over the same

at rates of the links that make the network the bottleneck, that make communication and computing
about equal (the RESULT line is of this one), and that make computing the bottleneck. All sides use
the same model, batch and buckets (1 MB, so that backward overlaps well without us, and little
of the gradient is left to hide). The repetitions alternate; the others are idle meanwhile. A time
is a step's, on rank 0: from the start of one step to that of a step some later, in full flight,
after one step to warm up.

compute is forward + backward + optimizer without communication, measured with all ranks computing
at once; network is our ideal time of the gradients on a link, headers included. overlap can hide
what plain shows beyond compute, up to the time of the forward: predicted is
plain / (plain - min(plain - compute, forward)). busy is the share of the cores' time, of which
the ranks take 100 % when they compute on as many cores as there are.

What can go wrong: ranks, switch and kernel share the cores. When there are no more cores than
ranks, packets that move while the ranks compute take their time: overlapping then gains less than
predicted. For that reason batches are large and links slow: a step computes long for each packet.
With --batch 32 and four times the rates, packets take a large part of the cores. DDP broadcasts the
buffers of BatchNorm at the start of each forward, behind the gradients that are still on their way;
broadcast_buffers=False (--buffers 0) or a normalisation without buffers spares that wait.
"""
import json
import sys

import allreduce
import cores
import report

DESCRIPTION = "images per second of DDP training: Gloo, our plain hook, and overlap()"

SIDES = ("gloo", "plain", "overlap")
FORWARD, BACKWARD, OPTIMIZER = range(3)


def add_options(parser):
    report.add_repetitions(parser, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 50, 125], metavar="MBPS",
                        help="of every link, both ways, Mb/s; the middle one is the RESULT's "
                             "(default 20 50 125)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument("--batch", type=int, default=128, metavar="N",
                        help="images of a step on a rank (default 128)")
    parser.add_argument("--width", type=int, default=32, metavar="N",
                        help="channels of the first stage (default 32: 4.9 MB of gradients)")
    parser.add_argument("--steps", type=int, default=3, metavar="N",
                        help="measured in a repetition (default 3)")
    parser.add_argument("--buffers", type=int, default=1, choices=[0, 1],
                        help="DDP's broadcast_buffers (default 1, as DDP's)")


class Trainers(allreduce.Side):
    """The ranks of one side."""

    script = "ddp_overlap_worker.py"

    def __init__(self, lab, name, options, env):
        arguments = [options.batch, options.width, options.buffers]
        super().__init__(lab, name, options.workers, arguments, env)
        self.step_count, self.images = options.steps, options.batch * options.workers

    def wait_ready(self):
        joined = [json.loads(line) for line in self._lines(allreduce.START_TIMEOUT_S)]
        self.model_bytes, self.chunk_bytes = joined[0]

    def ask(self, command):
        for process in self.ranks:
            process.stdin.write(command + "\n")
            process.stdin.flush()
        return [json.loads(line) for line in self._lines(allreduce.ROUND_TIMEOUT_S)]

    def round(self, counted):
        busy = cores.BusyShare()
        starts = self.ask(f"steps {self.step_count}")[0]
        if counted:
            self.seconds.add((starts[-1] - starts[0]) / self.step_count / 1e9)
            self.busy.add(busy.percent())

    def compute(self):
        """Seconds of forward, backward and optimizer: the slowest rank's."""
        return [max(column) for column in zip(*self.ask("compute 8"))]


def measure(lab_module, options, rate):
    """The sides' Trainers with their samples, and the compute times, at one rate."""
    links = {"hosts": options.workers, "rate_mbps": rate}
    with lab_module.Lab(**links) as ours, lab_module.Lab(pmd="bridge", **links) as bridge:
        ours.start_appliance(report.build_dir())
        sides = {}
        for port, name in enumerate(SIDES):
            lab = bridge if name == "gloo" else ours
            env = {**allreduce.gloo_env(lab), "MASTER_PORT": str(29500 + port),
                   "OMP_NUM_THREADS": "1"}
            if name != "gloo":
                env.update(allreduce.sluice_env(ours), SLUICE_JOB=name)
            sides[name] = Trainers(lab, name, options, env)
            sides[name].wait_ready()
        compute = sides["gloo"].compute()
        for repetition in range(options.repetitions + 1):
            for side in sides.values():
                side.round(counted=repetition > 0)
                print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return sides, compute


def rows_of(rate, sides, compute, options):
    """The table's rows at one rate, and the two ratios."""
    medians = {name: side.seconds.median for name, side in sides.items()}
    total_s = sum(compute)
    network_s = allreduce.our_ideal_s(sides["plain"].model_bytes, sides["plain"].chunk_bytes, rate)
    exposed_s = max(0.0, medians["plain"] - total_s)
    predicted = medians["plain"] / (medians["plain"] - min(exposed_s, compute[FORWARD]))
    plain_vs_gloo = medians["gloo"] / medians["plain"]
    overlap_vs_plain = medians["plain"] / medians["overlap"]
    rows = []
    for name, side in sides.items():
        rows.append([
            f"{rate:g} Mb/s {name}", f"{side.images / medians[name]:.1f}",
            report.Samples([1e3 * s for s in side.seconds.values]).cell(0),
            f"{1e3 * total_s:.0f}", f"{1e3 * network_s:.0f}", f"{side.busy.median:.0f} %",
            {"gloo": "", "plain": f"{plain_vs_gloo:.2f} of gloo",
             "overlap": f"{overlap_vs_plain:.2f} of plain"}[name],
            f"{predicted:.2f}" if name == "overlap" else ""])
    return rows, plain_vs_gloo, overlap_vs_plain


def run(options):
    import lab as lab_module
    report.program("dataplane/sluiced")
    rows, ratios = [], []
    try:
        for rate in options.rates:
            sides, compute = measure(lab_module, options, rate)
            more, *pair = rows_of(rate, sides, compute, options)
            rows += more
            ratios.append(pair)
    except lab_module.LabError as error:
        raise report.BenchError(str(error)) from None
    print(f"{options.workers} ranks with {options.batch} images and 1 thread each, "
          f"{sides['plain'].model_bytes / 1e6:.1f} MB of gradients; medians [least .. largest] of "
          f"{options.repetitions} interleaved repetitions of {options.steps} steps")
    report.table(["links, side", "images/s", "step ms", "compute ms", "network ms", "busy", "ratio",
                  "predicted"], rows)
    plain_vs_gloo, overlap_vs_plain = ratios[len(ratios) // 2]
    report.result("ddp_overlap", plain_vs_gloo=plain_vs_gloo, overlap_vs_plain=overlap_vs_plain)
