"""`./run bench request_scheduling`: training time over a stale-synchronous store, by the order of
requests, in virtual time.

The page beside this file (README.md) says what the figures mean and shows the experiment (--long
keeps the records, trains over the store where records of that are missing, and redoes its tables).
"""
import json
import os
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor

import report
from papers import paper

from . import settings

DESCRIPTION = "a parameter store's requests by policy: training time, waiting, staleness, virtual"
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = "bench/papers/request_scheduling/bench_request_scheduling"


def add_options(parser):
    paper.add_processes(parser)
    parser.add_argument("--lab", action="store_true",
                        help="train with 16 real ranks in a lab what is not among the records "
                             "(needs root, twenty minutes), and redo the page's tables")
    paper.add_options(parser, HERE, "keep the records, train too (half an hour), and redo "
                                    "the page's tables")


def play(layers, bound, workers, iterations, latency_s, kind):
    """policy -> what the program says of it; "critical": the critical path; "at_step": ours where
    all pushes wait for the end of the backward pass."""
    argv = [report.program(PROGRAM), "--bound", bound, "--iterations", iterations, "--workers",
            workers, "--latency-ns", round(latency_s * 1e9), "--slow-workers", kind.slow,
            "--slow-permille", round(kind.factor * 1e3), "--jitter-permille",
            round(kind.jitter * 1e3)]
    data = "".join(f"{layer.units} {round(layer.unit_s * 1e9)} {round(layer.forward_s * 1e9)} "
                   f"{round(layer.backward_s * 1e9)}\n" for layer in layers)
    done = subprocess.run([str(word) for word in argv], input=data, capture_output=True, text=True,
                          timeout=300, check=False)
    if done.returncode != 0:
        raise report.BenchError(f"{argv} ended with status {done.returncode}: {done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["policy"]: row for row in rows}


def record(setting):
    said = play(settings.layers(setting.model, setting.ratio), setting.bound, settings.WORKERS,
                settings.ITERATIONS, settings.LATENCY_S, setting.workers)
    entry = {"key": setting.key, "critical_s": said["critical"]["end_ns"] / 1e9,
             "link_s": round(settings.busiest_link_s(setting), 6),
             "at_step": {"s": said["at_step"]["end_ns"] / 1e9,
                         "violations": said["at_step"]["violations"]}}
    for policy in settings.POLICIES:
        row = said[policy]
        entry[policy] = {"s": row["end_ns"] / 1e9,
                         "suspended_s": row["suspended_ns"] / 1e9 / settings.WORKERS,
                         "staleness": row["staleness"], "violations": row["violations"]}
    return entry


def records(processes):
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(record, settings.SETTINGS))


class Results:
    def __init__(self, by_key):
        self.records = by_key
        self.entries = [(setting, by_key[setting.key]) for setting in settings.SETTINGS
                        if setting.key in by_key]

    def of(self, **fixed):
        return [entry for setting, entry in self.entries
                if all(getattr(setting, name) == value for name, value in fixed.items())]


def against_ours(entry, policy):
    return entry[policy]["s"] / entry[settings.OURS]["s"]


def gap(entry, policy=settings.OURS):
    """Time over the lower bound: the longer of critical path and busiest link."""
    return entry[policy]["s"] / max(entry["critical_s"], entry["link_s"])


def figures(results):
    entries = [entry for _setting, entry in results.entries]
    if not entries:
        return {"ours_vs_fifo_max": None}
    fifo = [against_ours(entry, "fifo") for entry in entries]
    filo = [against_ours(entry, "filo") for entry in entries]
    return {"ours_vs_fifo_max": max(fifo), "ours_vs_fifo_min": min(fifo),
            "ours_vs_filo_min": min(filo),
            "bound_violations": sum(entry[policy]["violations"] for entry in entries
                                    for policy in (*settings.POLICIES, "at_step")),
            "gap_to_bound": statistics.median(gap(entry) for entry in entries)}


HEADERS = ["", "fifo / ours", "filo / ours", "at step / ours", "ours / bound", "fifo / bound",
           "waiting: fifo", "filo", "ours", "staleness: fifo", "filo", "ours"]


def row(name, entries):
    share = [[entry[policy]["suspended_s"] / entry[policy]["s"] * 100 for entry in entries]
             for policy in settings.POLICIES]
    stale = [[entry[policy]["staleness"] for entry in entries] for policy in settings.POLICIES]
    return [name, paper.cell([against_ours(entry, "fifo") for entry in entries]),
            paper.cell([against_ours(entry, "filo") for entry in entries]),
            paper.cell([against_ours(entry, "at_step") for entry in entries]),
            paper.cell([gap(entry) for entry in entries]),
            paper.cell([gap(entry, "fifo") for entry in entries]),
            *(f"{statistics.median(values):.0f} %" for values in share),
            *(f"{statistics.median(values):.2f}" for values in stale)]


def table_rows(results):
    groups = [("all", {})]
    groups += [(model, {"model": model}) for model in settings.MODELS]
    groups += [(f"ratio {ratio:g}", {"ratio": ratio}) for ratio in settings.RATIOS]
    groups += [(f"B = {bound}", {"bound": bound}) for bound in settings.BOUNDS]
    groups += [(kind.name, {"workers": kind}) for kind in settings.WORKER_KINDS]
    return [row(name, results.of(**fixed)) for name, fixed in groups if results.of(**fixed)]


def write(results, folder):
    from . import training_tables
    text = ("## Results\n\nMedian [least .. largest] over a row's settings; waiting: share of a "
            "worker's time.\n\n")
    text += paper.markdown(HEADERS, table_rows(results))
    trained = training_tables.Training(results.records)
    paper.replace_generated(folder, text + "\n" + training_tables.text(trained))
    training_tables.plot(trained, folder)


def show(results):
    report.table(HEADERS, table_rows(results))


def train(path):
    try:
        from . import training
        training.run(path)
    except ImportError as error:
        raise report.BenchError(f"{error}; ./run installs what Debian packages") from None


def run(options):
    def long(path):
        if options.long:
            with paper.open_to_append(path) as file:
                for entry in records(options.processes):
                    paper.append(file, entry)
            train(path)
        if options.lab:
            from . import real
            real.run_missing(path)
    paper.run("request_scheduling", HERE, options, results_of=Results, figures_of=figures,
              write=write, show=show, long=long if options.long or options.lab else None,
              short=lambda: Results({entry["key"]: entry for entry in
                                     records(options.processes)}))
