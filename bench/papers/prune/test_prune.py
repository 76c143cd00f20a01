"""The experiment's counts, against figures worked out by hand; a few steps of it."""
import os

import pytest

import report
from papers.prune import group, settings

np = pytest.importorskip("numpy")
pytest.importorskip("torch")

needs_library = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), group.LIBRARY)),
    reason="bench_prune_group is not built")
pytestmark = needs_library

FRAME = 24 + 14 + 20 + 8  # around a datagram
CONTRIBUTION, SPARSE_HEAD = 16 + 12 + 22, 16
COUNT = 4096


def one(workers, rule):
    return group.Group(workers, [(COUNT, False), (10, True)], rule)


def test_what_left_and_what_stayed_is_all_there_was():
    draw = np.random.default_rng(1)
    some = one(4, settings.STATIC1)
    total, delivered = np.zeros(COUNT + 10), np.zeros(COUNT + 10)
    for _step in range(50):
        rows = draw.integers(-50, 50, (4, COUNT + 10)).astype(np.float32)
        total += rows.sum(axis=0)
        mean, done = some.step(rows)
        delivered += 4 * mean
    assert 4 * COUNT * 0.009 < done.left < 4 * COUNT * 0.02  # ties leave together
    # Thrice what leaves in a step is the most that an element can be behind.
    nothing = np.zeros((4, COUNT + 10), dtype=np.float32)
    for _step in range(2000):
        mean, done = some.step(nothing)
        delivered += 4 * mean
        if done.left == 0:
            break
    np.testing.assert_array_equal(delivered, total)


def test_without_feedback_what_stays_is_lost():
    rows = np.ones((2, COUNT + 10), dtype=np.float32)
    rows[:, 0] = 9
    some = one(2, settings.Rule("static", fraction=1e-4, feedback=False))
    for _step in range(3):
        mean, done = some.step(rows)
        assert done.left == 2 and mean[0] == 9 and not mean[1:COUNT].any() and mean[COUNT] == 1


def test_bytes_of_a_dense_and_of_a_sparse_step():
    dense, sparse = one(2, settings.DENSE), one(2, settings.Rule("static", fraction=1e-4))
    rows = np.zeros((2, COUNT + 10), dtype=np.float32)
    rows[0, 5], rows[1, 4000] = 3, 4
    chunk = 1344  # what 1,500 bytes carry, as IPv6, in multiples of 64
    chunks = -(-4 * COUNT // chunk)
    around = FRAME + CONTRIBUTION
    _mean, done = dense.step(rows)
    assert done.up_bytes == 2 * (4 * COUNT + 40 + (chunks + 1) * around)
    _mean, done = sparse.step(rows)
    # Whole chunks, the tensor's last one, which is shorter, and the dense tensor; one entry.
    entry = 2 + 2 + 4
    assert done.up_bytes == 2 * (2 * (around + SPARSE_HEAD) + entry + around + 40)
    assert done.left == 2


def test_a_few_steps_learn_and_the_literal_rule_falls_silent():
    from papers.prune import training
    runs = {rule.name: training.train(rule, 1000, steps=30)
            for rule in (settings.DENSE, settings.STATIC1, settings.RAW)}
    assert runs["static"]["accuracies"][-1] > 0.6 and runs["off"]["accuracies"][-1] > 0.6
    assert runs["off"]["up_bytes"][-1] > 20 * runs["static"]["up_bytes"][-1]
    assert runs["dynamic_raw"]["densities"][0] > 10 * runs["dynamic_raw"]["densities"][-1]
    assert 0 < runs["static"]["threshold_ns"] < runs["static"]["compute_ns"]


def test_time_is_computing_thresholds_and_the_busier_way():
    link = "100 Mb/s"
    both = settings.step_s(1e6, 1e6, 0, link)
    assert both == settings.step_s(1e6, 5e5, 0, link) == settings.step_s(0, 1e6, 0, link)
    whole = settings.PARAMETERS * 4
    assert settings.step_s(whole, whole, 0.25, link) == pytest.approx(
        settings.COMPUTE_S + 0.25 + settings.STANDS_FOR_PARAMETERS * 32 / 100e6)


def test_a_threshold_takes_what_it_was_measured_for_as_many_elements():
    from papers.prune import training
    record = {"steps": [10], "up_bytes": [0], "down_bytes": [0], "threshold_ns": 1_000_000}
    ratio = settings.STANDS_FOR_PARAMETERS / settings.PARAMETERS
    assert training.seconds(record, "1 Gb/s") == pytest.approx(
        [10 * (settings.COMPUTE_S + 1e-3 * ratio)])
    assert training.seconds(record, "1 Gb/s", 0) == pytest.approx([10 * settings.COMPUTE_S])
