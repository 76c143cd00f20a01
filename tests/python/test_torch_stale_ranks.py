"""StaleSynchronous over vhost-user, where a rank's link loses packets: with bound 0 parameters are,
update by update, those of a synchronous training that one process computes for all ranks.
"""

import pytest
from ranks import run

pytest.importorskip("torch")

import stale_reference  # noqa: E402

RANKS = 4
STEPS = 100


def against_a_reference(rank, ranks, steps):
    from stale_reference import outcomes
    return outcomes(rank, ranks, steps)


def test_bound_0_is_the_synchronous_training_update_by_update(lossy_appliance, tmp_path):
    values = run(against_a_reference, RANKS, tmp_path, box=lossy_appliance, timeout_s=300,
                 arguments={"ranks": RANKS, "steps": STEPS})
    stale_reference.check(values)
    again = sum(found["retransmissions"] for found in values[RANKS - 1].values())
    assert again > 0, "its link loses packets"
