"""The files for those who run a box: alerts and their runbook, the service unit."""

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest
from vhost_box import VhostBox

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "config" / "deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text()
NAMES = re.findall(r"^ +- alert: (\w+)$", ALERTS, re.M)
RUNBOOK = (ROOT / "docs" / "operating.md").read_text()

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None,
                                    reason="promtool is not installed (apt install prometheus)")


@needs_promtool
def test_every_alert_fires_for_its_cause_and_is_silent_otherwise():
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True,
                              timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = (DEPLOY / "alerts_test.yml").read_text()
    for name in NAMES:
        assert re.search(rf"alertname: {name}\b[^}}]*\n +eval_time", tested), f"{name}: never fires"
        assert f"{{alertname: {name}, eval_time:" in tested, f"{name}: never silent"


def test_every_alert_has_an_entry_in_the_runbook_and_every_entry_an_alert():
    assert len(NAMES) == len(set(NAMES)) >= 9
    assert re.findall(r"^### (Sluice\w+)$", RUNBOOK, re.M) == NAMES
    for name in NAMES:
        assert f"runbook: docs/operating.md#{name.lower()}\n" in ALERTS


def test_every_metric_that_an_alert_reads_is_on_the_page(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with VhostBox(tmp_path, ports=1, metrics=f'[metrics]\naddress = "127.0.0.1:{port}"'):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=300) as answer:
            page = answer.read().decode()
    families = set(re.findall(r"^# TYPE (\w+)", page, re.M))
    expressions = re.sub(r"^ +(#|summary:|runbook:|- name:).*$", "", ALERTS, flags=re.M)
    names = set(re.findall(r"\bsluice_\w+", expressions))
    assert len(names) > 10
    assert names <= families, names - families
    for reason in re.findall(r'reason=~?"([^"]+)"', expressions):
        for one in reason.split("|"):
            assert f'reason="{one}"' in page, one


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_unit_gives_away_little():
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--json=short",
         str(DEPLOY / "sluiced.service")],
        capture_output=True, text=True, timeout=300, check=False)
    open_doors = [row["name"] for row in json.loads(done.stdout) if row.get("exposure")]
    assert done.returncode == 0, open_doors
