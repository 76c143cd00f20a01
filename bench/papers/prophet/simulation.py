"""Runs bench_prophet (replay.cc), and keeps what it said as records, one a line of JSON."""
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
    ready_steps: int = settings.READY_STEPS
    workers: int = 1
    jitter_permille: int = 0
    iterations: int = settings.ITERATIONS
    steady: int = settings.STEADY
    program: str = PROGRAM


MAIN = Variant("main")
LAYERS = Variant("layers", ready_steps=0)
# Four workers that wait for one another, each iteration's compute drawn anew: 48 of them count.
JITTERS = tuple(Variant(f"jitter {permille // 10} %", workers=4, jitter_permille=permille,
                        iterations=60, steady=48) for permille in (50, 200))
JITTER_SETTINGS = tuple(settings.Setting(model, rate, 1.0)
                        for model, rate in (("resnet50", 1), ("resnet50", 3), ("vgg19", 3),
                                            ("bert_base", 3)))
# The whole production session and aggregator, a check on the light replay.
SESSION = Variant("session", workers=2, iterations=14, steady=6, program=SESSION_PROGRAM)
SESSION_SETTINGS = tuple(settings.Setting("resnet50", rate, latency)
                         for rate in (1, 3) for latency in settings.LATENCIES_MS)
SESSION_POLICIES = (settings.FIFO, settings.FIFO_EQUAL, settings.STOP_AND_WAIT,
                    settings.DEFAULT_CREDIT, settings.PROPHET, settings.STRICT)


def program_input(tensors):
    return "".join(f"{tensor.bytes} {round(tensor.ready_s * 1e9)} {round(tensor.forward_s * 1e9)}\n"
                   for tensor in tensors)


def play(tensors, rate_gbps, latency_ms, policy, variant=MAIN, chunk_bytes=settings.CHUNK_BYTES,
         extra=()):
    """What the program says: {"iteration_ns": [...], "plan": "..."}."""
    argv = [report.program(variant.program), "--schedule", policy.schedule,
            "--rate-bps", str(round(rate_gbps * 1e9)),
            "--latency-ns", str(round(latency_ms * 1e6)), "--chunk-bytes", str(chunk_bytes),
            "--iterations", str(variant.iterations), "--workers", str(variant.workers),
            "--jitter-permille", str(variant.jitter_permille), *extra]
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
    """One run's record; iteration_ms is the mean of the steady iterations."""
    said = play(settings.tensors(setting.model, variant.ready_steps), setting.rate_gbps,
                setting.latency_ms, policy, variant)
    steady = [ns / 1e6 for ns in said["iteration_ns"][-variant.steady:]]
    out = {"key": key(variant.name, setting, policy.name), "variant": variant.name,
           "model": setting.model, "rate_gbps": setting.rate_gbps,
           "latency_ms": setting.latency_ms, "policy": policy.name,
           "iteration_ms": round(statistics.fmean(steady), 3),
           "least_ms": round(min(steady), 3), "most_ms": round(max(steady), 3)}
    if policy.schedule == "prophet" and variant is MAIN:
        out["plan"] = said["plan"]
    return out


def records(runs, processes):
    """The records of (setting, policy, variant), in their order."""
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(lambda run: record(*run), runs))


def key(variant, setting, policy):
    return f"{variant}/{setting.model}/{setting.rate_gbps:g}/{setting.latency_ms:g}/{policy}"
