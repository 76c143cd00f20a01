"""PyTorch ranks that sleep, stop, die and return: all replicas end bit-identical; none waits."""

import pytest
from lab import Lab, missing
from stragglers import KILLED, SLOW, STOPPED, WORLD_SIZE, Training, eventful, fixed, identical
from workers import BUILD

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

STEP_SECONDS = 0.3


@pytest.mark.parametrize("late", ["drop", pytest.param("requeue", marks=pytest.mark.full)])
def test_replicas_are_identical_whatever_happens_to_three_of_eight_ranks(late):
    with Lab(hosts=WORLD_SIZE) as lab:
        lab.start_appliance(BUILD)
        with Training(lab, late, STEP_SECONDS, fixed(6, late), slow=True, build=BUILD) as training:
            ends = eventful(training)
            print(*ends, sep="\n")  # pytest shows it when a test fails
            assert identical(ends)
            assert ends[SLOW]["late_chunks"] > 0  # nobody waited; how long a step takes: the bench
            assert ends[STOPPED]["missed"] + ends[STOPPED]["resyncs"] > 0
            assert ends[KILLED]["resyncs"] >= 1
            assert all(end["batches"] > 0 for end in ends)


def test_a_rank_that_is_frozen_for_longer_than_the_member_timeout_comes_back():
    with Lab(hosts=WORLD_SIZE) as lab:
        lab.start_appliance(BUILD, lab.config(member_timeout_s=2))
        policy = fixed(6, "requeue")
        with Training(lab, "long", STEP_SECONDS, policy, slow=False, build=BUILD) as training:
            training.await_step(6)
            training.stop_for(STOPPED, 14)
            assert "fell silent" in (lab.directory / "sluiced.log").read_text()
            back = len(training.starts(STOPPED)) + 4
            training.await_true(lambda: len(training.starts(STOPPED)) >= back, "steps again", 300)
            ends = training.finish()
            print(*ends, sep="\n")  # pytest shows it when a test fails
            assert identical(ends)
            assert ends[STOPPED]["resyncs"] >= 1
