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
    paper.add_options(parser, HERE, "all settings, keep the records, train too (half an "
                                    "hour), and redo the page's tables")


def play(layers, bound, workers, iterations, latency_s, kind, *more):
    """run -> what the program says of it; see run_of()."""
    argv = [report.program(PROGRAM), "--bound", bound, "--iterations", iterations, "--workers",
            workers, "--latency-ns", round(latency_s * 1e9), "--slow-workers", kind.slow,
            "--slow-permille", round(kind.factor * 1e3), "--jitter-permille",
            round(kind.jitter * 1e3), *more]
    data = "".join(f"{layer.units} {round(layer.unit_s * 1e9)} {round(layer.forward_s * 1e9)} "
                   f"{round(layer.backward_s * 1e9)}\n" for layer in layers)
    done = subprocess.run([str(word) for word in argv], input=data, capture_output=True, text=True,
                          timeout=300, check=False)
    if done.returncode != 0:
        raise report.BenchError(f"{argv} ended with status {done.returncode}: {done.stderr}")
    return {row["run"]: row for row in map(json.loads, done.stdout.splitlines())}


def run_of(policy, queue="by layer", push_at="backward"):
    """The program's name of a run. In what order answers wait before a worker's link is `queue`;
    of "stalest" they always wait by layer."""
    return f"{policy}, {queue}, {push_at}"


def record(setting):
    said = play(settings.layers(setting.model, setting.ratio), setting.bound, settings.WORKERS,
                settings.ITERATIONS, settings.LATENCY_S, setting.workers)
    critical = said.pop("critical path")
    worker_ns = 1e9 * settings.WORKERS
    return {"key": setting.key, "critical_s": round(critical["end_ns"] / 1e9, 6),
            "link_s": round(settings.busiest_link_s(setting), 6),
            "violations": sum(row["violations"] for row in said.values()),
            "s": {run: round(row["end_ns"] / 1e9, 6) for run, row in said.items()},
            "suspended_s": {policy: round(said[run_of(policy)]["suspended_ns"] / worker_ns, 4)
                            for policy in settings.POLICIES},
            "staleness": {policy: round(said[run_of(policy)]["staleness"], 3)
                          for policy in settings.POLICIES}}


def records(chosen, processes):
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(record, chosen)


class Results:
    def __init__(self, by_key):
        self.records = by_key
        self.by_setting = {setting: by_key[setting.key] for setting in settings.SETTINGS
                           if setting.key in by_key}

    def of(self, wanted=lambda setting: True):
        return [entry for setting, entry in self.by_setting.items() if wanted(setting)]


def gains(entries, policy, queue, push_at="backward"):
    """Time of `policy` over that of "stalest", which has the same queue with "by layer": the order
    of requests alone. With "in order" the packets of "stalest" have priorities besides."""
    ours = run_of("stalest", push_at=push_at)
    return [entry["s"][run_of(policy, queue, push_at)] / entry["s"][ours] for entry in entries]


def gaps(entries, policy="stalest"):
    """Time over the lower bound: the longer of critical path and busiest link."""
    return [entry["s"][run_of(policy)] / max(entry["critical_s"], entry["link_s"])
            for entry in entries]


def figures(results):
    entries = results.of()
    if not entries:
        return {"order_alone_percent": None}
    alone, both = gains(entries, "fifo", "by layer"), gains(entries, "fifo", "in order")
    return {"order_alone_percent": 100 * (statistics.mean(alone) - 1),
            "order_alone_min": min(alone), "order_alone_max": max(alone),
            "with_priorities_percent": 100 * (statistics.mean(both) - 1),
            "with_priorities_min": min(both), "with_priorities_max": max(both),
            "filo_alone_min": min(gains(entries, "filo", "by layer")),
            "bound_violations": sum(entry["violations"] for entry in entries),
            "gap_to_bound": statistics.median(gaps(entries))}


QUEUES = {"order alone": "by layer", "order and priorities": "in order"}
HEADERS = ["", *QUEUES, *(f"at step: {name}" for name in QUEUES)]


def span(values):
    return f"{min(values):.2f}–{max(values):.2f}"


def mean(values):
    return f"{statistics.mean(values):.2f} ({span(values)})"


def groups():
    """name -> whether a setting is of it."""
    for model in settings.MODELS:
        yield f"`{model}`", lambda setting, model=model: setting.model == model
    for ratio in settings.RATIOS:
        yield f"ratio {ratio:g}", lambda setting, ratio=ratio: setting.ratio == ratio
    for bound in settings.BOUNDS:
        yield f"B = {bound}", lambda setting, bound=bound: setting.bound == bound


def table_rows(results):
    rows = []
    for name, wanted in groups():
        if entries := results.of(wanted):
            rows.append([name] + [span(gains(entries, "fifo", queue, push_at))
                                  for push_at in settings.PUSH_AT for queue in QUEUES.values()])
    return rows


POLICY_HEADERS = ["all settings", *QUEUES, "time / bound", "waiting", "staleness",
                  "at step / in backward"]


def policy_rows(results):
    """Means over all settings; but for the order and priorities with answers by layer."""
    entries = results.of()
    rows = []
    for policy in settings.POLICIES:
        times = [entry["s"][run_of(policy)] for entry in entries]
        late = [entry["s"][run_of(policy, push_at="step")] / s for entry, s in zip(entries, times)]
        waiting = [entry["suspended_s"][policy] / s for entry, s in zip(entries, times)]
        stale = [entry["staleness"][policy] for entry in entries]
        against = ([mean(gains(entries, policy, queue)) for queue in QUEUES.values()]
                   if policy != "stalest" else ["1", "1"])
        rows.append([f"`{policy}`", *against, mean(gaps(entries, policy)),
                     f"{statistics.mean(waiting):.0%}", f"{statistics.mean(stale):.2f}",
                     mean(late)])
    return rows


def write(results, folder):
    from . import training_tables
    text = "## Results\n\nTime of `fifo` / that of `stalest`, least–largest:\n\n"
    text += paper.markdown(HEADERS, [["published", "≤ 1.25", "≤ 1.25", "", ""],
                                     *table_rows(results)])
    text += "\nMean (least–largest):\n\n"
    text += paper.markdown(POLICY_HEADERS, policy_rows(results))
    trained = training_tables.Training(results.records)
    paper.replace_generated(folder, text + "\n" + training_tables.text(trained))
    training_tables.plot(trained, folder)


def show(results):
    report.table(HEADERS, table_rows(results))
    report.table(POLICY_HEADERS, policy_rows(results))


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
                for entry in records(settings.SETTINGS, options.processes):
                    paper.append(file, entry)
            train(path)
        if options.lab:
            from . import real
            real.run_missing(path)
    paper.run("request_scheduling", HERE, options, results_of=Results, figures_of=figures,
              write=write, show=show, long=long if options.long or options.lab else None,
              short=lambda: Results({entry["key"]: entry for entry in
                                     records(settings.SHORT, options.processes)}))
