"""Training over the store, a few steps of it: against sync, and within its bound."""
import os

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

import report  # noqa: E402
from papers.request_scheduling import store, training, training_tables  # noqa: E402
from papers.saina import switch, tuned  # noqa: E402

needs_store = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), store.LIBRARY)), reason="not built")
needs_switch = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), switch.LIBRARY)), reason="not built")

N = training.WORLD.workers


@pytest.fixture(scope="module")
def world():
    from papers.saina import models, tasks
    torch.set_num_threads(1)
    return models.Network("small"), tasks.load("generated", 100)


def trial(setting, scheme):
    return training.curve(setting, scheme, 100, 0.5)


@pytest.fixture
def start(world):
    runs = []

    def begin(setting, bound):
        runs.append(training.Run(*world, trial(setting, training.scheme_of(bound))))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


@needs_store
@needs_switch
def test_with_a_bound_of_0_it_is_sync(world, start):
    mine, sync = start("jitter", 0), tuned.Run(*world, trial("jitter", tuned.SYNC))
    for _step in range(4):
        sync.complete_step()
        for _push in range(N):
            mine.complete_step()
        assert (mine.now_us, mine.progress) == (sync.now_us, sync.progress)
        assert torch.allclose(mine.parameters, sync.parameters, rtol=1e-5, atol=1e-6)
    sync.close()
    assert set(mine.staleness) == {0}


@needs_store
def test_a_push_counts_one_nth_at_once_without_a_bound():
    layers, initial = [5, 3], np.arange(8, dtype=np.float32)
    kept = store.Store(2, None, layers, initial)
    try:
        assert sorted(kept.ready()) == [0, 1]
        assert kept.read(1).tolist() == initial.tolist()
        kept.push(0, 0.5, np.full(8, 4, dtype=np.float32))
        assert kept.parameters().tolist() == (initial - 1).tolist()
        assert list(kept.ready()) == [0] and kept.read(0).tolist() == (initial - 1).tolist()
        assert kept.read(1).tolist() == initial.tolist()  # it computes with these
        assert kept.staleness(0) == 1
    finally:
        kept.close()


@needs_store
def test_a_bound_of_1_lets_a_worker_be_two_pushes_ahead_and_no_more():
    kept = store.Store(2, 1, [4], np.zeros(4, dtype=np.float32))
    try:
        gradient = np.ones(4, dtype=np.float32)
        assert sorted(kept.ready()) == [0, 1]
        kept.push(0, 1.0, gradient)
        assert list(kept.ready()) == [0] and kept.staleness(0) == 1
        kept.push(0, 1.0, gradient)
        assert not list(kept.ready())
        with pytest.raises(store.StoreError):
            kept.push(0, 1.0, gradient)
        kept.push(1, 1.0, gradient)
        assert sorted(kept.ready()) == [0, 1]
        assert kept.read(0).tolist() == [-1.5] * 4
    finally:
        kept.close()


@needs_store
def test_slow_workers_hold_the_others_up_only_where_there_is_a_bound(start):
    bounded, free = start("persistent", 1), start("persistent", None)
    for _push in range(8 * N):
        bounded.complete_step()
        free.complete_step()
    assert bounded.waited_us > 0 and max(bounded.staleness) == 1
    assert free.waited_us == 0 and max(free.staleness) > 2
    assert free.now_us < bounded.now_us


@needs_store
@needs_switch
def test_a_record_makes_a_row_of_the_table(world, monkeypatch):
    monkeypatch.setattr(training, "MOST_PROGRESS", 10)
    schemes = {scheme: 0.5 for scheme in (tuned.SYNC, training.STORES[1])}
    played = [training.play(*world, trial("jitter", scheme), None) for scheme in schemes]
    results = training_tables.Training({record["key"]: record for record in played})
    monkeypatch.setattr(training, "SEEDS", (100,))
    monkeypatch.setattr(results, "rate", lambda _setting, scheme: schemes[scheme])
    monkeypatch.setattr(results, "target", lambda _seed: 0.0)
    row = training_tables.row(results, "jitter", training.STORES[1])
    assert len(row) == len(training_tables.HEADERS) and row[0] == "B = 1" and row[-1] == "0.9"
    assert float(row[3]) > 1
