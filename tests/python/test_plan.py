"""The planner: its model against the lab's measurements, its law, its words, its costs."""

import os
import shutil

import numpy
import pytest
from inproc import address, on_all_ranks  # noqa: F401 - a fixture

from sluice import __main__ as command_line
from sluice import _plan_model as model
from sluice import plan

COSTS = model.Costs(box_ns=200, worker_ns=600)
MEGABYTES_25 = 6_250_000

# `./run bench allreduce` on an idle machine, 25 MB of float32: workers, Mb/s, ours or Gloo's ring,
# seconds. It printed them over what the frames alone take: 1.01, 1.04; 1.00, 1.00; the ring 1.10.
MEASURED = [
    (4, 200, "box", 1.01 * 1.1146), (8, 200, "box", 1.04 * 1.1146),
    (4, 50, "box", 1.00 * 4.4584), (8, 50, "box", 1.00 * 4.4584), (8, 200, "ring", 1.10 * 1.8588),
]


@pytest.mark.parametrize("workers, mbps, way, seconds", MEASURED)
def test_the_plan_is_within_15_percent_of_what_the_lab_measured(workers, mbps, way, seconds):
    made = model.plan(model.Question(workers, mbps / 1e3, 1, MEGABYTES_25), COSTS)
    planned = made.step_s() if way == "box" else made.ring_s
    assert planned == pytest.approx(seconds, rel=0.15)


@pytest.mark.parametrize("mtu, wire", [
    (1500, "float32"), (4000, "float32"), (9000, "float32"), (1500, "float16"),
    (9000, "bfloat16"), (1500, "int8"), (9000, "int8")])
def test_chunks_are_what_the_appliance_takes(mtu, wire, address):
    """And a result's headers, by the bytes that come back for many full chunks."""
    made = model.plan(model.Question(2, 1, 1, 1, mtu=mtu, wire=wire), COSTS)
    count = 100 * made.chunk_elems

    def work(job):
        values = numpy.ones(count, dtype="f4")
        for _ in range(5):
            job.submit("gradient", values)
            job.wait_step()
        return job.stats()

    stats = on_all_ranks(work, 2, address, [("gradient", count, "float32")], mtu=mtu, wire=wire)[0]
    assert stats["chunk_bytes"] == made.chunk_bytes == model.chunk_bytes(mtu, 2)
    in_scale = 4 if wire == "int8" else 0
    elems_bytes = made.chunk_elems * model.WIRES[wire] + in_scale
    assert made.chunk_bytes - 4 < elems_bytes <= made.chunk_bytes
    a_result = elems_bytes + model.result_header_bytes(2)
    asked_again = stats["probes"] * a_result  # on a slow machine
    # Feedback about the tail of a step is a thousandth, too.
    assert 0.999 * 500 * a_result <= stats["bytes_received"] <= 1.002 * 500 * a_result + asked_again


@pytest.mark.parametrize("workers", [2, 3, 8, 64, 1000])
def test_the_law_is_where_box_and_ring_take_the_same_time_but_for_headers(workers):
    """N S / C = 2 (N - 1) / N S / W at C of the law."""
    question = model.Question(workers, 10, 1, 10 ** 9)
    made = model.plan(question, COSTS)
    box_s = workers * question.total_bytes * 8 / (made.law_gbps * 1e9)
    ring_s = 2 * (workers - 1) / workers * question.total_bytes * 8 / 10e9
    assert box_s == pytest.approx(ring_s)


def test_the_slowest_part_sets_the_time_and_boxes_share_the_chunks():
    made = model.plan(model.Question(16, 10, 1, 25_600_000), COSTS)
    assert made.limit() == "the box's cores"
    assert made.step_s() == made.box_s() == pytest.approx(76_191 * 16 * 200e-9)
    needed = made.boxes_needed
    assert made.box_s(needed) <= max(made.links_s, made.worker_s) < made.box_s(needed - 1)
    assert made.limit(needed) == "a worker's link"
    assert made.limit(needed - 1) == "the boxes' cores"
    idle = model.plan(model.Question(16, 10, 64, 25_600_000), COSTS)
    assert idle.boxes_needed == 1 and idle.limit() == "a worker's link"
    slow = model.plan(model.Question(16, 100, 64, 25_600_000), COSTS)
    assert slow.limit() == "a worker's core" and slow.step_s() == slow.worker_s


def test_half_as_wide_elements_take_half_the_time():
    wide = model.plan(model.Question(4, 1, 4, 10 ** 7), COSTS)
    narrow = model.plan(model.Question(4, 1, 4, 10 ** 7, "bfloat16"), COSTS)
    assert narrow.step_s() == pytest.approx(wide.step_s() / 2, rel=1e-3)


