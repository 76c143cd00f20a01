"""Two appliances, a job that is at one of them, and PyTorch ranks that train through it over UDP.

The parameters at the end are, to the bit, those of a training that nothing disturbed.
"""

import os
import signal

import pytest
from lab import Lab, missing
from stragglers import SLOW, WORLD_SIZE, Training, fixed, identical
from test_errors import fails
from test_restart import (BUILD, RANKS, STEPS, await_members, end_training, kill, read_line,
                          start_training)
from test_store import Training as StoreTraining
from test_store import await_clock
from workers import finish, start

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

# The process group's own frames pass the second box, which lives on.
GROUP = {"MASTER_ADDR": "10.78.0.10", "GLOO_SOCKET_IFNAME": "eth1"}


def at_step(ranks, step):
    """Rank 0 has done that step, and waits; the others are in the next one."""
    while int(read_line(ranks[0]) or STEPS) < step:
        pass


def go_on(ranks):
    ranks[0].stdin.write("\n")
    ranks[0].stdin.flush()


def drain(box):
    """Returns once it has ended by itself."""
    os.killpg(box.pid, signal.SIGUSR1)
    assert box.wait(120) == 0


@pytest.mark.parametrize("how", ["attach", pytest.param("overlap", marks=pytest.mark.full)])
def test_a_training_goes_on_at_the_standby_with_the_same_bits(how):
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        box = lab.start_appliance(BUILD)
        lab.start_appliance(BUILD, standby=True)
        undisturbed = end_training(start_training(lab, "attach", env=GROUP))
        assert len({one["digest"] for one in undisturbed}) == 1, undisturbed
        ranks = start_training(lab, how, (7,), env=GROUP)
        at_step(ranks, 7)
        kill(box)
        go_on(ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] >= 1 for one in survived), survived


@pytest.mark.full
def test_a_box_that_was_left_and_goes_on_disturbs_nobody():
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        box = lab.start_appliance(BUILD)
        lab.start_appliance(BUILD, standby=True)
        undisturbed = end_training(start_training(lab, "attach", env=GROUP))
        ranks = start_training(lab, "attach", (7, 21), env=GROUP)
        at_step(ranks, 7)
        os.killpg(box.pid, signal.SIGSTOP)
        go_on(ranks)
        at_step(ranks, 21)  # at the other one
        os.killpg(box.pid, signal.SIGCONT)
        go_on(ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] >= 1 for one in survived), survived


@pytest.mark.full
def test_both_boxes_are_drained_and_started_again_one_after_the_other():
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        first = lab.start_appliance(BUILD)
        second = lab.start_appliance(BUILD, standby=True)
        undisturbed = end_training(start_training(lab, "attach", env=GROUP))
        ranks = start_training(lab, "attach", (7, 21), env=GROUP)
        at_step(ranks, 7)
        drain(first)
        log = (lab.directory / "sluiced.log").read_text()
        assert "drained: no worker is a member of any job" in log, log
        lab.start_appliance(BUILD)
        go_on(ranks)
        at_step(ranks, 21)
        drain(second)
        lab.start_appliance(BUILD, standby=True)
        go_on(ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] >= 2 for one in survived), survived


# Of two ranks, as in test_restart.py: a group's sums have no order of ranks.
def test_a_training_over_the_backend_moves_when_its_box_dies_and_when_the_other_is_drained():
    pytest.importorskip("torch")
    with Lab(hosts=2, standby=True) as lab:
        first = lab.start_appliance(BUILD)
        second = lab.start_appliance(BUILD, standby=True)
        undisturbed = end_training(start_training(lab, "backend", env=GROUP, ranks=2))
        assert len({one["digest"] for one in undisturbed}) == 1, undisturbed
        ranks = start_training(lab, "backend", (7, 21), env=GROUP, ranks=2)
        at_step(ranks, 7)
        kill(first)
        go_on(ranks)
        at_step(ranks, 21)
        lab.start_appliance(BUILD)
        drain(second)
        go_on(ranks)
        survived = end_training(ranks)
        assert {one["digest"] for one in survived} == {undisturbed[0]["digest"]}, survived
        assert all(one["restarts"] >= 2 for one in survived), survived


