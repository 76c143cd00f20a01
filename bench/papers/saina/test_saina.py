"""The experiment's own properties, on short runs of the small network over digits."""
import datetime

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
pytest.importorskip("tqdm")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)

import report  # noqa: E402
from papers import paper  # noqa: E402
from papers.saina import bench, experiment, models, page, redo, stragglers  # noqa: E402
from papers.saina import switch, tables, tasks, training, tuned, tuned_tables  # noqa: E402
from sluice import _torch_share  # noqa: E402

STEPS = 12


@pytest.fixture(scope="module", name="task")
def digits():
    return tasks.load("digits", 0)


def play(task, policy, setting="jitter", steps=STEPS):
    run = training.Run(models.Network("small"), task, setting, policy, 0, 0.1)
    ks = []
    for _ in range(steps):
        ks.append(run.switch.k)
        run.complete_step()
    return run, ks


def test_a_worker_s_gradient_is_that_of_its_own_batch_and_parameters(task):
    for name in experiment.ARCHITECTURES:
        network = models.Network(name)
        rows = torch.stack([network.initial(seed) for seed in range(3)])
        indices = torch.arange(24).reshape(8, 3)
        together = network.gradients(rows, task.train_images[indices], task.train_labels[indices])
        for worker in range(3):
            mine = indices[:, worker:worker + 1]
            alone = network.gradients(rows[worker:worker + 1], task.train_images[mine],
                                      task.train_labels[mine])
            assert torch.allclose(together[worker], alone[0], atol=1e-6)


def test_sync_is_plain_sgd_on_the_concatenated_batch(task):
    run, ks = play(task, {"kind": "sync", "late": "drop"}, steps=5)
    assert ks == [training.WORKERS] * 5
    network = models.Network("small")
    shards = tasks.Shards(task, training.WORKERS, training.BATCH, False, 0)
    parameters = network.initial(0)
    for step in range(1, 6):
        batch = [index for rank in range(training.WORKERS) for index in shards.next_batch(rank)]
        images = task.train_images[batch].unsqueeze(1)
        gradient = network.gradients(parameters.unsqueeze(0), images,
                                     task.train_labels[batch].unsqueeze(1))[0]
        parameters = parameters - 0.1 * min(1, step / training.WARM_UP_STEPS) * gradient
    assert torch.allclose(run.parameters, parameters, atol=1e-5)
    assert run.history.lost == run.history.requeued == 0


def test_drop_loses_the_late_gradients_and_counts_none_of_another_step(task):
    run, ks = play(task, {"kind": "fixed", "k": 4, "late": "drop"})
    assert ks == [16, 16] + [4] * (STEPS - 2)
    assert run.history.lost > 0 and run.history.requeued == 0
    assert sum(run.history.included) == sum(ks)


def test_requeue_loses_nothing(task):
    run, ks = play(task, {"kind": "fixed", "k": 4, "late": "requeue"})
    history = run.history
    assert history.lost == 0 and history.requeued > 0
    assert sum(history.included) == sum(ks)
    # Every gradient that was begun has counted, but for the one that each worker computes now.
    begun = sum(run.shards.drawn)
    assert begun == sum(history.included) + training.WORKERS


def test_the_switch_refuses_a_late_gradient_where_late_ones_are_dropped(task):
    run, _ = play(task, {"kind": "fixed", "k": 4, "late": "drop"}, steps=4)
    gradient = run.network.initial(0).numpy()
    with pytest.raises(switch.SwitchError):
        run.switch.contribute(0, run.step - 1, run.step, run.now_us, gradient)


def test_dropped_persistent_stragglers_count_in_the_full_steps_only(task):
    run, _ = play(task, {"kind": "fixed", "k": 8, "late": "drop"}, "persistent")
    assert [run.history.included[rank] for rank in stragglers.SLOW_RANKS] == [2, 2]
    synchronous, _ = play(task, {"kind": "sync", "late": "drop"}, "persistent")
    assert synchronous.now_us > 2 * run.now_us


def test_the_clock_raises_k_blindly(task):
    _, ks = play(task, {"kind": "clock", "late": "requeue", "k": 1, "clock_steps": 5})
    assert ks == [16, 16, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3]


def test_the_published_rule_decides_at_the_end_of_a_round_only(task):
    # Every comparison of two rounds counts (s_th = 0), so k grows by one each round but the first.
    _, ks = play(task, {"kind": "saina", "late": "drop", "k": 1, "s_th_permille": 0, "c_th": 1,
                        "round_steps": 4, "sign_stride": 32})
    assert ks == [16, 16, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]


