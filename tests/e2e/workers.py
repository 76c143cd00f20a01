"""Starts e2e_worker processes and collects their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lab"))
from tiers import FULL  # noqa: E402

BUILD = Path(os.environ.get("SLUICE_BUILD", "build"))
WORKER = BUILD / "tests" / "e2e" / "e2e_worker"


def command(address: str, rank: int, world: int, **options) -> list[str]:
    """The worker's command line; `options` as in worker.cc with _ for -."""
    line = [str(WORKER), "--address", address, "--rank", str(rank), "--world", str(world)]
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        line += [flag] if value is True else [flag, str(value)]
    return line


def start(lab, host: int, address: str, rank: int, world: int, **options) -> subprocess.Popen:
    """A worker in a host of the lab, or on this machine when lab is None."""
    line = command(address, rank, world, **options)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    if lab is None:
        return subprocess.Popen(line, start_new_session=True, **pipes)
    return lab.popen(host, line, **pipes)


def finish(process: subprocess.Popen, timeout: float = 300) -> dict:
    """Waits for a worker and returns its JSON line, with "exit", "stalls" and "stderr" added."""
    late = False
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        late = True
    if process.returncode != 0:  # pytest cuts a report in an assertion's message, but not this
        print(*process.args, f"\n{out}{err}", file=sys.stderr)
    if late:
        return {"ok": False, "exit": "timeout", "stdout": out, "stderr": err}
    report = {"ok": False, "stdout": out}
    for line in out.splitlines():
        if line.startswith("{"):
            report = json.loads(line)
    report["exit"] = process.returncode
    report["stalls"] = [line[6:] for line in out.splitlines() if line.startswith("STALL ")]
    report["stderr"] = err
    return report


def read_line(process: subprocess.Popen) -> str:
    """The next line that it prints, and nothing beyond: communicate() knows not of what is read
    ahead, so that it would lose lines that follow at once."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(process.stdout.fileno(), 1)):
        line += byte
    return line.decode()


def wait_joined(process: subprocess.Popen) -> None:
    """Returns when the worker has printed JOINED."""
    line = read_line(process)
    assert line.strip() == "JOINED", line + process.stdout.read() + process.stderr.read()


def run_all(lab, address: str, world: int, timeout: float = 300, **options) -> list[dict]:
    """One worker a host, all to the end."""
    processes = [start(lab, rank, address, rank, world, **options) for rank in range(world)]
    return [finish(process, timeout) for process in processes]


def run_in(lab, host, command, timeout=300):
    """What it prints, and its status."""
    process = lab.popen(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process.communicate(timeout=timeout)[0], process.returncode


def ping(lab, *arguments):
    """Returns when as many answers have come as `-c` says; a box that is stopped answers late."""
    out, code = run_in(lab, 0, ["ping", "-w", "60", *arguments])
    assert code == 0 and (" 0% packet loss" in out or not FULL), out


def wait_until(condition, timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.05)
