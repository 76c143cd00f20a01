"""The common part of all benches: samples, the table, the machine's line, and the RESULT line.

A bench collects samples from interleaved repetitions and reports the median with the range from the
least to the largest sample. It never drops a sample: on a busy machine the range shows it.
"""
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

MIN_REPETITIONS = 5
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = "/usr/bin/python3"
# What benches use of the tests: the lab, and what drives workers in it.
sys.path += [os.path.join(ROOT, "tests", folder) for folder in ("lab", "e2e")]
sys.path.append(os.path.join(ROOT, "client", "python"))


class BenchError(Exception):
    """The bench could not measure; the message says what is missing and what to do."""


@dataclass
class Samples:
    """Repeated measurements of one quantity in one unit."""

    values: list = field(default_factory=list)

    def add(self, value):
        self.values.append(float(value))

    @property
    def median(self):
        return statistics.median(self.values)

    def cell(self, digits=2):
        """The median and the range, as one table cell."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} [{low:.{digits}f} .. {high:.{digits}f}]"


def machine():
    """One line: processor, cores that this process may use, load when the bench began.

    A one-minute load near the core count means that others compete for the cores: the medians are
    then lower bounds, and a comparison holds only because its sides were interleaved.
    """
    name = "unknown processor"
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
        for line in cpuinfo:
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    cores = len(os.sched_getaffinity(0))
    return f"machine: {name}, {cores} cores, load {os.getloadavg()[0]:.1f}"


def table(headers, rows):
    """Prints rows of strings under headers, columns aligned, the first to the left."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(headers, *rows)]
    for row in [headers, ["-" * width for width in widths], *rows]:
        cells = [str(cell).rjust(width) for cell, width in zip(row, widths)]
        cells[0] = str(row[0]).ljust(widths[0])
        print("  ".join(cells).rstrip())


def result(name, **figures):
    """Prints the bench's last line: RESULT name key=value ..."""
    cells = [f"{key}={value:.3g}" if isinstance(value, float) else f"{key}={value}"
             for key, value in figures.items()]
    print("RESULT", name, *cells, flush=True)


def add_repetitions(parser, default):
    """The option that every bench has."""
    def count(text):
        value = int(text)
        if value < MIN_REPETITIONS:
            raise ValueError(text)
        return value
    parser.add_argument("--repetitions", type=count, default=default, metavar="N",
                        help=f"interleaved repetitions, at least {MIN_REPETITIONS} "
                             f"(default {default})")


def add_seconds(parser, default):
    """The option of those that google_benchmark() runs."""
    parser.add_argument("--seconds", type=float, default=default, metavar="S",
                        help=f"least time of a row in a repetition (default {default})")


def build_dir():
    """The build folder: SLUICE_BUILD, else build/ beside this folder's parent."""
    return os.environ.get("SLUICE_BUILD", os.path.join(ROOT, "build"))


def program(relative):
    """The path of a built program, or a BenchError that says how to build it."""
    path = os.path.join(build_dir(), relative)
    if not os.access(path, os.X_OK):
        raise BenchError(f"{path} is not built: ./run build, or set SLUICE_BUILD to a build folder")
    return path


def run_program(argv, timeout_s, env=None):
    """Runs argv to its end within timeout_s and returns its standard output.

    Its standard error goes to ours, so that a message of the program is seen when it fails.
    """
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=sys.stderr, text=True,
                              timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{argv[0]} did not end within {timeout_s} s") from None
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv)} ended with status {done.returncode}")
    return done.stdout


def google_benchmark(name, repetitions, seconds, *arguments, timeout_s=600):
    """Runs bench/NAME, its repetitions interleaved: (its iterations as dicts, its context)."""
    document = json.loads(run_program(
        [program(f"bench/{name}"), f"--benchmark_repetitions={repetitions}",
         "--benchmark_enable_random_interleaving=true", f"--benchmark_min_time={seconds}",
         "--benchmark_format=json", *arguments], timeout_s))
    rows = [row for row in document["benchmarks"] if row["run_type"] == "iteration"]
    return rows, document["context"]


def samples_by(key_of, value_of, rows):
    """{key: Samples} of a benchmark's rows."""
    samples = {}
    for row in rows:
        samples.setdefault(key_of(row), Samples()).add(value_of(row))
    return samples
