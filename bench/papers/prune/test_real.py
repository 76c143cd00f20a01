"""A few steps of real ranks have the result of virtual time, in one process and in a lab."""
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import report
from papers.prune import group, settings

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

SEED, WORKERS, STEPS, EVALUATE_STEPS = 1000, 2, 6, 2
NO_FEEDBACK = settings.Rule("static", feedback=False)
RULES = (settings.DENSE, settings.STATIC1, settings.SIGMA[2], NO_FEEDBACK)
PROGRAMS = {"group": group.LIBRARY, "client": "client/libsluice.so"}

pytestmark = pytest.mark.skipif(
    not all(os.path.exists(os.path.join(report.build_dir(), path)) for path in PROGRAMS.values()),
    reason="not built")


def virtual(rules, steps):
    from papers.prune import training
    return {rule.key: training.train(rule, SEED, steps) for rule in rules}


def record_of(said, trainees, rules, steps, found=()):
    from papers.prune import real
    copies = {rule.key: trainee.copies for rule, trainee in zip(rules, trainees)}
    return real.records("1 Gb/s", SEED, rules, steps, said, copies, dict(found))


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(settings, "WORKERS", WORKERS)
    monkeypatch.setattr(settings, "EVALUATE_STEPS", EVALUATE_STEPS)
    torch.set_num_threads(1)


def train_here(rules):
    """What ranks say, threads of this process over an in-process appliance, and their Trainees."""
    from papers.prune import real_worker

    def rank(number):
        carried = iter(range(10 ** 6))  # a byte a turn up, and down

        def port():
            at = next(carried)
            return at, 2 * at
        return real_worker.train(rules, SEED, STEPS, 0.0, number, WORKERS, port=port,
                                 address="inproc://prune-paper")
    with ThreadPoolExecutor(WORKERS) as pool:
        said, trainees = zip(*pool.map(rank, range(WORKERS)))
    return said, trainees[-1]


def test_real_ranks_come_to_what_virtual_time_comes_to(few):
    said, trainees = train_here(RULES)
    records = record_of(said, trainees, RULES, STEPS)
    by_key = virtual(RULES, STEPS)
    for rule, record in zip(RULES, records):
        assert record["steps"] == by_key[rule.key]["steps"] == [2, 4, 6]
        assert record["accuracies"] == pytest.approx(by_key[rule.key]["accuracies"], abs=0.02)
        assert record["up_bytes"] == [2, 4, 6] and record["down_bytes"] == [4, 8, 12]
        assert record["times"] == sorted(record["times"]) and record["times"][0] > 0
    assert len({rank["rules"][0]["parameters"] for rank in said}) == 1
    final = [trainee.copies[-1] for trainee in trainees]
    assert not any(np.array_equal(final[0], other) for other in final[1:])


def test_turns_share_out_the_time_and_ranks_that_disagree_are_found(few):
    rules = settings.PAIR
    # Two ranks; dense takes 3 s a step of the slower one, the top 1 % one second.
    ends = np.cumsum([0, *[3, 1] * STEPS])
    said = [{"turns": [[100.0 + end - (rank == 0 and end > 0) * 0.5, 10 * turn, 7 * turn]
                       for turn, end in enumerate(ends)],
             "rules": [{"late_s": 0.6, "retransmissions": rank, "parameters": "same"}
                       for _rule in rules]} for rank in range(2)]
    copies = {rule.key: [np.zeros(settings.PARAMETERS, dtype=np.float32)] * 3 for rule in rules}
    from papers.prune import real
    dense, pruned = real.records("1 Gb/s", SEED, rules, STEPS, said, copies, {"load": 1.0})
    scale = settings.lab_scale("1 Gb/s")
    assert dense["times"] == pytest.approx([6 / scale, 12 / scale, 18 / scale], abs=1e-3)
    assert pruned["times"] == pytest.approx([2 / scale, 4 / scale, 6 / scale], abs=1e-3)
    assert dense["step_ms"] == [3000] * 3 and dense["late_ms"] == 100 and dense["load"] == 1.0
    assert dense["up_bytes"] == [20, 40, 60] and dense["retransmissions"] == 1
    said[1]["rules"][1]["parameters"] = "other"
    with pytest.raises(report.BenchError, match="static 1 %: ranks have come to different"):
        real.records("1 Gb/s", SEED, rules, STEPS, said, copies, {})


def test_the_lab_keeps_the_ratio_of_computing_to_communication():
    for link, mbps in settings.LAB_RATES_MBPS.items():
        whole = settings.PARAMETERS * 4
        communication_s = settings.step_s(whole, whole, 0, link) - settings.COMPUTE_S
        in_lab_s = 8 * whole / (mbps * 1e6)
        computing_s = settings.COMPUTE_S * settings.lab_scale(link)
        assert in_lab_s / computing_s == pytest.approx(communication_s / settings.COMPUTE_S)


def test_a_record_makes_rows_of_the_table(few, monkeypatch):
    from papers.prune import lab_page, page
    monkeypatch.setattr(settings, "LAB_SEEDS", (SEED,))
    said, trainees = train_here(settings.PAIR)
    records = {record["key"]: record
               for record in record_of(said, trainees, settings.PAIR, STEPS)}
    results = page.Results(records)
    row = lab_page.row(results, "1 Gb/s", settings.STATIC1)
    assert len(row) == len(lab_page.HEADERS) and row[5] == "1.0" and row[6] == "-"
    records.update((one["key"], one) for one in virtual(settings.PAIR, STEPS).values())
    row = lab_page.row(results, "1 Gb/s", settings.STATIC1)
    assert row[5] == "1.0" and float(row[6]) > 10
    assert "| static 1 % |" in lab_page.text(results)
    assert lab_page.text(page.Results({})) == ""


def test_real_ranks_in_a_lab(monkeypatch):
    from papers.prune import real

    import lab
    if lab.missing():
        pytest.skip(lab.missing())
    if not os.path.exists(os.path.join(report.build_dir(), "dataplane", "sluiced")):
        pytest.skip("sluiced is not built")
    monkeypatch.setattr(settings, "WORKERS", WORKERS)
    steps = settings.EVALUATE_STEPS  # a rank's own processes know no other
    records = real.run("1 Gb/s", SEED, RULES, steps)
    by_key = virtual(RULES, steps)
    dense = records[0]
    for rule, record in zip(RULES, records):
        expected = by_key[rule.key]
        assert record["accuracies"] == pytest.approx(expected["accuracies"], abs=0.02)
        # Probes, feedback and joining are in the lab's.
        assert expected["up_bytes"][-1] <= record["up_bytes"][-1] < dense["up_bytes"][-1] * 1.05
        assert record["times"][-1] >= 0.9 * settings.COMPUTE_S * steps
    assert dense["up_bytes"][-1] > 10 * records[1]["up_bytes"][-1]
