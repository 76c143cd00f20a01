"""Integer gradients come back exactly equal on all workers, over links that lose packets."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from lab import Lab, missing
from workers import BUILD, run_all

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05, 0.20])
def test_sums_are_exact_at_loss_each_way_with_duplicates_and_reordering(loss):
    fault = {"rx_drop": loss, "tx_drop": loss, "duplicate": 0.02, "reorder": 0.02, "seed": 11}
    with Lab(hosts=4) as lab:
        lab.start_appliance(BUILD, lab.config(fault=fault if loss else None))
        reports = run_all(lab, lab.url, 4, steps=5, tensors=5, elems=60_000)
        for report in reports:
            assert report["exit"] == 0, report
        if loss:
            assert sum(report["retransmissions"] for report in reports) > 0


def test_two_jobs_share_the_appliance_without_touching_each_other():
    with Lab(hosts=4) as lab:
        lab.start_appliance(BUILD)
        from workers import finish, start

        processes = [
            start(
                lab,
                host,
                lab.url,
                host % 2,
                2,
                job=f"job{host // 2}",
                steps=10,
                elems=20_000,
                tensors=3 + host // 2,
            )
            for host in range(4)
        ]
        for process in processes:
            report = finish(process)
            assert report["exit"] == 0, report


def test_sums_are_exact_over_several_shards():
    with Lab(hosts=3) as lab:
        config = lab.config().replace("[appliance]", "[appliance]\nshards = 2")
        lab.start_appliance(BUILD, config)
        for report in run_all(lab, lab.url, 3, steps=5, tensors=4, elems=60_000):
            assert report["exit"] == 0, report


def test_sums_are_exact_with_busy_polling():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD, lab.config(polling="busy"))
        for report in run_all(lab, lab.url, 2, steps=5, tensors=4, elems=60_000):
            assert report["exit"] == 0, report
        naps = [line for line in lab.scrape().splitlines() if "sluice_lcore_naps_total{" in line]
        assert naps and all(line.endswith(" 0") for line in naps), naps


def test_sums_are_exact_over_ipv6():
    with Lab(hosts=4, ipv6=True) as lab:
        fault = {"rx_drop": 0.01, "tx_drop": 0.01, "duplicate": 0.02, "reorder": 0.02, "seed": 3}
        lab.start_appliance(BUILD, lab.config(fault=fault))
        for report in run_all(lab, lab.url6, 4, steps=20, tensors=5, elems=60_000):
            assert report["exit"] == 0, report


def test_sums_are_exact_over_af_xdp_ports():
    with Lab(hosts=2, pmd="af_xdp") as lab:
        try:
            lab.start_appliance(BUILD)
        except Exception as error:  # the kernel may lack AF_XDP: that is the only reason to skip
            if "xdp" in str(error).lower() and "not" in str(error).lower():
                pytest.skip(f"no AF_XDP here: {str(error).splitlines()[-1]}")
            raise
        for report in run_all(lab, lab.url, 2, steps=3, tensors=3, elems=30_000):
            assert report["exit"] == 0, report


def test_a_model_of_300_mb_in_jumbo_packets_needs_no_setting():
    with Lab(hosts=1, mtu=9000) as lab:
        lab.start_appliance(BUILD)
        for report in run_all(lab, lab.url, 1, mtu=9000, steps=1, tensors=1, elems=75_000_000):
            assert report["exit"] == 0, report
            assert report["packets_sent"] < 60_000, report  # chunks of 8,832 bytes, not of 1,344


PRUNED_CHUNKS = 150  # of 336 floats


def pruned_ranks(lab, options, steps, seconds):
    """A report of each rank of prune_worker.py, the arrays that it left in it."""
    np = pytest.importorskip("numpy")
    client = Path(__file__).resolve().parents[2] / "client" / "python"
    base = {"SLUICE_ADDRESS": lab.url, "SLUICE_JOB": "pruned", "SLUICE_SECRET": "lab",
            "SLUICE_RUN_ID": f"pruned-{time.monotonic_ns()}", "WORLD_SIZE": str(len(seconds)),
            "SLUICE_LIBRARY": os.environ.get("SLUICE_LIBRARY",
                                             str(BUILD / "client" / "libsluice.so")),
            "PYTHONPATH": str(client), "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank, each in enumerate(seconds):
        line = ["/usr/bin/python3", "-B", str(Path(__file__).with_name("prune_worker.py")),
                str(lab.directory / f"rank{rank}.npz"), str(steps), str(336 * PRUNED_CHUNKS),
                str(each), json.dumps(options)]
        ranks.append(lab.popen(rank, line, env={**base, "RANK": str(rank)}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    reports = []
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        with np.load(lab.directory / f"rank{rank}.npz") as kept:
            reports.append({**json.loads(out.splitlines()[-1]), **dict(kept)})
    return reports


@pytest.mark.parametrize("prune", [{"prune": "static", "prune_fraction": 0.02},
                                   {"prune": "dynamic"}], ids=lambda prune: prune["prune"])
@pytest.mark.parametrize("policy", [
    {}, {"policy": "fixed", "k": 2, "late": "drop"},
    {"policy": "fixed", "k": 2, "late": "requeue"}],
    ids=lambda policy: policy.get("late", "sync"))
def test_what_is_delivered_and_what_stays_are_the_pruned_gradients_at_loss(prune, policy):
    fault = {"rx_drop": 0.05, "tx_drop": 0.05, "duplicate": 0.02, "reorder": 0.02, "seed": 12}
    with Lab(hosts=3) as lab:
        lab.start_appliance(BUILD, lab.config(fault=fault))
        reports = pruned_ranks(lab, {**prune, **policy}, 12, [0.02, 0.02, 0.05 if policy else 0.02])
    assert sum(report["retransmissions"] for report in reports) > 0
    # The last late gradient may need a step more, which the others do not take.
    last = max(reports, key=lambda report: report["applied"])
    for report in reports:
        if report["applied"] == last["applied"]:
            assert (report["total"] == last["total"]).all()
        over = [report[f"{what}_chunks"] for what in ("delivered", "requeued", "kept",
                                                      "discarded")]
        assert sum(over) == report["submitted"] * PRUNED_CHUNKS, over
        assert report["residual"].any(), report
    if policy:
        assert reports[2]["late_chunks"] > 0, "nobody was late"
    # I8, element by element: small integers, so any order of addition gives the same. But for
    # chunks of a rank that fell behind, of which nobody knows what became: those are counted.
    told = last["total"] + sum(report["residual"] for report in reports)
    wrong = told != sum(report["given"] for report in reports)
    discarded = sum(report["discarded_chunks"] for report in reports)
    print(f"{discarded} chunks discarded, {reports[2]['late_chunks']} late")
    assert wrong.reshape(PRUNED_CHUNKS, -1).any(axis=1).sum() <= discarded
    assert policy or discarded == 0
