"""Training over the store, a few steps of it: against sync, and within its bound."""
import os
from concurrent.futures import ThreadPoolExecutor

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

needs_library = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), "client", "libsluice.so")),
    reason="not built")

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
    assert len(row) == len(training_tables.HEADERS) and row[-1] == "0.9"
    assert float(row[0].split()[0]) > 1


# ---- real ranks ----

LIMIT_S = 1.5  # how long the ranks of a test train


def train_here(setting, scheme, rate, data, workers=2):
    """What ranks say, threads of this process over an in-process appliance; and their Trainees."""
    from papers.request_scheduling import real, real_worker
    trial = dict(real.trial_of(setting, scheme, 100, rate, 1), scale=0.02, limit_s=LIMIT_S)
    trainees = [real_worker.Trainee(trial, rank, workers, data) for rank in range(workers)]
    address = f"inproc://training-{trial['name']}"
    with ThreadPoolExecutor(workers) as pool:
        said = [pool.submit(real_worker.train, trainee, address=address, rank=rank,
                            world_size=workers) for rank, trainee in enumerate(trainees)]
        return [each.result(60) for each in said], trainees


@needs_library
@needs_switch
def test_real_ranks_that_sum_come_to_what_virtual_time_comes_to(world):
    two = training.WORLD._replace(workers=2)
    said, trainees = train_here("none", tuned.SYNC, 0.3, world[1])
    virtual = tuned.Run(*world, tuned.Trial(two, "none", *tuned.SYNC, "curve", 100, 0.3))
    for copy in trainees[1].copies[:8]:
        virtual.complete_step()
        assert np.allclose(copy, virtual.parameters.numpy(), rtol=1e-4, atol=1e-5)
    virtual.close()
    assert min(len(rank["applied"]) for rank in said) >= 8


@needs_library
def test_real_ranks_with_ramp_all_apply_every_step(world):
    said, trainees = train_here("jitter", training.RAMP, 0.3, world[1])
    steps = [[step for step, _at, _progress in rank["applied"]] for rank in said]
    assert steps[1] == list(range(1, len(steps[1]) + 1)) or said[1]["resyncs"]
    progress = {step: value for step, _at, value in said[0]["applied"]}
    assert all(progress.get(step, value) == value for step, _at, value in said[1]["applied"])
    assert 0.5 in np.diff([0.0, *progress.values()]) and len(trainees[1].copies) == len(steps[1])


@needs_library
@needs_store
def test_real_ranks_over_a_store_learn_within_the_bound(world):
    from papers.request_scheduling import real
    said, trainees = train_here("persistent", training.scheme_of(1), 0.3, world[1])
    assert max(max(map(int, rank["staleness"])) for rank in said) <= 1
    pushed = sorted(at for rank in said for at in rank["pushed_s"])
    history = real.History()
    copies = [(at, len(pushed), row) for at, row in zip(trainees[1].copied_s, trainees[1].copies)]
    assert real.evaluate(history, 5, *world, copies[-1:]) == 10
    assert history.accuracies[0] > 0.15  # of ten classes