def test_a_run_repeats_itself(task):
    first, _ = play(task, {"kind": "goodput", "late": "requeue"})
    again, _ = play(task, {"kind": "goodput", "late": "requeue"})
    assert torch.equal(first.parameters, again.parameters) and first.now_us == again.now_us
    assert first.switch.phi > 0


def test_skewed_shards_differ_in_their_labels_and_keep_every_sample(task):
    def common(skewed):
        shards = tasks.Shards(task, 16, 32, skewed, 0)
        counts = [task.train_labels[part].bincount(minlength=10).max() for part in shards.parts]
        assert sorted(i for part in shards.parts for i in part) == list(range(1280))
        return float(sum(counts)) / 1280
    assert common(True) > 0.45 > 0.3 > common(False)


def test_the_time_to_a_target_is_between_the_evaluations_around_it():
    history = training.History(steps=[10, 20, 30], seconds=[1.0, 2.0, 3.0],
                               accuracies=[0.3, 0.5, 0.7])
    assert history.smoothed() == pytest.approx([0.3, 0.4, 0.5])
    assert training.time_to(history, 0.45) == pytest.approx(2.5)
    assert training.time_to(history, 0.6) is None


def test_a_reduction_counts_a_run_that_never_arrived_as_zero():
    records = {}
    for seed, tta in ((0, 50.0), (1, None)):
        for scheme, seconds in ((experiment.SYNC, 100.0), ("k=8", tta)):
            key = experiment.key("generated", seed, "large", 32, "jitter", scheme)
            records[key] = {"key": key, "tta_s": seconds, "final": 0.9}
    assert tables.Results(records, (0, 1)).reductions("large", "k=8") == [2.0, 0.0]


def test_a_scheme_s_name_is_the_switch_s_options():
    assert experiment.policy_of("k=8") == {"kind": "fixed", "k": 8, "late": "drop"}
    assert experiment.policy_of("k=16") == {"kind": "sync", "late": "drop"}
    assert experiment.policy_of(experiment.saina(3, 400, 0)) == {
        "kind": "saina", "k": 1, "sign_stride": 32, "round_steps": 3, "s_th_permille": 400,
        "c_th": 0, "late": "drop"}


def test_the_small_task_s_epoch_is_one_round_of_those_shown():
    images = len(tasks.load(experiment.SMALL_TASK, 0).train_labels)
    assert images == experiment.SHOWN * training.WORKERS * training.BATCH


def test_seeds_that_judge_chose_nothing():
    chose = {*tuned.MORE_SEEDS, *tuned.TUNING_SEEDS, *range(200, 206)}
    assert not chose & {*experiment.SEEDS, *tuned.FRESH_SEEDS}


@pytest.fixture(name="short")
def short_runs(monkeypatch):
    monkeypatch.setattr(experiment, "TASK", "digits")
    monkeypatch.setattr(experiment, "SEEDS", (0,))
    monkeypatch.setattr(experiment, "PLANNED_STEPS", 20)
    monkeypatch.setattr(experiment, "MOST_STEPS", 20)
    monkeypatch.setattr(experiment, "EVALUATE_STEPS", 10)
    unit = experiment.Unit("digits", 0, "small", 32, "jitter", ("k=8", experiment.saina()))
    monkeypatch.setattr(experiment, "units", lambda: [unit])


def test_records_become_a_page_and_are_not_run_twice(short, monkeypatch, tmp_path):
    path = str(tmp_path / "results.jsonl")
    experiment.run(path)
    records = paper.load(path)
    assert len(records) == 3
    monkeypatch.setattr(training, "train", None)
    experiment.run(path)
    sync = records[experiment.key("digits", 0, "small", 32, "jitter", experiment.SYNC)]
    assert len(sync["ks"]) == 2 and sync["tta_s"] <= sync["seconds"][-1]
    (tmp_path / "README.md").write_text(
        "before\n" + paper.BEGIN + "of before\n" + paper.END + "after\n")
    page.write(records, str(tmp_path))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "of before" not in text
    assert f"| {100 * sync['final']:.1f}, 1.00 |" in text
    assert (tmp_path / "curves.png").stat().st_size > 5_000


# ---- runs of today ----

KEYS = [f"run {number}" for number in range(900)]
DAY = datetime.date(2026, 11, 29)


