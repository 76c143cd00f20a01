"""The experiment's own properties: programs, prediction, bands, multicast, tables, and one lab."""
import os
import random
import tomllib

import pytest

pytest.importorskip("matplotlib")

from papers import paper  # noqa: E402
from papers.switch_priority import experiment, fluid, models  # noqa: E402
from papers.switch_priority import multicast, page, programs, replay, tables  # noqa: E402


def small_model(sizes=(1e6, 4e6, 2e6), compute_s=0.3):
    layers = tuple(models.Layer(f"l{i}", int(size), compute_s / 9, compute_s * 2 / 9)
                   for i, size in enumerate(sizes))
    return models.Model("small", layers, sum(sizes) * 8 / models.LINK_BPS, compute_s)


def step_s(model, policy_name):
    policy = programs.POLICIES[policy_name]
    return fluid.Fluid(model, policy, replay.band_count(policy)).step_s()


# ---- what is published ----

def test_six_transfers_fit_into_every_published_step():
    for name in models.MODELS:
        assert models.compute_s(name) > 0


def test_the_inference_leaves_room_for_every_published_gain_and_explains_four_of_five():
    below = {name: (1 + models.PUBLISHED[name].gain) / (1 + models.bound(name))
             for name in models.MODELS}
    assert all(ratio < 1 for ratio in below.values())
    assert [name for name, ratio in below.items() if ratio < 0.85] == ["mobilenet_v1"]


def test_layers_hold_all_bytes_and_all_compute_of_the_trace():
    for name in models.MODELS + (models.COMPUTE_BOUND,):
        model = models.load(name, 1)
        assert model.bytes * 8 / models.LINK_BPS == pytest.approx(model.transfer_s)
        computed = sum(layer.forward_s + layer.backward_s for layer in model.layers)
        assert computed == pytest.approx(model.compute_s)
        scaled = models.load(name, 40)
        assert scaled.bytes * 40 == pytest.approx(model.bytes, rel=0.001)
        assert scaled.compute_s == model.compute_s


def test_bands_follow_forward_order_and_have_about_equal_bytes():
    layers = models.load("resnet50", 1).layers
    bands = models.bands(layers, 7)
    assert bands == sorted(bands) and set(bands) == set(range(7))
    sizes = [sum(layer.bytes for layer, band in zip(layers, bands) if band == i) for i in range(7)]
    assert max(sizes) - min(sizes) <= 2 * max(layer.bytes for layer in layers)
    assert models.bands(layers, 1) == [0] * len(layers)


# ---- the prediction, where it can be worked out by hand ----

def test_fifo_takes_six_transfers_and_the_compute():
    model = small_model()
    assert step_s(model, "fifo") == pytest.approx(6 * model.transfer_s + model.compute_s)


def test_worker_priority_reaches_the_bound():
    model = small_model(compute_s=0.05)
    assert step_s(model, "worker") == pytest.approx(4 * model.transfer_s + model.compute_s)


def test_worker_priority_by_rules_reaches_it_too():
    model = small_model(compute_s=0.05)
    assert step_s(model, "worker_rules") == pytest.approx(4 * model.transfer_s + model.compute_s)


def test_one_copy_for_all_saves_two_transfers():
    model = small_model()
    assert step_s(model, "multicast_pull") == pytest.approx(
        4 * model.transfer_s + model.compute_s)


def test_layer_order_hides_compute_and_no_transfer_under_a_barrier():
    model = small_model(compute_s=0.01)
    at_least = 6 * model.transfer_s
    assert at_least < step_s(model, "layer") < at_least + model.compute_s


def test_without_a_barrier_both_directions_are_busy_at_once():
    model = models.load("resnet50", 1)
    assert (3 * model.transfer_s < step_s(model, "layer_no_barrier")
            < step_s(model, "fifo_no_barrier") < step_s(model, "layer"))


def test_a_guaranteed_share_delays_the_worker_whose_turn_is_last():
    model = small_model(compute_s=0.05)
    policy = programs.POLICIES["worker"]
    strict = 4 * model.transfer_s + model.compute_s
    shared = fluid.Fluid(model, policy, 1, 1.0, 1 / 32).step_s()
    # The second worker has its model a little later, and still pushes when the last one begins.
    assert strict < shared < strict + 3 * model.transfer_s / 31


