"""A job of 4 GiB of slots joins, and neither a busy nor an idle job beside it notices."""

import re
from pathlib import Path

import pytest
from tiers import within
from vhost_box import VhostBox
from workers import finish, start, wait_joined

NEEDED_GIB = 7  # of slots, twice 2 GiB for nobody's gradients, and the rest of the machine
BIG_ELEMS = 125_000_000  # of four tensors: two steps of 2 GB, as float32


def available_gib():
    text = Path("/proc/meminfo").read_text()
    return int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) / 2**20


@pytest.mark.skipif(available_gib() < NEEDED_GIB, reason=f"less than {NEEDED_GIB} GiB are free")
def test_a_job_of_4_gib_joins_and_no_other_job_notices(tmp_path):
    limits = "job_memory_mib = 6144\ntotal_memory_mib = 8192"
    with VhostBox(tmp_path, ports=6, limits=limits) as box:
        busy = [start(None, 0, box.url(rank), rank, 2, job="busy", steps=1500, pause_ms=5,
                      tensors=2, elems=2000) for rank in range(2)]
        idle = [start(None, 0, box.url(2 + rank), rank, 2, job="idle", steps=2, pause_ms=10_000,
                      elems=2000) for rank in range(2)]
        for process in busy + idle:
            wait_joined(process)
        big = [start(None, 0, box.url(4 + rank), rank, 2, job="big", steps=0, elems=BIG_ELEMS,
                     stall_report_ms=1000) for rank in range(2)]
        for report in [finish(process) for process in big]:
            assert report["ok"], report
            said = [text for text in report["stalls"] if "preparing the job's memory" in text]
            assert said and all("%" in text for text in said), report
        for report in [finish(process) for process in busy + idle]:
            assert report["ok"], report
            print(f"p99 {report['step_p99_ms']} ms, slowest {report['step_max_ms']} ms")
            within(report["step_p99_ms"] / 1e3, 0.2, report)
            within(report["step_max_ms"] / 1e3, 1.5, report)
