"""The local bench: frames a second through one vhost-user port, summed, against only sent back.

A load generator on one core owns a virtio-user port of the client's DPDK plug-in. It sends
contributions of 4 ranks (chunks of 1,344 bytes, k = 4, a step of 8,192 chunks) as fast as 512
frames under way allow, and receives as many results, since every rank gets each sum. On the other
core is either `sluiced`, one busy polling shard, or `dpdk-testpmd` in macswap mode behind the same
kind of port with the same rings, to which the same generator sends the same frames. Blocks
alternate in one run, and the one that is not measured is stopped (SIGSTOP). ratio_testpmd is the
median of the ratios of neighbouring blocks.

macswap reads 12 bytes of a frame, a sum reads and writes all of it. So a second run has the
barest sum in testpmd's place (cutoff_echo.cc): each payload is added to its chunk's sum, without a
check, and the last one's sum is copied into all four frames, which go back. ratio_bare_sum is the
appliance's rate over its; ratio_testpmd / ratio_bare_sum is the most that any sum could reach.

What can go wrong: `waits` is the share of the generator's rounds that found nothing to do. Near 0
the generator is the bottleneck, and the ratio says little. Other work on these two cores slows
either side. A frame that does not come back, or a wrong sum, ends the bench with no RESULT.
"""
import os
import shutil
import statistics
import tempfile

import report
from served import Served, appliance, plugin_environment

DESCRIPTION = "sums through one vhost-user port against testpmd's macswap (two cores)"

TESTPMD = "dpdk-testpmd"
RANKS = 4  # of the generator's job


def add_options(parser):
    report.add_repetitions(parser, default=15)
    parser.add_argument("--frames", type=int, default=1_000_000, metavar="N",
                        help="frames a block, whole steps of 32,768 (default 1,000,000)")


def testpmd(folder, cpu):
    argv = ["stdbuf", "-oL", TESTPMD, f"--lcores=0@{cpu},1@{cpu}", "--no-huge", "-m", "256",
            "--no-pci", "--no-shconf", "--no-telemetry",
            f"--vdev=net_vhost0,iface={folder}/echo.sock,queues=1", "--",
            "--forward-mode=macswap", "--port-topology=loop", "--nb-cores=1", "--rxd=1024",
            "--txd=1024", "--burst=32", "--total-num-mbufs=8192", "--disable-link-check",
            "--auto-start"]
    return Served(TESTPMD, argv, os.path.join(folder, "testpmd.log"), "Press enter to exit")


def bare_sum(folder, cpu):
    argv = [report.program("bench/bench_cutoff_echo"), f"{folder}/echo.sock", str(cpu), str(RANKS)]
    return Served("the bare sum", argv, os.path.join(folder, "echo.log"), "ready")


def measure(options, cpus, other):
    """Returns {side: [(million frames a second, share of rounds that waited), ...]}."""
    generator = report.program("bench/bench_local")
    with tempfile.TemporaryDirectory(prefix="sluice-local-") as folder:
        with appliance(folder) as box, other(folder, cpus[0]) as echo:
            text = report.run_program(
                [generator, f"--appliance={folder}/appliance.sock", f"--appliance_pid={box.pid}",
                 f"--echo={folder}/echo.sock", f"--echo_pid={echo.pid}",
                 f"--blocks={options.repetitions}", f"--frames={options.frames}",
                 f"--cpu={cpus[-1]}"], timeout_s=300, env=plugin_environment())
    blocks = {"appliance": [], "echo": []}
    for line in text.splitlines():
        side, rate, waits = line.split()
        blocks[side].append((float(rate), float(waits)))
    return blocks


def run(options):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise report.BenchError("two cores are needed: the generator's and the appliance's")
    if shutil.which(TESTPMD) is None:
        raise report.BenchError(f"{TESTPMD} is not installed: Debian's package dpdk-dev has it")
    blocks = measure(options, cpus, testpmd)
    beside = measure(options, cpus, bare_sum)
    print("frames of 1,344 bytes of gradients through one vhost-user port and back, a busy core a "
          "side; median [least .. largest]")
    rows = []
    for found, name in ((blocks["appliance"], "sluiced, summed"),
                        (blocks["echo"], "testpmd, macswap"),
                        (beside["appliance"], "sluiced, summed, the second run"),
                        (beside["echo"], "the barest sum")):
        rates = report.Samples([rate for rate, _ in found])
        waits = statistics.median(share for _, share in found)
        rows.append([name, rates.cell(3), f"{1e3 / rates.median:.0f}", f"{waits:.2f}"])
    report.table(["side", "million frames/s", "ns a frame", "waits"], rows)

    def ratio(run):
        return statistics.median(ours / theirs for (ours, _), (theirs, _)
                                 in zip(run["appliance"], run["echo"]))
    report.result("local", ratio_testpmd=ratio(blocks), ratio_bare_sum=ratio(beside),
                  appliance_mpps=statistics.median(rate for rate, _ in blocks["appliance"]),
                  testpmd_mpps=statistics.median(rate for rate, _ in blocks["echo"]))
