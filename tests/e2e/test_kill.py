"""Workers killed with -9 in the middle of full traffic on UDP and on vhost-user: 12 kills, and 100
in the full tier.

Each kill takes one worker of a job of two while a bystander job of two runs on: the appliance
lives, the bystanders' sums stay exact, and the survivor's job ends with the dead rank's name.
"""

import os
import random
import signal
import time

import pytest
from lab import Lab, missing
from tiers import FULL
from workers import BUILD, finish, start, wait_joined

ROUNDS = 50 if FULL else 6  # on each of the two kinds of port


def kill_rounds(lab, addresses, rounds, hosts):
    """`addresses`: where each of six workers connects, four victims and two bystanders. Two jobs
    of victims at a time: most of a round is waiting for the appliance to miss the dead."""
    draw = random.Random(7)
    begin = time.monotonic()
    bystanders, beside, late = [], 0, []

    def start_job(job, index, first, **options):
        return [start(lab, hosts[first + rank], addresses[first + rank], rank, 2, job=job,
                      run_id=index, **options) for rank in range(2)]

    for index in range(0, rounds, 2):
        if not bystanders or bystanders[0].poll() is not None:
            for worker in bystanders:
                report = finish(worker)
                assert report["exit"] == 0, report
            bystanders = start_job(f"calm{index}", index, 4, steps=800, pause_ms=10, elems=20_000)
            for worker in bystanders:
                wait_joined(worker)
        jobs = [start_job(f"victim{first}", index, first, steps=100_000, elems=40_000)
                for first in (0, 2)]
        for worker in [*jobs[0], *jobs[1]]:
            wait_joined(worker)
        kills = []
        for job in jobs:
            time.sleep(draw.uniform(0.02, 0.25))
            kills.append((draw.randrange(2), time.monotonic()))
            beside += all(worker.poll() is None for worker in bystanders)
            os.killpg(job[kills[-1][0]].pid, signal.SIGKILL)
        for job, (dead, killed) in zip(jobs, kills, strict=True):
            report = finish(job[1 - dead], timeout=300)
            assert report["exit"] == 3 and f"rank {dead}" in report["error"], (index, report)
            noticed_s = time.monotonic() - killed
            late += [(index, noticed_s)] if noticed_s >= 5 else []
            finish(job[dead])
    for worker in bystanders:
        report = finish(worker)
        assert report["exit"] == 0, report
    if FULL:
        assert len(late) <= rounds // 10, f"noticed after more than 5 s: {late}"  # if it stalls
    assert beside >= rounds // 2, f"bystanders ran beside only {beside} of {rounds} kills"
    print(f"{rounds} kills, {beside} beside a running job, in {time.monotonic() - begin:.0f} s")


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_udp_workers_killed_in_full_traffic():
    with Lab(hosts=4) as lab:
        box = lab.start_appliance(BUILD)
        kill_rounds(lab, [lab.url] * 6, ROUNDS, [0, 1, 0, 1, 2, 3])
        assert box.poll() is None


def test_vhost_user_workers_killed_in_full_traffic(tmp_path):
    from vhost_box import VhostBox

    with VhostBox(tmp_path, ports=6) as box:
        kill_rounds(None, [box.url(port) for port in range(6)], ROUNDS, [None] * 6)
        assert box.process.poll() is None
