"""Jobs of a process share its vhost-user socket, and come and leave; another process is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tiers import within
from vhost_box import VhostBox
from workers import BUILD, finish, start, wait_joined

SCRIPT = Path(__file__).with_name("vhost_jobs.py")
RATE_MBPS = 40  # of each port


def run(mode, box):
    environment = {**os.environ, "SLUICE_PLUGIN_DIR": str(BUILD / "client"),
                   "SLUICE_LIBRARY": str(BUILD / "client" / "libsluice.so")}
    ranks = [subprocess.Popen([sys.executable, "-B", str(SCRIPT), mode, box.url(rank), str(rank)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) for rank in range(2)]
    reports = []
    for rank in ranks:
        try:
            out, err = rank.communicate(timeout=300)
        finally:
            rank.kill()
        assert rank.returncode == 0, err[-3000:]
        reports.append(json.loads(out))
    return reports


def test_jobs_with_other_tensors_come_and_leave_while_one_goes_on_and_all_sums_are_exact(tmp_path):
    with VhostBox(tmp_path, ports=2) as box:
        for report in run("long", box):
            assert report["exact"], report
            assert report["steps"] > 40, report
        # The last of a process gives the socket free for another process.
        again = [start(None, None, box.url(rank), rank, 2, job="again", steps=5) for rank in (0, 1)]
        for worker in again:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_an_urgent_job_overtakes_a_big_one_at_the_same_socket(tmp_path):
    with VhostBox(tmp_path, ports=2, port_extra=f"rate_mbps = {RATE_MBPS}") as box:
        for report in run("urgent", box):
            assert report["exact"], report
            # 4 MB of results at the rate of the port; ten urgent sums meanwhile, each long before.
            assert report["bulk_s"] > 0.7 * 4e6 * 8 / (RATE_MBPS * 1e6), report
            assert report["urgent_s"][5] < report["bulk_s"], report
            within(report["urgent_s"][5], report["bulk_s"] / 10, report)


def test_frames_of_an_mtu_of_9000_fit_the_workers_buffers(tmp_path):
    with VhostBox(tmp_path, ports=2, port_extra="mtu = 9000") as box:
        for report in run("jumbo", box):
            assert report["exact"], report
            assert report["chunk_bytes"] > 8000, report


def test_a_second_process_is_refused_with_the_place_and_a_remedy(tmp_path):
    with VhostBox(tmp_path, ports=2) as box:
        having = [start(None, None, box.url(rank), rank, 2, steps=100, pause_ms=20)
                  for rank in (0, 1)]
        for worker in having:
            wait_joined(worker)
        second = finish(start(None, None, box.url(0), 0, 1, job="second"))
        assert second["exit"] == 3, second
        assert str(tmp_path / "port0.sock") in second["error"], second
        assert "each process needs one of its own" in second["error"], second
        for worker in having:
            report = finish(worker)
            assert report["exit"] == 0, report