@pytest.mark.parametrize("wire, item_bytes", [("float16", 2), ("bfloat16", 2), ("int8", 1)])
def test_a_wire_format_takes_less_of_links_and_cores_and_nothing_of_a_ring(wire, item_bytes):
    """A box then sums as many more gradients a second as a chunk holds."""
    wide = model.plan(model.Question(16, 10, 1, 10 ** 7), COSTS)
    narrow = model.plan(model.Question(16, 10, 1, 10 ** 7, wire=wire), COSTS)
    share = item_bytes / 4
    assert narrow.links_s == pytest.approx(share * wide.links_s, rel=5e-3)
    assert narrow.worker_s == pytest.approx(share * wide.worker_s, rel=5e-3)
    assert narrow.box_s() == pytest.approx(share * wide.box_s(), rel=5e-3)
    assert narrow.box_gbps == pytest.approx(wide.box_gbps / share, rel=5e-3)
    assert narrow.ring_s == wide.ring_s and narrow.law_gbps == wide.law_gbps
    alike = model.plan(model.Question(16, 10, 1, 10 ** 7, "float16", wire=wire), COSTS)
    assert alike.links_s == model.plan(model.Question(16, 10, 1, 10 ** 7, "float16"), COSTS).links_s


@pytest.mark.parametrize("mbps, seconds", [(1_000, 2.62e-3), (4, 0.655)])
def test_what_a_kernel_holds_delays_what_is_urgent_by_so_much_of_the_link(mbps, seconds):
    made = model.plan(model.Question(4, mbps / 1e3, 1, MEGABYTES_25), COSTS)
    assert made.standing_queue_s == pytest.approx(seconds, rel=0.01)
    small = model.plan(model.Question(4, mbps / 1e3, 1, 256), COSTS)
    assert small.standing_queue_s < made.standing_queue_s / 100


def test_it_says_so_in_words_with_what_it_was_given(capsys):
    given = ["plan", "--workers", "16", "--link", "10", "--cores", "4", "--box-ns", "200",
             "--worker-ns", "600"]
    assert command_line.main(given) == 0
    out = capsys.readouterr().out
    assert "16 workers, links of 10 Gb/s, MTU 1500; a step sums 25,600,000 elements" in out
    assert "One box of 4 cores: 91.7 ms a step; a worker's link sets it (links 91.7" in out
    assert "Several boxes: one is enough" in out
    assert "in the worker's kernel, at most 262 us of its link." in out
    assert "A ring: 163 ms, of float32; its links set it" in out
    assert "= 85.3 Gb/s of gradients; this one sums 215.0, so it does." in out
    assert command_line.main([*given[:5], "--cores", "1", *given[7:]]) == 0
    out = capsys.readouterr().out
    assert "the box's cores set it" in out
    assert "Several boxes: 3 of them take 91.7 ms, and a worker's link sets it" in out
    assert "it does not: give it more cores" in out
    assert command_line.main([*given, "--wire", "int8"]) == 0
    out = capsys.readouterr().out
    assert "102.4 MB a worker, over the wire as int8, in 19,105 chunks of 1,344 bytes" in out
    assert "One box of 4 cores: 23 ms a step; a worker's link sets it" in out
    assert "A ring: 163 ms, of float32" in out
    assert command_line.main([*given[:3], "--link", "1000", "--cores", "64", *given[7:]]) == 0
    assert "45.7 ms a step; a worker's core sets it" in capsys.readouterr().out


def test_what_makes_no_sense_is_refused(capsys):
    assert command_line.main(["plan", "--workers", "1", "--link", "1", "--cores", "1"]) == 2
    assert "--workers 2 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command_line.main(["plan", "--workers", "4", "--link", "-1", "--cores", "1"])
    narrow = ["plan", "--workers", "4", "--link", "1", "--cores", "1", "--dtype", "float16",
              "--wire", "int8"]
    assert command_line.main(narrow) == 2
    assert "leave out --wire, or give --dtype float32" in capsys.readouterr().err


@pytest.mark.parametrize("dtype, wire", [
    ("float32", "float32"), ("bfloat16", "float32"), ("float32", "int8")])
def test_the_costs_are_measured_with_a_real_appliance(dtype, wire, monkeypatch):
    build = os.environ["SLUICE_BUILD"]
    binary = os.path.join(build, "dataplane", "sluiced")
    if not shutil.which(binary):
        pytest.skip("built without the appliance")
    monkeypatch.setenv("SLUICE_PLUGIN_DIR", os.path.join(build, "client"))
    costs = plan.self_test(binary, dtype, seconds=0.3, wire=wire)
    # A copy of a chunk takes tens of nanoseconds; no packet takes a tenth of a millisecond.
    assert 50 < costs.box_ns < 100_000
    assert 50 < costs.worker_ns < 100_000


