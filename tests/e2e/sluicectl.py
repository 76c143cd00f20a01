"""Runs the real sluicectl against a box of a test."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "dataplane" / "ops" / "sluicectl"


class Sluicectl:
    """The tool, for the box with the control socket `path`."""

    def __init__(self, path: Path):
        self.path = path

    def config(self, extra: str = "") -> str:
        """The [control] table for the box."""
        return f'[control]\nsocket = "{self.path}"\n{extra}\n'

    def run(self, *words) -> subprocess.CompletedProcess:
        return subprocess.run(
            ["/usr/bin/python3", str(TOOL), "--socket", str(self.path), *map(str, words)],
            capture_output=True, text=True, timeout=300, check=False)

    def ask(self, *words) -> dict:
        """The box's answer."""
        done = self.run("--json", *words)
        assert done.stdout, done.stderr
        answer = json.loads(done.stdout)
        assert done.returncode == (0 if answer["ok"] else 1), answer
        return answer

    def table(self, *words) -> list[str]:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()
