"""`./run bench bml`: synchronisation over a BCube, in virtual time, against the theory and the
publication.

The page beside this file (README.md) says what the figures mean; --long keeps the records and
redoes its tables and its plots.
"""
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import report
from papers import paper

from . import in_namespaces, settings

DESCRIPTION = "BML on BCube: bytes and time of a sum over several ports and boxes, virtual time"
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = "bench/papers/bml/bench_bml"
# Whence a step's time is, and how it is drawn; the lab has the first of the shapes.
JOBS = {(settings.MODEL_SHAPES[0], "simulator"): "o-", (settings.MODEL_SHAPES[0], "lab"): "x:",
        (settings.MODEL_SHAPES[1], "simulator"): "s--"}
BY_SLICES = PROGRAM + "_slices"
PORT_BYTES_PER_S = settings.GBPS * 1e9 / 8


def add_options(parser):
    paper.add_processes(parser)
    paper.add_options(parser, HERE, "keep the records and redo the tables and plots of the page")
    parser.add_argument("--lab", action="store_true",
                        help="with real workers over shaped links, 10 minutes, as root: into the "
                             "records, then plots and tables of the page")
    report.add_repetitions(parser, 15)


def record(setting):
    # Of networks beside each other, one.
    beside = setting.server_ports or 1
    shape = (setting.servers, 1) if setting.server_ports else (setting.ports, setting.levels)
    argv = [report.program(BY_SLICES if setting.by_slices else PROGRAM), "--ports", shape[0],
            "--levels", shape[1], "--gbps", settings.GBPS,
            "--elems", *(math.ceil(count / beside) for count in setting.elems)]
    argv += ["--plain"] if setting.mode in ("plain", "server", "ring") else []
    argv += ["--ring"] if setting.mode == "ring" else []
    if setting.by_slices:
        argv += ["--frame-bytes", settings.FRAME_BYTES, "--chunk-bytes", settings.CHUNK_BYTES]
    row = json.loads(report.run_program([str(word) for word in argv], timeout_s=3600))
    if not setting.by_slices:
        got = (row["chunk_bytes"], row["frame_bytes"])
        if got != (settings.CHUNK_BYTES, settings.FRAME_BYTES):
            raise report.BenchError(f"settings.py has other chunks and frames than {got}")
    return {"key": setting.key, **row}


def records(which, processes):
    from tqdm import tqdm
    with ThreadPoolExecutor(processes) as pool:
        yield from tqdm(pool.map(record, which), total=len(which), unit="setting", disable=None)


class Results:
    def __init__(self, by_key):
        known = {setting.key: setting for setting in settings.LONG + settings.SHORT}
        self.of = {known[key]: row for key, row in by_key.items() if key in known}
        self.lab = {setting: by_key[setting.key] for setting in settings.LAB
                    if setting.key in by_key}

    def production(self, mode=None):
        """Of uniform gradients, over the sessions and appliances that a job has."""
        return [(setting, row) for setting, row in self.of.items()
                if setting.what == "uniform" and not setting.by_slices
                and mode in (None, setting.mode)]

    def judged(self, mode):
        """Those, and by slices what is too big for them."""
        return self.production(mode) + [
            (setting, row) for setting, row in self.of.items()
            if setting.mode == mode and setting.by_slices
            and setting.servers > settings.MOST_PLAYED]

    def bcubes(self):
        """In the order of the tables, each once, however it was played."""
        return sorted({replace(setting, by_slices=False)
                       for setting in self.of if not setting.server_ports},
                      key=lambda one: (one.what, one.megabytes, one.ports, one.levels, one.mode))

    def by_slices(self, setting):
        return self.of.get(replace(setting, by_slices=True))


def wire_s(share, size):
    """That share of a gradient of `size` bytes through one port, in frames."""
    return share * size * settings.FRAME_BYTES / settings.CHUNK_BYTES / PORT_BYTES_PER_S


def against_theory(setting, row):
    return row["step_s"] / wire_s(setting.share, setting.bytes)


def least(setting):
    """The same for a port that never idles until its last frame has crossed the switch. `plain`:
    half of the frames are contributions, which are shorter."""
    theory_s = wire_s(setting.share, setting.bytes)
    frame_s = settings.FRAME_BYTES / PORT_BYTES_PER_S
    shorter = settings.CONTRIBUTION_BYTES / settings.FRAME_BYTES
    frames = (1 + shorter) / 2 if setting.mode == "plain" else 1
    return frames + (settings.CABLES_S + frame_s) / theory_s


def share_of_bytes(setting, row):
    """Bytes of gradient through the busiest port, for one of the theory's."""
    return row["port_bytes"] / (setting.share * setting.bytes)


def job_seconds(results, model, mode, shape=settings.MODEL_SHAPES[0], source="simulator"):
    """sub-minibatch -> an iteration's seconds with a parameter server (theory), and ours: with the
    step of the simulator, or as much of the theory's as the lab's takes on slower links."""
    setting = settings.Setting(model, *shape, mode)
    if source == "lab":
        ratio = next((in_namespaces.against_theory(one, row)[1] for one, row in results.lab.items()
                      if (one.what, one.mode) == (model, mode)), None)
    else:
        row = results.of.get(setting)
        ratio = row and against_theory(setting, row)
    if ratio is None:
        return {}
    scale = settings.SCALE[model]
    theirs = scale * wire_s(settings.other_share("server", setting.servers), setting.bytes)
    ours = scale * ratio * wire_s(setting.share, setting.bytes)
    return {size: (settings.compute_s(model, size) + theirs, settings.compute_s(model, size) + ours)
            for size in settings.SUB_MINIBATCHES[model]}