def test_the_day_draws_each_key_once_in_thirty_days():
    days = [redo.draw(KEYS, DAY + datetime.timedelta(days), most=None) for days in range(30)]
    assert sorted(key for drawn in days for key in drawn) == sorted(KEYS)
    assert min(map(len, days)) > 0
    assert redo.draw(KEYS, DAY, most=None) == redo.draw(KEYS[::-1], DAY, most=None)


def test_a_capped_draw_is_a_part_of_the_day_s_and_another_one_thirty_days_later():
    later = DAY + datetime.timedelta(30)
    whole = redo.draw(KEYS, DAY, most=None)
    assert sorted(redo.draw(KEYS, later, most=None)) == sorted(whole)
    assert redo.draw(KEYS, DAY, most=5) == whole[:5] != redo.draw(KEYS, later, most=5)


def test_a_judged_run_comes_out_again_and_one_that_does_not_is_named(short, tmp_path, capsys):
    path = str(tmp_path / "results.jsonl")
    experiment.run(path)
    records = paper.load(path)
    keys = redo.judged(records)
    assert set(keys) == set(records)
    fresh = {key: redo.play(key, redo.needed(records)) for key in keys}
    assert redo.compare(fresh, records) == [] and capsys.readouterr().out == ""
    key = experiment.key("digits", 0, "small", 32, "jitter", experiment.saina())
    slower = dict(records[key], tta_s=1.25)
    assert redo.compare(fresh, {**records, key: slower}) == [key]
    assert f"{key}: tta_s differ" in capsys.readouterr().out


def test_every_column_of_the_records_is_judged_but_those_of_tuning():
    records = paper.load(f"{bench.HERE}/{paper.RECORDS}")
    rest = set(records) - set(redo.judged(records)) - {redo.NUMERICS}
    seeds = {key.split("/")[-2] for key in rest}
    assert seeds == {str(seed) for seed in tuned.TUNING_SEEDS}


# ---- tuned rates ----

WORLD = tuned.World("digits", "small", 16, "sgd")


