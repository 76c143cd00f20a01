"""The replay against times worked out by hand, and the settings."""
import os

import pytest

import report
from papers import paper
from papers.request_scheduling import bench, settings
from papers.request_scheduling.settings import Layer, Workers

ALIKE = Workers("alike", jitter=0.0)
SLOW = Workers("slow", jitter=0.0, slow=1, factor=2.0)
MS = 1e-3

needs_program = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), bench.PROGRAM)),
    reason="bench_request_scheduling is not built")


def end_ms(layers, bound, *, workers=2, iterations=2, latency_ms=0.0, kind=ALIKE):
    said = bench.play(layers, bound, workers, iterations, latency_ms * MS, kind)
    assert not any(row.get("violations") for row in said.values())
    return {run: row["end_ns"] / 1e6 for run, row in said.items()}


@needs_program
def test_one_layer_takes_compute_push_and_pull_in_turn():
    layer = Layer(units=4, unit_s=1 * MS, forward_s=2 * MS, backward_s=3 * MS)
    # Forward and backward, push, pull, and again forward, backward and push; three ways of 0.5 ms
    # each beside the pull's own request.
    for ms in end_ms([layer], 0, latency_ms=0.5).values():
        assert ms == pytest.approx(5 + 4 + 4 + 5 + 4 + 3 * 0.5)


@needs_program
def test_with_a_bound_nobody_waits_while_the_link_keeps_up():
    layer = Layer(units=1, unit_s=4 * MS, forward_s=2 * MS, backward_s=3 * MS)
    for row in bench.play([layer], 3, 2, 10, 0.0, ALIKE).values():
        assert row["end_ns"] == pytest.approx(54e6) and not row.get("suspended_ns")
    said = bench.play([layer], 0, 2, 10, 0.0, ALIKE)
    assert said.pop("critical path")["end_ns"] == pytest.approx(126e6)
    for row in said.values():
        assert row["suspended_ns"] > 0 and row["staleness"] == 0


@needs_program
def test_the_front_goes_first_in_ours_and_in_filo_but_not_in_fifo():
    front = Layer(units=4, unit_s=1 * MS, forward_s=20 * MS, backward_s=1 * MS)
    middle = Layer(units=16, unit_s=1 * MS, forward_s=1 * MS, backward_s=1 * MS)
    back = Layer(units=8, unit_s=1 * MS, forward_s=1 * MS, backward_s=1 * MS)
    ends = end_ms([front, middle, back], 0)
    ours = ends[bench.run_of("stalest")]
    assert ends["critical path"] <= ours == ends[bench.run_of("filo")] < ends[bench.run_of("fifo")]
    # Without priorities the front's answers wait behind the others'.
    assert ends[bench.run_of("fifo")] < ends[bench.run_of("fifo", "in order")]


@needs_program
def test_pushes_that_leave_in_the_backward_pass_hide_behind_it():
    layer = Layer(units=4, unit_s=1 * MS, forward_s=2 * MS, backward_s=6 * MS)
    # The second layer's push and most of its pull take place in the first one's backward pass; what
    # is left of them in the first one's push.
    ends = end_ms([layer, layer], 0)
    assert ends[bench.run_of("stalest")] == ends["critical path"]
    assert ends["critical path"] == pytest.approx(16 + 4 + 4 + 16 + 4)
    # Of the second layer's, behind the first one's, 2 ms hide in a forward pass.
    assert ends[bench.run_of("stalest", push_at="step")] == pytest.approx(
        16 + 4 + 4 + 2 + 2 + 2 + 12 + 4 + 4)


@needs_program
def test_a_slow_worker_holds_up_the_others_less_with_a_bound():
    layer = Layer(units=1, unit_s=1 * MS, forward_s=2 * MS, backward_s=3 * MS)
    ours = bench.run_of("stalest")
    tight = bench.play([layer], 0, 3, 10, 0.0, SLOW)[ours]
    loose = bench.play([layer], 5, 3, 10, 0.0, SLOW)[ours]
    assert loose["suspended_ns"] < tight["suspended_ns"]
    assert loose["staleness"] > 0


@needs_program
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_reads_keep_the_bound_and_those_of_a_store_that_ignores_a_worker_do_not(bound):
    layers = settings.layers("lenet_caffe", 1.0)
    for kind in (*settings.WORKER_KINDS, SLOW):
        for mutant in ((), ("--ignores-first",)):
            said = bench.play(layers, bound, 3, 8, settings.LATENCY_S, kind, *mutant)
            end_ns = said.pop("critical path")["end_ns"]
            assert all((row["violations"] > 0) == bool(mutant) for row in said.values())
            assert mutant or all(row["end_ns"] >= end_ns for row in said.values())


@needs_program
def test_what_the_records_hold_is_what_the_replay_says():
    kept = paper.load(os.path.join(bench.HERE, paper.RECORDS))
    for setting in settings.SETTINGS:
        if setting.model.startswith("lenet") and setting.ratio == 1:
            assert bench.record(setting) == kept[setting.key]


def test_a_models_layers_take_the_compute_and_the_link_time_of_the_setting():
    for model in settings.MODELS:
        layers = settings.layers(model, 0.5)
        assert sum(each.forward_s + each.backward_s for each in layers) == pytest.approx(0.1)
        assert sum(each.units * each.unit_s for each in layers) == pytest.approx(0.05)
        assert all(1 <= each.units <= 64 for each in layers)
    assert len({setting.key for setting in settings.SETTINGS}) == len(settings.SETTINGS)