def reductions(results, model, mode, *whence):
    """sub-minibatch -> by how much the job is over sooner than with a parameter server (theory)."""
    return {size: 1 - ours / theirs
            for size, (theirs, ours) in job_seconds(results, model, mode, *whence).items()}


def largest(values):
    return max(values) if values else None


def figures(results):
    by_mode = {mode: [against_theory(*pair) for pair in results.judged(mode)]
               for mode in settings.MODES}
    steps = {(setting.mode, setting.megabytes): row["step_s"]
             for setting, row in results.production()
             if (setting.ports, setting.levels) == (3, 2)}
    size = largest([megabytes for _mode, megabytes in steps])
    out = {"plain_vs_theory_max": largest(by_mode["plain"]),
           "aggregated_vs_theory_max": largest(by_mode["aggregated"]),
           "lenet_reduction": largest(reductions(results, "lenet5", "aggregated").values()),
           "lenet_plain_reduction": largest(reductions(results, "lenet5", "plain").values()),
           "aggregated_vs_plain_32": steps["plain", size] / steps["aggregated", size],
           "vgg_reduction_max": largest(reductions(results, "vgg19", "aggregated").values()),
           "vgg_plain_reduction": largest(reductions(results, "vgg19", "plain").values())}
    lab = [in_namespaces.against_theory(setting, row)[1] for setting, row in results.lab.items()
           if setting.what == "uniform"]
    return out | ({"lab_vs_theory_max": max(lab)} if lab else {})


HEADERS = ["gradient", "(n,k)", "servers", "mode", "port's bytes / theory", "theory, of P/C",
           "least / theory", "time / theory", "by slices", "ms"]


def rows(results):
    out = []
    for setting in results.bcubes():
        times = results.of.get(setting), results.by_slices(setting)
        row, shown = times[0], next(one for one in times if one)
        out.append([f"{setting.bytes / 1e6:.4g} MB, {setting.what}",
                    f"({setting.ports},{setting.levels})", setting.servers, setting.mode,
                    f"{share_of_bytes(setting, row):.4f}" if row else "-",
                    f"{setting.share:.3f}", f"{least(setting):.3f}",
                    *(f"{against_theory(setting, one):.3f}" if one else "-" for one in times),
                    f"{1e3 * shown['step_s']:.4g}"])
    return out


OTHER_HEADERS = ["gradient", "(n,k)", "plain", "aggregated"] + [
    f"{way}, {ports}" for ports in ("1 port", "k ports") for way in settings.OTHER_WAYS]


def other_rows(results, shown=None, ratios=True):
    """Milliseconds, and those of the other ways for one of the theory's."""
    def cell(setting):
        row = results.of.get(setting)
        if row is None:
            return "-"
        return f"{1e3 * row['step_s']:.4g}" + (
            f", {against_theory(setting, row):.3f}" if ratios else "")

    out = []
    for setting in results.bcubes():
        gradient = (setting.what, setting.ports, setting.levels, setting.megabytes)
        if setting.mode != "aggregated" or shown and gradient not in shown:
            continue
        ours = [results.of.get(each) or results.by_slices(each)
                for each in (replace(setting, mode=mode) for mode in settings.MODES)]
        out.append([f"{setting.bytes / 1e6:.4g} MB, {setting.what}",
                    f"({setting.ports},{setting.levels})",
                    *(f"{1e3 * row['step_s']:.4g}" if row else "-" for row in ours),
                    *(cell(replace(setting, mode=way, by_slices=True, server_ports=ports))
                      for ports in (1, setting.levels) for way in settings.OTHER_WAYS)])
    return out


def job_rows(results):
    return [[model, f"({shape[0]},{shape[1]})", mode, source,
             *(f"{size}: {1e3 * ours:.4g} for {1e3 * theirs:.4g} ms, "
               f"{100 * (1 - ours / theirs):.1f} %"
               for size, (theirs, ours) in seconds.items())]
            for model in settings.SUB_MINIBATCHES for mode in settings.MODES
            for shape, source in JOBS
            if (seconds := job_seconds(results, model, mode, shape, source))]


def show(results):
    report.table(HEADERS, rows(results))
    print()
    report.table(OTHER_HEADERS, other_rows(results))
    if results.lab:
        print()
        report.table(in_namespaces.HEADERS, in_namespaces.rows(results.lab))
    for row in job_rows(results):
        print("  ".join(row))


def run(options):
    from . import page

    def long(path):
        with paper.open_to_append(path) as file:
            for entry in records(settings.LONG if options.long else [], options.processes):
                paper.append(file, entry)
            for setting in settings.LAB if options.lab else []:
                paper.append(file, in_namespaces.record(PROGRAM, setting, options.repetitions))
    paper.run("bml", HERE, options, results_of=Results, figures_of=figures, write=page.write,
              show=show, long=long if options.long or options.lab else None,
              short=lambda: Results({entry["key"]: entry for entry in
                                     records(settings.SHORT, options.processes)}))
