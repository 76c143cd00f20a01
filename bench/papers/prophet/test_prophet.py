"""The fluid model, the packet simulator and the settings, against figures worked out by hand."""
import math
import os

import pytest

import report
from papers import paper
from papers.prophet import fluid, settings, simulation, tables
from papers.prophet.settings import Policy, Setting, Tensor

PACKET = settings.CHUNK_BYTES
RATE_GBPS = PACKET * 8 / 1e6  # a packet a millisecond
# A model of two layers: the front one is urgent and comes 2 ms after the other.
FRONT, BACK = Tensor(4 * PACKET, 0.002, 0.005), Tensor(8 * PACKET, 0.0, 0.001)
SHORT = simulation.Variant("test", iterations=4, steady=2)

needs_program = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), simulation.PROGRAM)),
    reason="bench_prophet is not built")


def simulated_ms(tensors, policy, latency_ms=0.5, variant=SHORT, extra=()):
    said = simulation.play(tensors, RATE_GBPS, latency_ms, policy, variant, extra=extra)
    return [ns / 1e6 for ns in said["iteration_ns"]]


def fluid_ms(tensors, policy, latency_ms=0.5):
    return 1e3 * fluid.iteration_s(policy, tensors, RATE_GBPS, latency_ms)


def test_in_the_fluid_model_fifo_waits_for_the_front_and_strict_does_not():
    assert fluid_ms([FRONT, BACK], settings.FIFO) == pytest.approx(12.5 + 5 + 1)
    assert fluid_ms([FRONT, BACK], settings.STRICT) == pytest.approx(12.5 + 1)


def test_in_the_fluid_model_each_unit_of_stop_and_wait_costs_a_latency():
    policy = Policy("two packets a unit", "credit", 2 * PACKET, 1)
    # Six units of 2.5 ms; the last one belongs to the back layer, whose forward follows.
    assert fluid_ms([FRONT, BACK], policy) == pytest.approx(6 * 2.5 + 1)


@needs_program
@pytest.mark.parametrize("program", [simulation.PROGRAM, simulation.SESSION_PROGRAM])
def test_models_of_more_tensors_than_there_are_priorities_are_played(program):
    if not os.path.exists(os.path.join(report.build_dir(), program)):
        pytest.skip(f"{program} is not built")
    variant = simulation.Variant("many", iterations=2, steady=1, program=program)
    took_ms = simulated_ms([Tensor(PACKET, 0.0, 0.0)] * 300, settings.STRICT, variant=variant)
    assert took_ms[-1] == pytest.approx(300.5, rel=0.02)


@needs_program
def test_one_tensor_takes_ready_plus_wire_plus_latency_plus_forward():
    assert simulated_ms([Tensor(10 * PACKET, 0.001, 0.002)], settings.STRICT) == [13.5] * 4


@needs_program
@pytest.mark.parametrize("policy, expected_ms", [
    (settings.FIFO, 18.5), (settings.FIFO_EQUAL, 18.5), (settings.STRICT, 13.5),
    (Policy("two packets a unit", "credit", 2 * PACKET, 1), 16.0)])
def test_the_packets_go_as_the_fluid_does(policy, expected_ms):
    assert simulated_ms([FRONT, BACK], policy) == pytest.approx([expected_ms] * 4)
    assert fluid_ms([FRONT, BACK], policy) == pytest.approx(expected_ms)


@needs_program
def test_a_link_that_changes_its_rate_carries_the_next_iteration_at_that_rate():
    one = [Tensor(10 * PACKET, 0.001, 0.002)]
    halved = ["--change-after", "2", "--changed-rate-bps", str(round(RATE_GBPS * 1e9 / 2))]
    assert simulated_ms(one, settings.STRICT, extra=halved) == [13.5, 13.5, 23.5, 23.5]


@needs_program
def test_a_pull_that_is_stored_waits_for_all_of_its_piece():
    # Of 10 packets, whose sums come down for as long as they went up: 5 after 5, 10 after 10.
    one = [Tensor(10 * PACKET, 0.001, 0.002)]
    for stored, expected_ms in ((10, 22.5), (5, 17.5), (1, 13.5)):
        assert simulated_ms(one, settings.STRICT,
                            extra=["--store-bytes", str(stored * PACKET)]) == [expected_ms] * 4


@needs_program
def test_compute_and_the_busy_link_are_counted_an_iteration():
    said = simulation.play([FRONT, BACK], RATE_GBPS, 0.5, settings.STRICT, SHORT)
    assert said["compute_ns"] == [8e6] * 4  # backward 2 ms, forward 6
    assert said["link_busy_ns"] == pytest.approx([12e6] * 4)


