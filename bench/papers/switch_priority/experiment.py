"""The runs of the experiment in the lab, into a file that a later call continues.

A unit is one repetition of a model: every policy after the other, each in a lab of its own. A
record is one JSON line; its key names the run.
"""
import concurrent.futures
import json
import os
import select
import statistics
import sys
import time

import report
from cores import BusyShare
from papers import paper

from . import models, replay, topology
from .programs import POLICIES
from .queues import QueueWatch

HERE = os.path.dirname(os.path.abspath(__file__))
SCALE = 40
WARM_UP_STEPS = 1  # windows open, connections learn their round trips
AGGREGATIONS = {"aggregation_stored": False, "aggregation": True}  # name -> streamed
NAMES = tuple(POLICIES) + tuple(AGGREGATIONS)
SECONDS_MEASURED = 12  # about; a run is at least two steps and at most six
RUN_TIMEOUT_S = 300


def steps_of(model):
    """Measured steps of a run: more of a short step."""
    step_s = 2 * models.WORKERS * model.transfer_s + model.compute_s
    return max(2, min(6, round(SECONDS_MEASURED / step_s)))


def key(model, policy, repetition):
    return f"{model}/{policy}/{repetition}"


class Run:
    """One model under one policy in one lab."""

    def __init__(self, model_name, policy_name, steps, scale=SCALE):
        self.model = models.load(model_name, scale)
        self.policy_name, self.steps, self.scale = policy_name, steps, scale

    def record(self):
        policy = POLICIES.get(self.policy_name)
        rules = topology.example_rules() if policy and policy.by_address else ""
        with topology.Topology(self.scale, rules) as lab:
            busy, switch_cpu_s = BusyShare(), lab.switch_cpu_s()
            with QueueWatch(lab) as watch:
                began = time.monotonic()
                if self.policy_name in AGGREGATIONS:
                    record = self._aggregate(lab)
                else:
                    record = self._replay(lab)
            elapsed_s = time.monotonic() - began
            used_s = lab.switch_cpu_s() - switch_cpu_s + record.pop("cpu_s")
            record["busy"] = round(busy.percent(), 1)
            record["own_busy"] = round(100 * used_s / elapsed_s / os.cpu_count(), 1)
            record["queues"], record["drops"] = watch.result()
        return record

    def _replay(self, lab):
        policy = POLICIES[self.policy_name]
        common = {"policy": self.policy_name, "workers": models.WORKERS,
                  "bytes": [layer.bytes for layer in self.model.layers],
                  "bands": models.bands(self.model.layers, replay.band_count(policy)),
                  "steps": WARM_UP_STEPS + self.steps,
                  "server": topology.address(topology.SERVER)}
        script = os.path.join(HERE, "replay.py")
        server = self._start(lab, topology.SERVER, script,
                             dict(common, role="server",
                                  address=topology.address(topology.SERVER)))
        line = self._line(server, topology.START_TIMEOUT_S)
        if line != "listening":
            raise report.BenchError(f"the parameter server said {line!r}, not listening")
        workers = [self._start(lab, host, script, dict(
            common, role="worker", rank=rank, address=topology.address(host),
            forward_s=[layer.forward_s for layer in self.model.layers],
            backward_s=[layer.backward_s for layer in self.model.layers]))
            for rank, host in enumerate(topology.WORKERS)]
        rows = [json.loads(self._line(process, RUN_TIMEOUT_S)) for process in [server] + workers]
        ends = rows[0]["ends"]
        # Times of one step, from its start, for the page's picture: the last one.
        start = ends[-2]
        timeline = [[round(row["pulled"][-1] - start, 3), round(row["pushing"][-1] - start, 3),
                     round(pushed[-1] - start, 3)]
                    for row, pushed in zip(rows[1:], rows[0]["pushed"])]
        return {"step_s": _differences(ends), "timeline": timeline,
                "retransmits": sum(row["retransmits"] for row in rows) + rows[0]["resent"],
                "cpu_s": sum(row["cpu_s"] for row in rows)}

    def _aggregate(self, lab):
        streamed = AGGREGATIONS[self.policy_name]
        hosts = topology.WORKERS + (() if streamed else (topology.SERVER,))
        build = report.build_dir()
        env = {"PYTHONPATH": os.path.join(report.ROOT, "client", "python"),
               "SLUICE_LIBRARY": os.environ.get("SLUICE_LIBRARY",
                                                os.path.join(build, "client", "libsluice.so"))}
        common = {"bytes": [layer.bytes for layer in self.model.layers], "streamed": streamed,
                  "compute_s": self.model.compute_s, "workers": models.WORKERS,
                  "ranks": len(hosts), "steps": WARM_UP_STEPS + self.steps,
                  "url": f"udp://{topology.AGGREGATOR}", "job": "bench",
                  "run_id": str(time.monotonic_ns())}
        ranks = [self._start(lab, host, os.path.join(HERE, "aggregation.py"),
                             dict(common, rank=rank), env) for rank, host in enumerate(hosts)]
        rows = [json.loads(self._line(process, RUN_TIMEOUT_S)) for process in ranks]
        # A step ends when the last rank has it.
        ends = [max(each) for each in zip(*(row["ends"] for row in rows))]
        return {"step_s": _differences(ends),
                "retransmits": sum(row["retransmits"] for row in rows),
                "cpu_s": sum(row["cpu_s"] for row in rows)}

    @staticmethod
    def _start(lab, host, script, settings, env=None):
        return lab.popen(host, [report.PYTHON, "-B", script, json.dumps(settings)], env,
                         stdout=-1, text=True)

    def _line(self, process, timeout_s):
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if ready else None
        if line:
            return line.strip()
        why = "ended; its message is above" if ready else f"said nothing for {timeout_s} s"
        raise report.BenchError(f"{self.model.name}, {self.policy_name}: a host {why}")


def _differences(ends):
    """Durations of the steps after the warm-up."""
    return [round(after - before, 4)
            for before, after in zip(ends[WARM_UP_STEPS - 1:], ends[WARM_UP_STEPS:])]


def units(names, policies, repetitions):
    """(model, policy, repetition): repetitions outermost, so that a bad minute hits few of them."""
    return [(model, policy, repetition) for repetition in range(repetitions)
            for model in names for policy in policies]


def run(todo, path, labs, steps=None):
    """Runs what the file at `path` lacks, so many labs at a time, appends it there, and returns all
    of its records."""
    records = paper.load(path)
    todo = [unit for unit in todo if key(*unit) not in records]

    def one(model, policy, repetition):
        count = steps or steps_of(models.load(model, SCALE))
        return {"key": key(model, policy, repetition), **Run(model, policy, count).record()}

    with paper.open_to_append(path) as file, \
            concurrent.futures.ThreadPoolExecutor(labs) as pool:
        futures = [pool.submit(one, *unit) for unit in todo]
        try:
            for future in concurrent.futures.as_completed(futures):
                record = future.result()
                records[record["key"]] = record
                paper.append(file, record)
                print(f"{record['key']}: {statistics.mean(record['step_s']):.3f} s a step, "
                      f"busy {record['busy']} %", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return records