def test_costs_that_were_measured_beside_other_programs_say_so(capsys, monkeypatch):
    cores = os.cpu_count()
    times = iter([(0.0, 0.0, 0.0), (2.0 + 5.0 * cores, 2.0, 10.0),
                  (0.0, 0.0, 0.0), (2.0 + 0.5 * cores, 2.0, 10.0)])
    monkeypatch.setattr(plan, "machine_times", lambda: next(times))
    monkeypatch.setattr(plan, "self_test", lambda *_given, **_named: COSTS)
    monkeypatch.setattr(plan._box, "find_appliance", lambda _folder: "sluiced")
    for busy in (True, False):
        assert command_line.main(["plan", "--workers", "2", "--link", "1", "--cores", "1"]) == 0
        told = "other programs took 50% of this machine's cores, which makes them too high"
        assert (told in capsys.readouterr().out) == busy


def test_without_a_sluiced_it_says_where_it_looked_and_how_to_give_costs(capsys, tmp_path):
    assert command_line.main(["plan", "--workers", "2", "--link", "1", "--cores", "1",
                              "--build-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert f"there is no sluiced at {tmp_path}/dataplane/sluiced or at {tmp_path}/sluiced" in told
    assert "install its Debian package" in told and "--box-ns 200 --worker-ns 600" in told


def test_operations_take_what_the_appliance_gives_them():
    """Its rules stand in C++: this model has the same numbers."""
    import re
    from conftest import ROOT
    source = (ROOT / "aggregator/jobs/operations_request.cc").read_text()
    limits = (ROOT / "aggregator/base/limits.h").read_text()

    def number(name, text):
        return int(re.search(rf"{name} = (?:std::size_t{{)?(\d+)", text)[1])

    assert number("kShare", source) == model.OPERATIONS_SHARE
    assert number("kMostBytes", source) == model.OPERATIONS_MOST_MIB
    assert number("kGroupsShare", source) == model.GROUPS_SHARE
    assert number("kFirstSlots", limits) == model.FIRST_SLOTS
    found = model.operations(model.Question(8, 10, 2, 1, mtu=9000))
    assert found.memory_bytes == 256 << 20 and found.first_slots == 256
    assert 30 < found.kinds < 60 and found.full_rate_slots == 512
    small = model.operations(model.Question(8, 10, 2, 1, mtu=1500), job_memory_mib=64)
    assert small.memory_bytes == 8 << 20 and small.kinds < found.kinds
    # Grown to twice the slots, half as many fit; in the order of ranks, a part in five.
    assert found.full_rate_kinds == found.kinds // 2
    in_order = model.operations(model.Question(8, 10, 2, 1, mtu=9000), reproducible=True)
    assert in_order.kinds == found.kinds // 5 and in_order.full_rate_slots == 512
    text = model.words(model.plan(model.Question(8, 10, 2, 1000), COSTS), "given")
    assert 'Operations (backend "sluice"): a job of them takes 256 MiB' in text
    assert "of a store 0.0 MB of parameters and pushes" in text
    assert model.kept_of_store(model.Question(8, 10, 2, 25_600_000)) == 204_800_000


def test_a_worker_keeps_for_a_restart_what_real_members_allocate():
    """tests/unit/schedules/kept_test.cc measures them by the same numbers."""
    import re
    from conftest import ROOT
    arena = (ROOT / "client/core/sums/arena.h").read_text()
    measured = (ROOT / "tests/unit/schedules/kept_test.cc").read_text()
    assert int(re.search(r"sizeof\(Entry\) == (\d+)", arena)[1]) == model.KEPT_RESULT_BYTES
    assert int(re.search(r"kEntryBytes = (\d+)", measured)[1]) == model.KEPT_RESULT_BYTES
    for workers, words in ((3, 1), (64, 1), (65, 2)):
        question = model.Question(workers, 10, 1, 25_600_000)
        made = model.plan(question, COSTS)
        kept = made.chunks * (made.chunk_bytes + 32)
        assert model.kept_bytes(question) == kept
        assert model.kept_bytes(question, False) == kept + made.chunks * 2 * 8 * words
    text = model.words(model.plan(model.Question(3, 10, 1, 25_600_000), COSTS), "given")
    assert "a worker keeps 104.8 MB of results" in text and "106.1 MB with k < n" in text
