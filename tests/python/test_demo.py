"""The demonstration from end to end, and that interrupting it leaves nothing running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BUILD

for module in ("torch", "sklearn", "matplotlib", "tqdm"):
    pytest.importorskip(module)

_DEMO = [sys.executable, "-B", "-m", "sluice", "demo", "--build-dir", str(BUILD)]


@pytest.fixture(autouse=True)
def built(library):
    if not (BUILD / "dataplane" / "sluiced").exists():
        pytest.skip(f"{BUILD}/dataplane/sluiced is not built")


def descendants(pid):
    """Ids of the processes below pid, by /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def test_the_demonstration_reaches_gloos_accuracy_with_equal_replicas(tmp_path):
    done = subprocess.run(_DEMO, cwd=tmp_path, capture_output=True, text=True, timeout=600,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = re.fullmatch(
        r"RESULT demo accuracy=(\S+) gloo_accuracy=(\S+) ranks_identical=1 steps_per_s=(\S+) "
        r"gloo_steps_per_s=(\S+)", done.stdout.splitlines()[-1])
    assert result, done.stdout
    accuracy, gloo = float(result[1]), float(result[2])
    assert accuracy >= 0.95 and abs(accuracy - gloo) <= 0.01
    assert (tmp_path / "demo-out" / "loss.png").read_bytes().startswith(b"\x89PNG")
    events = json.loads((tmp_path / "demo-out" / "trace.json").read_text())
    steps = [event["args"] for event in events if event["name"].startswith("step ")]
    step = int(re.search(r"trace\.json, step (\d+);", done.stdout)[1])
    assert {one["step"] for one in steps} == {step}
    assert len(steps) == 4 * 13 and {one["k"] for one in steps} == {4}
    assert int(re.search(r"packets +(\d+)", done.stdout)[1]) > 10000
    models = re.findall(r"model of rank \d, sha256 +(\w+) +(\w+)", done.stdout)
    assert len(models) == 4 and len(set(models)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_it_in_the_middle_leaves_nothing_running(tmp_path, number):
    process = subprocess.Popen([*_DEMO, "--epochs", "2000"], cwd=tmp_path, stderr=subprocess.STDOUT,
                               stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 300
        children = set()
        while len(children) < 5 and time.monotonic() < deadline:  # sluiced and four workers
            time.sleep(0.2)
            children = descendants(process.pid)
        assert len(children) >= 5
        time.sleep(3)
        children |= descendants(process.pid)
        process.send_signal(number)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 128 + number, output
        assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    finally:
        process.kill()
        process.wait()


def test_a_missing_appliance_is_named_with_the_remedy(tmp_path):
    done = subprocess.run([*_DEMO[:-1], str(tmp_path)], cwd=tmp_path, capture_output=True,
                          text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"there is no sluiced at {tmp_path}" in done.stderr and "./run build" in done.stderr


def test_a_slow_rank_and_one_that_dies_hold_nobody_up(tmp_path):
    done = subprocess.run([*_DEMO, "--slow-rank", "2", "--kill", "3"], cwd=tmp_path, text=True,
                          capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a step is complete with 2 ranks" in done.stdout
    assert "rank 3 (pid " in done.stderr and "restarting it in 1 s (1 of 1)" in done.stderr
    assert "the training over Gloo ended: Gloo: rank 3 (pid " in done.stdout
    assert int(re.search(r"steps that rank 2 only applied +(\d+)", done.stdout)[1]) > 0
    models = re.findall(r"model of rank \d, sha256 +(\w+) +-", done.stdout)
    assert len(models) == 4 and len(set(models)) == 1


@pytest.mark.parametrize("options, words", [
    (["--kill", "4"], "--kill 4: must be 0..3 (--workers)"),
    (["--workers", "2", "--kill", "0", "--slow-rank", "1"], "give more --workers"),
])
def test_hindrances_that_cannot_be_are_explained(tmp_path, options, words):
    done = subprocess.run([*_DEMO, *options], cwd=tmp_path, capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 1
    assert words in done.stderr