@pytest.mark.full
def test_the_fastest_6_of_8_ranks_move_with_identical_replicas():
    pytest.importorskip("torch")
    with Lab(hosts=WORLD_SIZE, standby=True) as lab:
        first = lab.start_appliance(BUILD)
        second = lab.start_appliance(BUILD, standby=True)
        with Training(lab, "requeue", 0.3, fixed(6, "requeue"), slow=True, build=BUILD) as training:
            training.await_steps_more(5)
            kill(first)
            await_members(lab, WORLD_SIZE, standby=True)
            training.await_steps_more(4)
            lab.start_appliance(BUILD)
            drain(second)
            training.await_steps_more(5)
            ends = training.finish()
            print(*ends, sep="\n")  # pytest shows it when a test fails
            assert identical(ends)
            assert all(end["restarts"] >= 2 for end in ends)
            assert ends[SLOW]["late_chunks"] > 0


def kill_then_drain(lab, training, first, second):
    """The box that the store is at, and then the one that it has moved to."""
    await_clock(lab, training.name, 10)
    kill(first)
    await_clock(lab, training.name, 30, standby=True)
    lab.start_appliance(BUILD)
    drain(second)
    (lab.directory / "go on").touch()
    return [training.report(rank) for rank in range(RANKS)]


def test_a_store_moves_when_its_box_is_killed_and_the_other_drained_with_the_same_bits_at_bound_0():
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        first = lab.start_appliance(BUILD)
        second = lab.start_appliance(BUILD, standby=True)
        undisturbed = StoreTraining(lab, "undisturbed", 0, "worker", 60)
        expected = [undisturbed.report(rank)["sha"] for rank in range(RANKS)]
        training = StoreTraining(lab, "moved", 0, "worker", 60, seconds=0.02,
                                 held_until=[lab.directory / "go on"])
        reports = kill_then_drain(lab, training, first, second)
        told = training.logs[0].read_text()
    assert [report["sha"] for report in reports] == expected
    assert all(report["restarts"] >= 2 for report in reports), reports
    assert "the job has moved here: the store goes on" in told, told


@pytest.mark.full
def test_a_store_within_a_bound_moves_when_its_box_is_killed_and_the_other_drained():
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        first = lab.start_appliance(BUILD)
        second = lab.start_appliance(BUILD, standby=True)
        training = StoreTraining(lab, "moved", 3, "worker", 60, seconds=0.02,
                                 held_until=[lab.directory / "go on"])
        reports = kill_then_drain(lab, training, first, second)
    assert len({report["sha"] for report in reports}) == 1
    assert all(report["loss"] < 1.2 and report["restarts"] >= 2 for report in reports), reports
    assert all(report["iterations"] == list(range(60)) for report in reports)


def test_a_job_that_cannot_move_is_refused_with_the_reason():
    with Lab(hosts=1, standby=True) as lab:
        worker = start(lab, 0, lab.url, 0, 3, steps=10, elems=100, restart_ms=0)
        fails(finish(worker), "without a restart_timeout a job does not move", "one address",
              status="invalid argument")


def test_ranks_that_list_the_boxes_in_other_orders_end_with_who_is_missing():
    with Lab(hosts=2, standby=True) as lab:
        lab.start_appliance(BUILD)
        lab.start_appliance(BUILD, standby=True)
        first, second = lab.url.removeprefix("udp://").split(",")
        workers = [start(lab, rank, f"udp://{address}", rank, 2, steps=10, elems=100,
                         join_timeout_ms=8000)
                   for rank, address in enumerate((f"{first},{second}", f"{second},{first}"))]
        for rank, worker in enumerate(workers):
            fails(finish(worker), f"rank {1 - rank}")
