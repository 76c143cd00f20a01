"""The lab itself: what it leaves behind when it is ended early."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import lab

LAB = Path(lab.__file__)


def namespaces(pid: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()
            if line.startswith(f"sl{pid % 100000}x")]


@pytest.mark.parametrize("wait", ["built", "building"])
def test_a_lab_that_is_terminated_removes_its_namespaces(wait, tmp_path):
    reason = lab.missing()
    if reason:
        pytest.skip(reason)
    mark = tmp_path / "running"
    process = subprocess.Popen([sys.executable, str(LAB), "--hosts", "2", "--pmd", "bridge", "--",
                                "sh", "-c", f"touch {mark}; sleep 60"])
    deadline = time.monotonic() + 20
    while not (mark.exists() if wait == "built" else namespaces(process.pid)):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 128 + signal.SIGTERM
    left = namespaces(process.pid)
    for namespace in left:
        subprocess.run(["ip", "netns", "del", namespace], check=True)
    assert left == []
