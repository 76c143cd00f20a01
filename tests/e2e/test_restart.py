"""The appliance is killed with -9 and started again, while PyTorch ranks train through it over UDP.

The parameters at the end are, to the bit, those of a training that nothing disturbed.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lab import Lab, metric, missing
from stragglers import SLOW, WORLD_SIZE, Training, fixed, identical
from test_errors import fails
from workers import BUILD, finish, read_line, start, wait_joined, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROOT = Path(__file__).resolve().parents[2]
RANKS, STEPS = 3, 40
KILLED_AFTER = (7, 21)  # steps of rank 0, which waits there: the others are in the next step


def kill(box):
    os.killpg(box.pid, signal.SIGKILL)
    box.wait()


def await_members(lab, count, standby=False):
    """Until the box, which was started last, has so many."""
    wait_until(lambda: metric(lab.scrape(standby=standby), "sluice_job_members") == count, 300,
               f"{count} members")


def start_training(lab, how, waits_after=(), env=None, ranks=RANKS):
    library = os.environ.get("SLUICE_LIBRARY", BUILD.resolve() / "client" / "libsluice.so")
    given = env or {}
    env = {"SLUICE_ADDRESS": lab.url, "SLUICE_SECRET": "lab", "WORLD_SIZE": str(ranks),
           "SLUICE_RUN_ID": f"{how}-{len(lab._processes)}", "SLUICE_LIBRARY": str(library),
           "PYTHONPATH": str(ROOT / "client" / "python"), "OMP_NUM_THREADS": "1",
           "MASTER_ADDR": lab.address(0), "MASTER_PORT": str(29500 + len(lab._processes)),
           "GLOO_SOCKET_IFNAME": "eth0", **given}
    command = ["/usr/bin/python3", "-u", str(Path(__file__).with_name("restart_worker.py")), how,
               str(STEPS), *map(str, waits_after)]
    return [lab.popen(rank, command, env={**env, "RANK": str(rank)}, stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(ranks)]


def kill_in_the_middle(lab, box, ranks):
    """After each step of KILLED_AFTER."""
    for step in KILLED_AFTER:
        while int(read_line(ranks[0]) or STEPS) < step:
            pass
        kill(box)
        ranks[0].stdin.write("\n")
        ranks[0].stdin.flush()
        box = lab.start_appliance(BUILD)


def end_training(ranks):
    reports = []
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, f"rank {rank} ended with {process.returncode}:\n{err}"
        reports.append(json.loads(out.splitlines()[-1]))
    return reports


@pytest.mark.parametrize("how", ["attach", pytest.param("overlap", marks=pytest.mark.full)])
def test_a_training_goes_on_with_the_same_bits(how):
    pytest.importorskip("torch")
    with Lab(hosts=RANKS) as lab:
        box = lab.start_appliance(BUILD)
        undisturbed = end_training(start_training(lab, "attach"))
        assert len({one["digest"] for one in undisturbed}) == 1, undisturbed
        assert all(one["restarts"] == 0 for one in undisturbed), undisturbed
        ranks = start_training(lab, how, KILLED_AFTER)
        kill_in_the_middle(lab, box, ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] == len(KILLED_AFTER) for one in survived), survived


# Of two ranks, whose sum has the same bits in either order: a group's sums have no order of ranks.
def test_a_training_over_the_backend_goes_on_with_the_same_bits():
    pytest.importorskip("torch")
    with Lab(hosts=2) as lab:
        box = lab.start_appliance(BUILD)
        undisturbed = end_training(start_training(lab, "backend", ranks=2))
        assert len({one["digest"] for one in undisturbed}) == 1, undisturbed
        ranks = start_training(lab, "backend", KILLED_AFTER, ranks=2)
        kill_in_the_middle(lab, box, ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] == len(KILLED_AFTER) for one in survived), survived


@pytest.mark.parametrize("late", [pytest.param("drop", marks=pytest.mark.full), "requeue"])
def test_the_fastest_6_of_8_ranks_go_on_with_identical_replicas(late):
    pytest.importorskip("torch")
    with Lab(hosts=WORLD_SIZE) as lab:
        box = lab.start_appliance(BUILD)
        with Training(lab, late, 0.3, fixed(6, late), slow=True, build=BUILD) as training:
            for steps in (5, 4):
                training.await_steps_more(steps)
                kill(box)
                box = lab.start_appliance(BUILD)
                await_members(lab, WORLD_SIZE)
            training.await_steps_more(5)
            ends = training.finish()
            print(*ends, sep="\n")  # pytest shows it when a test fails
            assert identical(ends)
            assert all(end["restarts"] == 2 for end in ends)
            assert ends[SLOW]["late_chunks"] > 0


def test_an_appliance_that_is_stopped_in_order_is_waited_for_as_well():
    with Lab(hosts=2) as lab:
        box = lab.start_appliance(BUILD)
        workers = [start(lab, rank, lab.url, rank, 2, steps=2000, elems=5000, pause_ms=1)
                   for rank in range(2)]
        for worker in workers:
            wait_joined(worker)
        box.terminate()
        assert box.wait(300) == 0
        lab.start_appliance(BUILD)
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_an_appliance_that_stands_still_for_10_s_declares_nobody_dead():
    with Lab(hosts=2) as lab:
        box = lab.start_appliance(BUILD, lab.config(member_timeout_s=3))
        workers = [start(lab, rank, lab.url, rank, 2, steps=2000, elems=5000, pause_ms=1)
                   for rank in range(2)]
        for worker in workers:
            wait_joined(worker)
        os.killpg(box.pid, signal.SIGSTOP)
        time.sleep(10)
        os.killpg(box.pid, signal.SIGCONT)
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_an_appliance_that_does_not_come_back_ends_the_job_by_name():
    with Lab(hosts=2) as lab:
        box = lab.start_appliance(BUILD)
        workers = [start(lab, rank, lab.url, rank, 2, steps=100000, elems=5000, restart_ms=6000)
                   for rank in range(2)]
        for worker in workers:
            wait_joined(worker)
        kill(box)
        for worker in workers:
            report = finish(worker)
            fails(report, "10.77.0.1:7700", "restart_timeout", "silent for 6", status="unreachable")
