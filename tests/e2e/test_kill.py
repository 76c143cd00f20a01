"""Workers killed with -9 in the middle of full traffic, 100 times over, on UDP and on vhost-user.

Each round kills one worker of a job of two while a bystander job of two runs on: the appliance
lives, the bystanders' sums stay exact, and the survivor's job ends with the dead rank's name.
"""

import os
import random
import signal
import time

import pytest
from lab import Lab, missing
from workers import BUILD, finish, start, wait_joined

ROUNDS = int(os.environ.get("SLUICE_KILL_ROUNDS", "50"))  # on each of the two kinds of port


def kill_rounds(lab, addresses, rounds, hosts):
    """`addresses`: where each of four workers connects; 0 and 1 are victims, 2 and 3 bystanders."""
    draw = random.Random(7)
    begin = time.monotonic()
    bystanders, beside = [], 0
    for index in range(rounds):
        if not bystanders or bystanders[0].poll() is not None:
            for worker in bystanders:
                report = finish(worker)
                assert report["exit"] == 0, report
            bystanders = [
                start(
                    lab,
                    hosts[2 + rank],
                    addresses[2 + rank],
                    rank,
                    2,
                    job=f"calm{index}",
                    steps=300,
                    pause_ms=10,
                    elems=20_000,
                    run_id=index,
                )
                for rank in range(2)
            ]
            for worker in bystanders:
                wait_joined(worker)
        victims = [
            start(
                lab,
                hosts[rank],
                addresses[rank],
                rank,
                2,
                job="victim",
                steps=100_000,
                elems=40_000,
                run_id=index,
            )
            for rank in range(2)
        ]
        for worker in victims:
            wait_joined(worker)
        time.sleep(draw.uniform(0.02, 0.25))
        dead = draw.randrange(2)
        beside += all(worker.poll() is None for worker in bystanders)
        os.killpg(victims[dead].pid, signal.SIGKILL)
        killed = time.monotonic()
        report = finish(victims[1 - dead], timeout=15)
        assert report["exit"] == 3 and f"rank {dead}" in report["error"], (index, report)
        assert (
            time.monotonic() - killed < 5
        ), f"round {index}: noticed after {time.monotonic() - killed:.1f} s"
        finish(victims[dead])
    for worker in bystanders:
        report = finish(worker)
        assert report["exit"] == 0, report
    assert beside >= rounds // 2, f"bystanders ran beside only {beside} of {rounds} kills"
    print(f"{rounds} rounds, {beside} beside a running job, in {time.monotonic() - begin:.0f} s")


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_udp_workers_killed_in_full_traffic():
    with Lab(hosts=4) as lab:
        box = lab.start_appliance(BUILD)
        kill_rounds(lab, [lab.url] * 4, ROUNDS, range(4))
        assert box.poll() is None


def test_vhost_user_workers_killed_in_full_traffic(tmp_path):
    from vhost_box import VhostBox

    with VhostBox(tmp_path, ports=4) as box:
        kill_rounds(None, [box.url(port) for port in range(4)], ROUNDS, [None] * 4)
        assert box.process.poll() is None