def test_a_step_that_is_all_compute_gains_nothing():
    model = small_model(compute_s=100.0)
    for policy in programs.POLICIES:
        assert step_s(model, policy) == pytest.approx(model.compute_s, rel=0.01)


# ---- the programs ----

def test_the_server_waits_for_every_gradient_under_the_barrier():
    server = programs.Server(programs.POLICIES["fifo"], 2, 3, steps=2)
    assert server.start() == [0, 1]
    assert [server.gradient(layer) for layer in (1, 0, 1, 0, 1)] == [[]] * 5
    assert server.gradient(0) == [0, 1]
    for layer in (0, 0, 0, 1, 1, 1):
        assert server.gradient(layer) == []
    assert server.done


def test_the_server_sends_a_layer_when_it_is_updated_without_the_barrier():
    server = programs.Server(programs.POLICIES["layer_no_barrier"], 2, 2, steps=2)
    assert [server.gradient(layer) for layer in (1, 1, 0)] == [[], [1], []]
    assert server.finished_steps == 0
    assert server.gradient(0) == [0]
    assert server.finished_steps == 1
    assert [server.gradient(layer) for layer in (1, 1, 0, 0)] == [[]] * 4
    assert server.done


def test_a_worker_computes_in_order_and_only_what_it_has():
    worker = programs.Worker(programs.POLICIES["layer"], [1.0, 2.0], [3.0, 4.0])
    worker.parameters(1, 0.0)
    assert worker.advance(5.0) == [] and worker.wake_at is None
    worker.parameters(0, 10.0)
    assert worker.advance(10.0) == [] and worker.wake_at == 11.0
    assert worker.advance(17.0) == [1]      # 10 + 1 + 2, then layer 1 backward until 17
    assert worker.advance(100.0) == [0] and worker.step == 1


def test_a_worker_without_overlap_sends_nothing_before_its_pass_has_ended():
    worker = programs.Worker(programs.POLICIES["fifo"], [1.0, 2.0], [3.0, 4.0])
    worker.parameters(0, 0.0)
    assert worker.advance(50.0) == [] and worker.wake_at is None
    worker.parameters(1, 50.0)
    assert worker.advance(56.0) == []
    assert worker.advance(60.0) == [1, 0]


def test_every_worker_is_first_once_in_as_many_steps():
    turns = [[programs.turn(worker, step, 3) for worker in range(3)] for step in range(3)]
    assert all(sorted(each) == [0, 1, 2] for each in turns)
    assert all(sorted(each) == [0, 1, 2] for each in zip(*turns))


def test_policies_differ_in_the_class_of_their_traffic():
    of = {name: {replay.precedence(policy, band, worker, 0, 3)
                 for band in range(replay.band_count(policy)) for worker in range(3)}
          for name, policy in programs.POLICIES.items()}
    assert of["fifo"] == of["fifo_no_barrier"] == of["multicast_pull"] == {0}
    assert of["worker_rules"] == {0}  # its hosts mark nothing
    assert of["worker"] == set(replay.TURN_PRECEDENCES)
    assert of["layer"] == of["layer_no_barrier"] == set(replay.BAND_PRECEDENCES)
    assert replay.streams.ACK_PRECEDENCE not in of["worker"] | of["layer"]


# ---- multicast ----

def test_every_receiver_gets_everything_whatever_is_lost():
    for seed in range(30):
        draw = random.Random(seed)
        sender, count, now = multicast.SendWindow(3, 8), 50, 0.0
        receivers = [multicast.ReceiveWindow(count) for _ in range(3)]
        sender.begin(count, now)
        while not sender.done:
            assert now < 60, f"seed {seed}"
            while (choice := sender.take()) is not None:
                for index, receiver in enumerate(receivers):
                    if draw.random() < 0.9:
                        receiver.data(choice[0])
                        sender.feedback(index, receiver.through, receiver.lacks, now)
            now += 0.05
            sender.check(now)
        assert all(receiver.complete for receiver in receivers)


def test_the_sender_stays_a_window_ahead_of_the_slowest_receiver():
    sender = multicast.SendWindow(2, 4)
    sender.begin(10, 0.0)
    assert [sender.take()[0] for _ in range(4)] == [0, 1, 2, 3]
    sender.feedback(0, 4, multicast.NOTHING_LACKS, 0.0)
    assert sender.take() is None
    sender.feedback(1, 1, multicast.NOTHING_LACKS, 0.0)
    assert sender.take() == (4, False) and sender.take() is None
    sender.feedback(1, 1, 1, 0.0)
    sender.feedback(1, 1, 1, 0.01)  # asked for again too soon
    assert sender.take() == (1, True) and sender.take() is None


