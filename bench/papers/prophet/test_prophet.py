"""The fluid model, the packet simulator and the settings, against figures worked out by hand."""
import os

import pytest

import report
from papers import paper
from papers.prophet import fluid, settings, simulation
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


@pytest.mark.parametrize("name", fluid.PUBLISHED_MS)
def test_the_fluid_model_gives_the_published_figures_within_one_percent(name):
    policies = {"fifo": settings.FIFO, "stop-and-wait": settings.STOP_AND_WAIT,
                "prophet": settings.PROPHET, "strict": settings.STRICT,
                "credit": Policy("inferred", "credit", fluid.INFERRED_UNIT_BYTES,
                                 fluid.INFERRED_UNIT_BYTES)}
    ours_ms = 1e3 * fluid.iteration_s(policies[name], settings.tensors("resnet50"), 3, 1)
    assert ours_ms == pytest.approx(fluid.PUBLISHED_MS[name], rel=0.01)


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
                     for name in ("resnet50, 1", "vgg19, 1", "vgg19, 3", "bert_base, 1",
                                  "bert_base, 3")}
    assert Setting("resnet50", 3, 1).communication_s == pytest.approx(0.2726, abs=1e-4)
    assert Setting("resnet50", 3, 1).compute_s == pytest.approx(0.295)


def test_gradients_become_ready_in_ten_steps_and_in_backward_order():
    for model in settings.MODELS:
        ready = [tensor.ready_s for tensor in settings.tensors(model)]
        assert ready == sorted(ready, reverse=True)
        assert 5 <= len(set(ready) - {0.0}) <= 10, model  # 0: a bias behind the last product
        assert max(ready) == pytest.approx(settings.compute_s(model)[1])


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
