"""The planner's prediction for a lab is the lab's measurement."""

import shutil
import statistics
from pathlib import Path

import pytest
from lab import Lab, missing
from sluice import _plan_model as model
from sluice import plan
from vhost_box import VhostBox
from workers import BUILD, finish, run_all, start, wait_joined

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

WITHIN = 0.15
# Where the box sets it what it costs depends on caches that others use too. 27 runs with 2, 4 and 8
# workers on two quiet cores: 0.93 to 1.25, 1.06 in the middle, 26 of them within 15 %. With a load
# of ten besides, five runs: 0.95 to 1.21 (uncorrected, 1.4 to 7).
WITHIN_OF_THE_BOX = 0.3
EMULATOR = "qemu-x86_64"
COSTS = model.Costs(box_ns=1000, worker_ns=1500)  # of this order: links this slow set the time,
# also where the machine has other work, and make up for its stalls: test_lab.py
# What workers have in their kernels' send buffers (about 110 frames) when a more urgent tensor is
# submitted can't be overtaken. Where they are not alike, a step is late by so much: 7 % of these.
TENSORS, TENSOR_BYTES = 4, 600_000  # on the wire


@pytest.mark.parametrize("workers, mbps, wire", [
    (2, 4, "float32"), (4, 4, "float32"), (2, 4, "bfloat16"), (4, 4, "int8")])
def test_a_step_over_shaped_links_takes_what_was_planned_within_15_percent(workers, mbps, wire):
    elems = TENSOR_BYTES // model.WIRES[wire]
    question = model.Question(workers, mbps / 1e3, 1, TENSORS * elems, wire=wire)
    planned = model.plan(question, COSTS)
    assert planned.limit() == "a worker's link"
    for _ in range(3):  # a machine that stalls in two of three steps
        with Lab(hosts=workers, rate_mbps=mbps) as lab:
            lab.start_appliance(BUILD)
            reports = run_all(lab, lab.url, workers, steps=3, tensors=TENSORS, elems=elems,
                              wire=wire)
        assert all(report["exit"] == 0 for report in reports), reports
        measured_s = [report["step_p50_ms"] / 1e3 for report in reports]
        if measured_s == [pytest.approx(planned.step_s(), rel=WITHIN)] * workers:
            return
    pytest.fail(f"planned {planned.step_s():.3f} s, measured {measured_s} in the last of three")


def a_slow_box(path):
    """A sluiced that needs five times the processor time for everything, so that it sets the time
    on two cores also: by an emulator. (Stopping it by signals leaves the rings too small for what
    it then does at full speed: with two workers it waited for them, 1.1 to 1.8 of the plan.)"""
    sluiced = (BUILD / "dataplane" / "sluiced").resolve()
    path.write_text(f'#!/bin/sh\nexec {EMULATOR} -cpu max {sluiced} "$@"\n')
    path.chmod(0o755)
    return path


def processor_ns(process):
    """What its busiest thread has had of processors, and waited for one that others had."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return max([int(text) for text in (task / "schedstat").read_text().split()[:2]]
               for task in tasks)


def plan_and_measure(workers, folder, elems=1_000_000):
    """A step that waits for the box: the plan, and the seconds that it takes, but for the share of
    the time in which the box waited for a processor."""
    folder.mkdir()
    slow = a_slow_box(folder / "sluiced")
    costs = plan.self_test(str(slow), "float32", workers=workers)
    planned = model.plan(model.Question(workers, 1000, 1, TENSORS * elems), costs)
    with VhostBox(folder, workers, binary=slow) as box:
        ranks = [start(None, None, box.url(rank), rank, workers, steps=5, tensors=TENSORS,
                       elems=elems) for rank in range(workers)]
        for rank in ranks:
            wait_joined(rank)
        before = processor_ns(box.process)
        reports = [finish(rank) for rank in ranks]
        had_ns, waited_ns = (now - then for now, then in zip(processor_ns(box.process), before))
    assert all(report["exit"] == 0 for report in reports), reports
    # From when the last begins: what it does before, its next gradient, is none of the step.
    steps = zip(*(report["steps_s"] for report in reports), strict=True)
    measured_s = statistics.median(max(end for _, end in step) - max(begin for begin, _ in step)
                                   for step in steps) * had_ns / (had_ns + waited_ns)
    print(f"the box had a processor for {had_ns / (had_ns + waited_ns):.2f} of its time; "
          f"{workers} workers: planned {planned.step_s():.3f} s, measured {measured_s:.3f}, "
          f"{measured_s / planned.step_s():.2f} of it; {costs}")
    return planned, measured_s


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"no {EMULATOR}: apt install qemu-user")
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_step_that_waits_for_the_box_takes_what_was_planned(workers, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_LIBRARY", str(BUILD / "client" / "libsluice.so"))
    monkeypatch.setenv("SLUICE_PLUGIN_DIR", str(BUILD / "client"))
    for attempt in range(3):  # the machine may have been another one in between
        planned, measured_s = plan_and_measure(workers, tmp_path / str(attempt))
        assert planned.limit() == "the box's cores"
        if measured_s == pytest.approx(planned.step_s(), rel=WITHIN_OF_THE_BOX):
            return
    pytest.fail(f"planned {planned.step_s():.3f} s, measured {measured_s:.3f} in the last of three")
