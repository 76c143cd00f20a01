"""The lab's rows: a BCube of real workers and `sluiced`, or of bridges in mode plain, in network
namespaces over shaped links, beside the theory and the simulator.

A time is from the first worker's start to the last one's end of one sum, after a barrier; every
worker checks every element (allreduce_worker.py). The links' rate is the wire's, which has 24 bytes
a frame more than the frame: theory and simulator count them as well. All processes share this
machine's cores: "cores" is what the lab took of all their time, in the median, others on the
machine left out.
"""
import json
import os
import statistics

import allreduce
import links
import report
from papers import paper

from . import settings

FRAME_BYTES = settings.FRAME_BYTES + links.FRAME_OVERHEAD_BYTES
HEADERS = ["gradient", "(n,k)", "servers", "mode", "Mb/s", "theory: ms", "simulator: ms", "lab: ms",
           "simulator / theory", "lab / theory", "cores"]


def theory_s(setting):
    return (setting.share * setting.bytes * FRAME_BYTES / settings.CHUNK_BYTES
            / (setting.mbps * 1e6 / 8))


def simulator_s(program, setting):
    gbps = setting.mbps / 1000 * settings.FRAME_BYTES / FRAME_BYTES
    argv = [report.program(program), "--ports", setting.ports, "--levels", setting.levels,
            "--gbps", gbps, "--elems", *setting.elems]
    argv += ["--plain"] if setting.mode == "plain" else []
    return json.loads(report.run_program([str(word) for word in argv], timeout_s=600))["step_s"]


def record(program, setting, repetitions):
    from cube import CubeLab
    with CubeLab(setting.ports, setting.levels, mode=setting.mode, rate_mbps=setting.mbps) as cube:
        if setting.mode == "aggregated":
            cube.start_appliances(report.build_dir())
        elem_counts = ",".join(map(str, setting.elems))
        side = allreduce.Side(cube, "sluice", cube.workers, [elem_counts, "float32", 1500],
                              allreduce.sluice_env(cube))
        side.wait_ready()
        for repetition in range(repetitions + 1):  # the first one finds out about the windows
            side.round(counted=repetition > 0)
    if side.chunk_bytes != settings.CHUNK_BYTES:
        raise report.BenchError(f"settings.py has other chunks than {side.chunk_bytes} bytes")
    return {"key": setting.key, "simulator_s": simulator_s(program, setting),
            "seconds": side.seconds.values, "cpu_s": side.cpu_s.values,
            "cores": len(os.sched_getaffinity(0)), "retransmissions": side.retransmissions}


def against_theory(setting, row):
    """The simulator's and the lab's times for one of the theory's."""
    return [seconds / theory_s(setting)
            for seconds in (row["simulator_s"], statistics.median(row["seconds"]))]


def cores_share(row):
    cpu_s, seconds = (statistics.median(row[what]) for what in ("cpu_s", "seconds"))
    return cpu_s / seconds / row["cores"]


def rows(results):
    def ms(seconds):
        return f"{1e3 * seconds:.4g}"

    return [[f"{setting.bytes / 1e6:.4g} MB, {setting.what}", f"({setting.ports},{setting.levels})",
             setting.ports ** setting.levels, setting.mode, setting.mbps, ms(theory_s(setting)),
             ms(row["simulator_s"]), paper.cell(row["seconds"], text=ms),
             *(f"{each:.3f}" for each in against_theory(setting, row)),
             f"{100 * cores_share(row):.0f} %"]
            for setting, row in results.items()]