# ---- records and the page ----

def made_records():
    """What a lab would say that is 5 % slower than the prediction."""
    records = {}
    for repetition in range(3):
        for model in models.MODELS + (models.COMPUTE_BOUND,):
            for policy in experiment.NAMES:
                slow = 1.05 + 0.001 * repetition
                name = experiment.key(model, policy, repetition)
                records[name] = {
                    "key": name, "step_s": [slow * tables.predicted_s(model, policy)] * 2,
                    "retransmits": 0, "busy": 20.0, "own_busy": 10.0, "drops": {},
                    "queues": {"sw0.trunk": [1000, 2000], "w0": [10, 20]},
                    "timeline": [[1.0, 1.1, 2.0]] * 3}
    return records


def test_figures_are_those_of_worker_priority_and_the_least_of_rules_and_of_aggregation():
    results = tables.Results(made_records())
    figures = tables.figures(results)
    assert set(figures) == {"alexnet", "googlenet", "inception_v3", "mobilenet", "resnet50",
                            "rules_min", "aggregation_min"}
    assert figures["mobilenet"] == pytest.approx(1 + models.bound("mobilenet_v1"))
    assert figures["rules_min"] == pytest.approx(figures["mobilenet"])
    assert figures["aggregation_min"] == pytest.approx(
        min(tables.predicted_ratio(model, "aggregation") for model in models.MODELS))


def test_records_become_a_page(tmp_path):
    (tmp_path / "README.md").write_text(
        "before\n" + paper.BEGIN + "old\n" + paper.END + "after\n")
    page.write(tables.Results(made_records()), str(tmp_path))
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "resnet50" in text
    for name in ("gains.png", "timeline.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_run_that_is_in_the_file_is_not_run_again(tmp_path, monkeypatch):
    runs = []

    class Fake:
        def __init__(self, *unit):
            runs.append(unit[:2])

        def record(self):
            return {"step_s": [1.0], "busy": 0.0}

    monkeypatch.setattr(experiment, "Run", Fake)
    path = str(tmp_path / "results.jsonl")
    todo = experiment.units(("resnet50",), ("fifo", "worker"), 2)
    assert len(experiment.run(todo[:3], path, labs=1)) == 3
    with open(path, "a", encoding="ascii") as file:
        file.write('{"key":"resnet50/worker/1","step')  # cut off in the middle
    assert set(experiment.run(todo, path, labs=1)) == {experiment.key(*unit) for unit in todo}
    assert set(paper.load(path)) == {experiment.key(*unit) for unit in todo}
    assert len(runs) == 4


# ---- the lab ----

def test_the_example_s_rules_put_the_workers_into_three_classes_in_order():
    from papers.switch_priority import topology
    rules = tomllib.loads(topology.example_rules())["rule"]
    assert [rule["prefix"] for rule in rules] == [f"{topology.address(worker)}/32"
                                                  for worker in topology.WORKERS]
    classes = [rule["class"] for rule in rules]
    assert classes == sorted(set(classes))
    for switch in topology.SWITCHES:
        config = topology.Topology(40, topology.example_rules()).config(switch)
        assert tomllib.loads(config)["rule"] == rules
        assert "rule" not in tomllib.loads(topology.Topology(40).config(switch))


def test_two_switches_carry_steps_that_are_no_faster_than_their_links():
    from papers.switch_priority import topology
    reason = topology.lab.missing()
    if reason:
        pytest.skip(reason)
    if not os.access(os.path.join(os.environ.get("SLUICE_BUILD", "build"), "dataplane", "sluiced"),
                     os.X_OK):
        pytest.skip("sluiced is not built")
    record = experiment.Run("googlenet", "worker", 2).record()
    model = models.load("googlenet", experiment.SCALE)
    assert len(record["step_s"]) == 2
    # No shaper lets more through than its rate, however busy this machine is.
    assert min(record["step_s"]) > 0.95 * (4 * model.transfer_s + model.compute_s)
    assert record["drops"] == {}
