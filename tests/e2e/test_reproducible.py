"""Sums in the order of ranks through a real appliance: the same bits over any links.

The gradients are rounded at every addition. A worker compares every element of a sum with its own
sum in the order of ranks.
"""

import pytest
from lab import Lab, missing
from workers import BUILD, finish, run_all, start

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

RANKS = 4
SIZES = {"steps": 4, "tensors": 3, "elems": 30_000, "inexact": True}


def faults(seed):
    return {"rx_drop": 0.02, "tx_drop": 0.02, "duplicate": 0.02, "reorder": 0.1, "seed": seed}


def hashes(seed, jobs="", shards=1, **options):
    """What each rank got, over links that lose and delay other packets with each seed."""
    with Lab(hosts=RANKS) as lab:
        config = lab.config(fault=faults(seed), extra=jobs)
        lab.start_appliance(
            BUILD, config.replace("[appliance]", f"[appliance]\nshards = {shards}")
        )
        reports = run_all(lab, lab.url, RANKS, **SIZES, **options)
    for report in reports:
        assert report["exit"] == 0, report
    assert sum(report["retransmissions"] for report in reports) > 0
    return {report["sums_hash"] for report in reports}


def test_other_losses_and_delays_and_shards_give_the_same_bits():
    first = hashes(seed=11, reproducible=True)
    assert len(first) == 1
    assert hashes(seed=97, shards=2, reproducible=True) == first


def test_the_configuration_may_ask_for_them_under_a_jobs_name():
    asked = hashes(seed=5, jobs='[[job]]\nname = "e2e"\nreproducible = true\n')
    assert len(asked) == 1


def test_without_them_the_order_of_arrival_shows_in_the_bits():
    with Lab(hosts=RANKS) as lab:
        lab.start_appliance(BUILD, lab.config(fault=faults(11)))
        reports = run_all(lab, lab.url, RANKS, **SIZES)
    assert all(report["exit"] == 4 for report in reports), "the gradients prove nothing"


def test_refused_for_k_less_than_n_and_where_memory_does_not_carry_it():
    with Lab(hosts=1) as lab:
        lab.start_appliance(BUILD, lab.config(limits="job_memory_mib = 8"))

        def refusal(**options):
            report = finish(start(lab, 0, lab.url, 0, RANKS, **options))
            assert report["exit"] == 3 and report["call"] == "join", report
            return report["error"]

        error = refusal(k=2, reproducible=True)
        assert "policy fixed and the rank asks for reproducible sums, but with k < n = 4" in error
        # 2.3 MiB of gradients: two steps of them take less than 8 MiB, with three more ranks not.
        size = {"tensors": 1, "elems": 600_000}
        error = refusal(reproducible=True, **size)
        assert "needs 13 MiB (7 of them to sum 4 ranks in their order: reproducible)" in error
        assert "a job may have 8 MiB: raise limits.job_memory_mib to 13" in error
        alone = refusal(join_timeout_ms=1500, **size)
        assert "MiB" not in alone, alone  # it waits for the other ranks
