"""A real Prometheus server scrapes a real run."""

import json
import shutil
import subprocess
import time
import urllib.parse

import pytest
from lab import Lab, missing
from workers import BUILD, finish, start, wait_joined

REASON = missing() or (
    None if shutil.which("prometheus") else "prometheus is not installed (apt install prometheus)"
)
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))

SCRAPE = """
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: sluice
    honor_labels: true  # `job` is the training job
    static_configs: [{targets: ['127.0.0.1:9464']}]
"""


def query(lab, expression: str) -> list[dict]:
    url = "http://127.0.0.1:9465/api/v1/query?query=" + urllib.parse.quote(expression)
    code = f"import urllib.request as u; print(u.urlopen({url!r}, timeout=300).read().decode())"
    done = lab.popen(
        None,
        ["/usr/bin/python3", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    out = done.communicate(timeout=300)[0]
    return json.loads(out)["data"]["result"] if out else []


def test_prometheus_sees_the_run():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)
        (lab.directory / "prometheus.yml").write_text(SCRAPE)
        lab.popen(
            None,
            [
                "prometheus",
                f"--config.file={lab.directory}/prometheus.yml",
                f"--storage.tsdb.path={lab.directory}/tsdb",
                "--web.listen-address=127.0.0.1:9465",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # Job series end with the job, so nothing starts before the server scrapes.
        patience = time.monotonic() + 300
        while not query(lab, "up == 1"):
            assert time.monotonic() < patience, "Prometheus does not scrape"
            time.sleep(0.2)
        workers = [
            start(lab, rank, lab.url, rank, 2, job="seen", steps=60, elems=40_000, pause_ms=150)
            for rank in range(2)
        ]
        for worker in workers:
            wait_joined(worker)
        deadline = time.monotonic() + 300
        # max_over_time: a scrape may miss the job's last moments, a query its last scrape.
        seen = "max_over_time({}[5m])".format
        expressions = {
            "packets per port": "sum by (port) (sluice_port_rx_packets_total) > 0",
            "contributions": seen('sluice_job_contributions_total{job="seen"}') + " > 0",
            "results": seen('sluice_job_results_total{job="seen"}') + " > 0",
            "members": seen('sluice_job_members{job="seen"}') + " == 2",
            "lag of each rank": "count("
            + seen('sluice_job_arrival_lag_seconds_count{job="seen"}')
            + ") == 2",
            "step duration": seen('sluice_job_step_duration_seconds_count{job="seen"}') + " > 0",
            "verdicts": 'sluice_packets_total{reason="folded"} > 0',
        }
        unseen = dict(expressions)
        while unseen and time.monotonic() < deadline:
            for name in list(unseen):
                if query(lab, unseen[name]):
                    del unseen[name]
            time.sleep(0.5)
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report
        assert not unseen, f"{unseen} not in:\n{lab.scrape()}"