@pytest.mark.parametrize("name, make", [
    ("sgd", lambda p: torch.optim.SGD(p, lr=0.1)),
    ("momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    ("adam", lambda p: torch.optim.Adam(p, lr=0.1))])
def test_the_optimizers_are_torch_s_in_the_product_s_loop(name, make):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    theirs, mine, ours = make([parameter]), parameter.detach().clone(), tuned.Optimizer(name)
    place, = _torch_share.places([theirs], None, "world")
    for step, share in enumerate((1.0, 1.0, 0.25, 0.75, 0.5)):
        gradient = torch.linspace(-2, 3, 7) * (step + 1)
        parameter.grad = gradient if _torch_share.in_rate(place) else share * gradient
        with _torch_share.around(place, theirs, share):
            theirs.step()
        mine = ours.apply(mine, gradient, 0.1, share)
    assert torch.allclose(mine, parameter, atol=1e-6)


def test_a_step_of_k_counts_as_its_share(task):
    trial = tuned.Trial(WORLD, "jitter", *tuned.GOODPUT, "time", 0, 0.2)
    run = tuned.Run(models.Network("small"), task, trial)
    shares = []
    for _ in range(STEPS):
        before, k = run.parameters, run.switch.k
        run.complete_step()
        shares.append(run.switch.share)
        assert shares[-1] == k / 16
        rate = 0.2 * min(1, sum(shares) / training.WARM_UP_STEPS)
        moved = (before - run.parameters) / (rate * shares[-1])
        assert torch.allclose(moved, torch.from_numpy(run.switch.result()[3]), atol=1e-3)
    assert run.progress == pytest.approx(sum(shares)) and min(shares) < 1


def test_tuning_climbs_until_both_neighbours_are_worse(monkeypatch):
    monkeypatch.setattr(tuned, "TUNING_SEEDS", (1,))
    bench, tried = tuned.Bench({}, None), []

    def run(trial):
        tried.append(trial.rate)
        return {"tta_s": None if trial.rate > 4 else abs(trial.rate - 2.1)}

    monkeypatch.setattr(bench, "run", run)
    found = bench.tune(WORLD, "none", "sync", "drop", 0.3)
    assert found == pytest.approx(0.3 * 1.5 ** 5)  # 2.28; its neighbours are 1.52 and 3.42
    assert found * 1.5 in map(pytest.approx, tried) and found / 1.5 in map(pytest.approx, tried)


def test_a_rate_that_never_arrives_is_no_tuned_rate(monkeypatch):
    bench = tuned.Bench({}, None)
    monkeypatch.setattr(bench, "run", lambda trial: {"tta_s": None})
    with pytest.raises(report.BenchError, match="digits/small/16/sgd/sync: no rate near 0.3"):
        bench.tune(WORLD, "none", "sync", "drop", 0.3)


def test_steps_of_ramp_count_as_they_are_or_by_their_share():
    task, found = tasks.digits(3), []
    for scheme, mode in tuned.RAMPS:
        trial = tuned.Trial(WORLD, "jitter", scheme, mode, "time", 0, 0.2)
        run = tuned.Run(models.Network("small"), task, trial)
        for _ in range(4):  # two of them are k = n
            before, k = run.parameters, run.switch.k
            run.complete_step()
        moved = (before - run.parameters) / (0.2 * run.progress / training.WARM_UP_STEPS)
        mean = torch.from_numpy(run.switch.result()[3])
        found.append((k, (moved.dot(mean) / mean.dot(mean)).item()))
        run.switch.close()
    (k, by_share), (other_k, as_it_is) = found
    assert k == other_k < 16 and by_share == pytest.approx(k / 16, abs=1e-2)
    assert as_it_is == pytest.approx(1, abs=1e-2)


def test_trials_at_tuned_rates_repeat_themselves_and_are_not_run_twice(monkeypatch):
    monkeypatch.setattr(tuned, "EQUAL_PROGRESS", 4)
    trial = tuned.Trial(WORLD, "stalls", *tuned.GOODPUT, "equal", 0, 0.2)
    written = []
    bench = tuned.Bench({}, written.append)
    assert bench.run(trial) is bench.run(trial) and len(written) == 1
    assert tuned.Bench({}, written.append).run(trial) == written[0]


def test_the_best_fixed_k_is_the_fastest_over_the_seeds(monkeypatch):
    monkeypatch.setattr(tuned, "load_rates", lambda: {
        tuned.rate_key(WORLD, "none", *which): 1.0 for which in (tuned.SYNC, *tuned.FIXED)})
    monkeypatch.setattr(tuned, "MORE_SEEDS", (0, 1, 2))
    seconds = {(("k=12", "requeue"), seed): 80 for seed in (0, 1, 2)}
    seconds[("k=8", "requeue"), 0] = 40
    records = {}
    for which in (tuned.SYNC, *tuned.FIXED):
        for seed in (0, 1, 2):
            key = tuned.key(tuned.Trial(WORLD, "none", *which, "time", seed, 1.0))
            records[key] = {"key": key, "tta_s": seconds.get((which, seed), 100)}
    assert tuned_tables.Tuned(records).best_fixed(WORLD, "none") == (("k=12", "requeue"), 1.25)


def test_equal_samples_are_judged_where_somebody_is_late():
    results = tuned_tables.Tuned(paper.load(f"{bench.HERE}/{paper.RECORDS}"))
    assert len(results.equal_ratios(tuned.PARTS[0].world, "none")) == len(tuned.SEEDS)
    figures = tuned_tables.figures(results)
    assert figures["equal_samples_min"] >= tuned_tables.GOALS["equal_samples_min"]


def test_the_committed_rates_cover_what_judges():
    rates = tuned.load_rates()
    for parts, _ in tuned.JUDGED:
        for part in parts:
            assert tuned.rate_key(part.world, None, *tuned.SYNC) in rates
            for setting, *which in tuned.own_rates(part):
                assert tuned.rate_key(part.world, setting, *which) in rates


def test_saina_goes_by_its_steps_at_its_own_rate_and_by_its_share_as_the_product_runs_it():
    found = {}
    for which in (tuned.SAINA_OWN, tuned.SAINA):
        trial = tuned.Trial(WORLD, "jitter", *which, "time", 0, 0.2)
        run = tuned.Run(models.Network("small"), tasks.digits(3), trial)
        for _ in range(STEPS):
            k = run.switch.k
            run.complete_step()
        found[which] = run.progress, run.most_progress
        assert k == 1
        run.switch.close()
    assert found[tuned.SAINA_OWN] == (STEPS, 2 * tuned.MOST_PROGRESS)
    # Two steps of all, ten of one of sixteen.
    assert found[tuned.SAINA] == (pytest.approx(2 + (STEPS - 2) / 16), tuned.MOST_PROGRESS)
