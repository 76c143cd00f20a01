"""The theory's shares by hand, and a short run against them."""
import os

import pytest

import report
from papers.bml import bench, in_namespaces, settings

needs_program = pytest.mark.skipif(
    not os.path.exists(os.path.join(report.build_dir(), bench.PROGRAM)),
    reason="bench_bml is not built")


@pytest.mark.parametrize("ports, levels, plain, aggregated", [
    (3, 2, 0.889, 0.667), (4, 2, 0.938, 0.625), (8, 2, 0.984, 0.563), (3, 3, 0.642, 0.481)])
def test_shares_are_those_of_the_table(ports, levels, plain, aggregated):
    assert settings.port_share(ports, levels, "plain") == pytest.approx(plain, abs=5e-4)
    assert settings.port_share(ports, levels, "aggregated") == pytest.approx(aggregated, abs=5e-4)


def test_a_bcube_has_k_fifths_of_the_switches_of_a_fat_tree_for_as_many_servers():
    ports = 8
    assert settings.fat_tree_switches(ports, ports ** 3 / 4) == 5 * ports ** 2 / 4
    for shape in settings.SHAPES:
        of_fat_tree = settings.fat_tree_switches(shape[0], shape[0] ** shape[1])
        assert settings.switches(*shape) / of_fat_tree == pytest.approx(shape[1] / 5)


def test_with_less_and_less_compute_the_reduction_is_that_of_communication():
    entry = bench.Results({setting.key: {
        "key": setting.key, "port_bytes": 0,
        "step_s": bench.wire_s(setting.share, setting.bytes)}
        for setting in settings.LONG if setting.what == "lenet5"})
    assert max(bench.reductions(entry, "lenet5", "plain").values()) < 0.5
    assert max(bench.reductions(entry, "lenet5", "aggregated").values()) < 0.625
    three = settings.MODEL_SHAPES[1]  # of 27 servers: 0.642 and 0.481 for a server's 1.926
    assert 0.5 < max(bench.reductions(entry, "lenet5", "plain", three).values()) < 1 - 0.642 / 1.926
    assert max(bench.reductions(entry, "lenet5", "aggregated", three).values()) < 1 - 0.481 / 1.926


@needs_program
def test_every_port_carries_its_share_and_no_step_is_faster_than_the_wire():
    setting = settings.Setting("uniform", 2, 2, "aggregated", 1)
    row = bench.record(setting)
    assert bench.share_of_bytes(setting, row) == pytest.approx(1, abs=1e-9)
    assert 1 <= bench.against_theory(setting, row) < 2


FRAME_S, CABLES_S = 8 * settings.FRAME_BYTES / (settings.GBPS * 1e9), settings.CABLES_S


@needs_program
@pytest.mark.parametrize("mode, seconds", [
    # Two servers, a slice of 16 chunks for each. Both send both, and the second one's last chunk
    # is a chunk's time behind; or each sends one, adds, and sends it back.
    ("aggregated", 33 * FRAME_S + CABLES_S), ("plain", 34 * FRAME_S + 2 * CABLES_S)])
def test_a_slice_takes_the_time_that_it_takes_by_hand(monkeypatch, mode, seconds):
    monkeypatch.setattr(settings.Setting, "elems", [2 * 16 * settings.CHUNK_ELEMS])
    row = bench.record(settings.Setting("uniform", 2, 1, mode, by_slices=True))
    assert row["step_s"] == pytest.approx(seconds, abs=1e-9)


@needs_program
def test_a_ring_takes_as_many_slices_as_there_are_neighbours_to_pass_them_twice(monkeypatch):
    monkeypatch.setattr(settings.Setting, "elems", [3 * 16 * settings.CHUNK_ELEMS])
    row = bench.record(settings.Setting("uniform", 3, 1, "ring", by_slices=True, server_ports=1))
    assert row["step_s"] == pytest.approx(4 * (17 * FRAME_S + CABLES_S), abs=1e-9)


@needs_program
@pytest.mark.parametrize("server_ports", [1, 2])
@pytest.mark.parametrize("way", settings.OTHER_WAYS)
def test_the_other_ways_take_as_long_as_the_theory_says(way, server_ports):
    setting = settings.Setting("uniform", 3, 2, way, 24, by_slices=True, server_ports=server_ports)
    assert setting.share == (1 if way == "box" else 16 / 9) / server_ports
    assert 1 <= bench.against_theory(setting, bench.record(setting)) < 1.02


@needs_program
@pytest.mark.parametrize("mode", settings.MODES)
def test_by_slices_a_step_is_as_long_as_the_theory_says(mode):
    setting = settings.Setting("uniform", 3, 2, mode, 24, by_slices=True)
    assert 1 <= bench.against_theory(setting, bench.record(setting)) < 1.05


@needs_program
def test_switches_that_send_the_way_up_first_keep_all_ports_busy():
    setting = settings.Setting("uniform", 5, 3, "aggregated", 8, by_slices=True)
    assert bench.against_theory(setting, bench.record(setting)) < 1.02


def test_the_lab_s_theory_counts_whole_frames_and_the_median_is_held_against_it():
    setting = settings.InLab(2, 2, "plain", 20, (1000 * settings.CHUNK_ELEMS,))
    assert in_namespaces.theory_s(setting) == pytest.approx(750 * 1504 * 8 / 20e6)
    row = {"simulator_s": 0.4512, "seconds": [0.48, 0.9, 0.46],
           "cpu_s": [0.5, 0.5, 0.5], "cores": 2}
    assert in_namespaces.against_theory(setting, row) == pytest.approx([1, 0.48 / 0.4512])
    assert in_namespaces.rows({setting: row}) == [[
        "1.344 MB, uniform", "(2,2)", 4, "plain", 20, "451.2", "451.2", "480 [460 .. 900]", "1.000",
        "1.064", "52 %"]]


@pytest.mark.parametrize("mode, frames, shorter", [
    ("aggregated", 120, 0), ("plain", 160, 80)])  # a port's, and those that are contributions'
def test_the_least_is_what_a_port_sends_and_one_way_through_a_switch(monkeypatch, mode, frames,
                                                                     shorter):
    monkeypatch.setattr(settings.Setting, "elems", [18 * 10 * settings.CHUNK_ELEMS])
    seconds = frames * FRAME_S - shorter * 8 * 44 / 10e9 + FRAME_S + CABLES_S
    least = bench.least(settings.Setting("uniform", 3, 2, mode))
    assert least == pytest.approx(seconds / (frames * FRAME_S), abs=1e-9)