@needs_program
def test_identical_workers_are_as_fast_as_one_and_jitter_makes_the_slowest_count():
    policy = settings.STRICT
    three = simulation.Variant("test", workers=3, iterations=4)
    assert simulated_ms([FRONT, BACK], policy, variant=three) == \
        simulated_ms([FRONT, BACK], policy)
    jittered = simulation.Variant("test", workers=3, jitter_permille=500, iterations=4)
    times = simulated_ms([Tensor(PACKET, 0.1, 0.1)], policy, variant=jittered)
    assert times == simulated_ms([Tensor(PACKET, 0.1, 0.1)], policy, variant=jittered)
    assert len(set(times)) == 4
    other = simulated_ms([Tensor(PACKET, 0.1, 0.1)], policy, variant=jittered,
                         extra=["--seed", "2"])
    assert other != times


def test_a_setting_is_network_bound_when_its_bytes_take_longer_than_its_compute():
    bound = {str(setting) for setting in settings.SETTINGS if setting.network_bound}
    assert bound == {f"{name} Gb/s, {latency} ms" for latency in ("0.02", "1")
                     for name in ("resnet50, 1", "resnet152, 1", "resnet152, 3",
                                  "inception_v3, 1", "inception_v3, 3", "vgg19, 1", "vgg19, 3",
                                  "bert_base, 1", "bert_base, 3")}
    assert Setting("resnet50", 3, 1).communication_s == pytest.approx(0.2726, abs=1e-4)
    assert Setting("resnet50", 3, 1).compute_s == pytest.approx(0.294)


def test_gradients_become_ready_in_groups_of_as_many_tensors_and_in_backward_order():
    ready = [tensor.ready_s for tensor in settings.tensors("resnet50")]
    assert [ready.count(at_s) for at_s in sorted(set(ready))] == [15] * 10 + [11]
    for model in settings.MODELS:
        ready = [tensor.ready_s for tensor in settings.tensors(model)]
        assert ready == sorted(ready, reverse=True)
        assert 9 <= len(set(ready)) <= settings.READY_GROUPS, model
        assert max(ready) == pytest.approx(settings.compute_s(model)[1])


def results_of_change(iterations_ms, known_ms):
    """Those of ResNet-50 from 3 to 1 Gb/s."""
    before, after = Setting("resnet50", 3, 1.0), Setting("resnet50", 1, 1.0)
    records = {simulation.key("main", after, "prophet"): {"iteration_ms": known_ms},
               simulation.key("main", after, "strict"): {"iteration_ms": 100.0},
               simulation.key(simulation.change_to(1).name, before, "prophet"):
                   {"iterations_ms": iterations_ms}}
    return tables.Results(records).learning(before, 1)


def test_prophet_has_learnt_when_its_time_stays_where_it_ends():
    assert results_of_change([130.0, 110.0, 110.0], 110.0) == (1, 1.3)
    assert results_of_change([110.0, 120.0, 110.0, 110.05], 110.0) == (2, 1.2)
    assert results_of_change([110.0, 110.0], 110.0) == (0, 1.1)
    assert results_of_change([130.0, 112.0, 112.0], 110.0) == (math.inf, 1.3)


def test_the_packed_records_repeat_themselves_where_only_the_end_is_kept():
    records = paper.load(os.path.join(os.path.dirname(__file__), paper.RECORDS))
    main = [record for record in records.values() if record["variant"] == simulation.MAIN.name]
    assert len(main) == len(settings.SETTINGS) * len(settings.POLICIES)
    for record in main:
        assert record["most_ms"] == pytest.approx(record["least_ms"], rel=1e-3), record["key"]


def test_a_later_record_of_the_same_run_replaces_the_earlier_one_also_once_packed(tmp_path):
    path = str(tmp_path / paper.RECORDS)
    for key, ms in (("main/m/1/1/strict", 5.0), ("main/m/1/1/fifo", 5.0), ("main/m/1/1/fifo", 4.0)):
        with paper.open_to_append(path) as file:
            paper.append(file, {"key": key, "iteration_ms": ms})
    known = paper.load(path)
    assert [record["iteration_ms"] for record in known.values()] == [5.0, 4.0]
    paper.pack(path)
    assert paper.load(path) == known and os.listdir(tmp_path) == [paper.RECORDS + ".xz"]
    paper.unpack(path)
    assert paper.load(path) == known
