"""Runs bench_prophet (replay.cc), and keeps its output as records, one a line of JSON."""
import json
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import report
from . import settings

PROGRAM = "bench/papers/prophet/bench_prophet"
SESSION_PROGRAM = "bench/papers/prophet/bench_prophet_session"
RUN_TIMEOUT_S = 300


@dataclass(frozen=True)
class Variant:
    """What differs from the main table, and its name in the records."""

    name: str
    groups: int = settings.READY_GROUPS
    workers: int = 1
    jitter_permille: int = 0
    iterations: int = 24  # of a policy that learns, or where iterations differ
    steady: int = 12      # at the end, that count
    program: str = PROGRAM
    extra: tuple = ()     # more of the program's options
    kept: int = 0         # so many of the last iterations are in the record one by one

    def lengths(self, policy):
        """(iterations, how many of them count at the end)."""
        if policy.learns or self.jitter_permille or self.program != PROGRAM:
            return self.iterations, self.steady
        return 4, 2  # from the second on each is like the one before


MAIN = Variant("main")
LAYERS = Variant("layer by layer", groups=0)
STORED = Variant("pulls stored and forwarded", extra=("--store-bytes", "4000000"))
# Four workers that wait for one another, each iteration's compute drawn anew: 36 of them count.
JITTER = Variant("compute varies by 20 %", workers=4, jitter_permille=200, iterations=48, steady=36)
SIDE_VARIANTS = (LAYERS, STORED, JITTER)
# The whole production session and aggregator, a check on the light replay.
SESSION = Variant("whole session", workers=2, iterations=13, steady=5, program=SESSION_PROGRAM)
SESSION_POLICIES = (settings.FIFO_EQUAL, *settings.SIDE_POLICIES[1:])
# Real ranks (real.py).
LAB_SETTINGS = tuple(settings.Setting("resnet50", rate, 1.0) for rate in (1, 3))
LAB_WORKERS = (2, 4)


def lab_name(workers):
    return f"lab, {workers} workers"


# All links change their rate, Gb/s, after CHANGE_AFTER iterations.
CHANGE_AFTER, AFTER_CHANGE = 16, 32


def change_to(rate_gbps):
    return Variant(f"then {rate_gbps} Gb/s", iterations=CHANGE_AFTER + AFTER_CHANGE,
                   kept=AFTER_CHANGE,
                   extra=("--change-after", str(CHANGE_AFTER),
                          "--changed-rate-bps", str(round(rate_gbps * 1e9))))


CHANGES = tuple((settings.Setting(model, before, 1.0), after)
                for model in settings.MODELS for before, after in ((3, 1), (1, 3)))


def program_input(tensors):
    return "".join(f"{tensor.bytes} {round(tensor.ready_s * 1e9)} {round(tensor.forward_s * 1e9)}\n"
                   for tensor in tensors)


def play(tensors, rate_gbps, latency_ms, policy, variant=MAIN, chunk_bytes=settings.CHUNK_BYTES,
         extra=()):
    """What the program says, a dict: see main.cc."""
    argv = [report.program(variant.program), "--schedule", policy.schedule,
            "--rate-bps", str(round(rate_gbps * 1e9)),
            "--latency-ns", str(round(latency_ms * 1e6)), "--chunk-bytes", str(chunk_bytes),
            "--iterations", str(variant.lengths(policy)[0]), "--workers", str(variant.workers),
            "--jitter-permille", str(variant.jitter_permille), *variant.extra, *extra]
    if policy.unit:
        argv += ["--unit-bytes", str(policy.unit), "--credit-bytes", str(policy.credit)]
    if policy.equal_priorities:
        argv += ["--equal-priorities"]
    try:
        done = subprocess.run(argv, input=program_input(tensors), capture_output=True, text=True,
                              timeout=RUN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise report.BenchError(f"{' '.join(argv)} did not end in {RUN_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise report.BenchError(f"{' '.join(argv)} ended with status {done.returncode}: "
                                f"{done.stderr.strip()}")
    return json.loads(done.stdout)


def record(setting, policy, variant):
    """One run's record; iteration_ms is the mean of the steady iterations, gpu_percent and
    network_percent the share of them in which worker 0 computed, and its uplink sent."""
    said = play(settings.tensors(setting.model, variant.groups), setting.rate_gbps,
                setting.latency_ms, policy, variant)
    count = variant.lengths(policy)[1]
    steady = [ns / 1e6 for ns in said["iteration_ns"][-count:]]
    out = {"key": key(variant.name, setting, policy.name), "variant": variant.name,
           "model": setting.model, "rate_gbps": setting.rate_gbps,
           "latency_ms": setting.latency_ms, "policy": policy.name,
           "iteration_ms": round(statistics.fmean(steady), 3),
           "least_ms": round(min(steady), 3), "most_ms": round(max(steady), 3)}
    for name, source in (("gpu_percent", "compute_ns"), ("network_percent", "link_busy_ns")):
        if said[source]:
            out[name] = round(sum(said[source][-count:]) / sum(steady) / 1e4, 1)
    if variant.kept:
        out["iterations_ms"] = [round(ns / 1e6, 3) for ns in said["iteration_ns"][-variant.kept:]]
    return out


def records(runs, processes):
    """The records of (setting, policy, variant), in their order."""
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(lambda run: record(*run), runs))


def key(variant, setting, policy):
    return f"{variant}/{setting.model}/{setting.rate_gbps:g}/{setting.latency_ms:g}/{policy}"
