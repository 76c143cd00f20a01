"""A BCube of real `sluiced` over UDP, or of workers who serve each other: exact sums, PyTorch with
equal parameters, and a box or a worker that dies."""

import json
import signal
import sys
import time

import pytest
from cube import CubeLab
from lab import missing
from tiers import within
from workers import BUILD, command, finish, read_line, wait_joined

from sluice import trace

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def start(cube, rank, **options):
    line = command(cube.url, rank, cube.workers, **options)
    return cube.popen(rank, line, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("ports, elems", [
    (2, 60_000), pytest.param(3, 20_000, marks=pytest.mark.full)])
def test_sums_are_exact_over_two_levels_of_appliances(ports, elems):
    with CubeLab(ports, 2) as cube:
        cube.start_appliances(BUILD)
        workers = [start(cube, rank, steps=5, tensors=5, elems=elems)
                   for rank in range(cube.workers)]
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_workers_sum_for_each_other_where_switches_only_forward():
    with CubeLab(2, 2, mode="plain") as cube:
        workers = [start(cube, rank, steps=5, tensors=5, elems=60_000)
                   for rank in range(cube.workers)]
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_a_worker_that_dies_is_named_by_those_for_whom_it_sums():
    with CubeLab(2, 2, mode="plain") as cube:
        workers = [start(cube, rank, steps=100_000, tensors=5, elems=20_000) for rank in range(4)]
        for worker in workers:
            wait_joined(worker)
        workers[3].kill()
        start_s = time.monotonic()
        reports = [finish(worker, timeout=300) for worker in workers[:3]]
        took_s = time.monotonic() - start_s
        assert all(report["exit"] == 3 for report in reports), reports
        errors = [report["error"] for report in reports]
        assert any("where rank 1 sums" in error and "silent" in error for error in errors), errors
        within(took_s, 12)


TRAIN = """
import hashlib, json, os, sys, time
import torch, torch.distributed as dist
from torch import nn
import sluice.torch
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(int(os.environ["RANK"]))
width = int(os.environ.get("WIDTH", 300))
net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
overlaps = os.environ.get("OVERLAP") == "1"
model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=overlaps)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
if overlaps:
    attachment = sluice.torch.overlap(model, optimizer)
else:
    attachment = sluice.torch.attach(model, wire=os.environ.get("WIRE", "float32"))
steps = int(os.environ.get("STEPS", 20))
for step in range(steps):
    if step == int(os.environ.get("TELL_AFTER", 10)):
        print("so far", flush=True)
    time.sleep(float(os.environ.get("PAUSE_S", 0)))
    optimizer.zero_grad()
    inputs = torch.randn(16, 64)
    nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
    optimizer.step()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
stats = attachment.stats()
print(json.dumps({"steps": stats["steps_done"], "hash": digest.hexdigest(),
                  "detours": stats["detours"], "detoured_lanes": stats["detoured_lanes"],
                  "overlapped": getattr(attachment, "overlapped_steps", 0)}))
"""


def start_training(cube, rank, **env):
    env = {"SLUICE_ADDRESS": cube.url, "SLUICE_SECRET": "lab", "RANK": str(rank),
           "WORLD_SIZE": str(cube.workers), "LOCAL_RANK": "0", "MASTER_ADDR": "10.99.0.10",
           "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "mgmt0", "SLUICE_BUILD": str(BUILD),
           **env}
    return cube.popen(rank, [sys.executable, "-B", "-c", TRAIN], env=env, stdout=-1, stderr=-1,
                      text=True)


def start_steps(cube, steps, **env):
    """Workers that have taken ten of the steps, or TELL_AFTER."""
    workers = [start_training(cube, rank, STEPS=str(steps), SLUICE_LOG="info", **env)
               for rank in range(cube.workers)]
    for worker in workers:
        assert read_line(worker) == "so far\n", "".join(worker.communicate(timeout=300))
    return workers


def finish_training(workers, steps):
    """What each told last and what it logged; all took the steps and have equal replicas."""
    told, logs = [], []
    for worker in workers:
        out, err = worker.communicate(timeout=300)
        print(out + err)  # pytest shows it when a test fails
        assert worker.returncode == 0, err
        told.append(json.loads(out.splitlines()[-1]))
        logs.append(err)
    assert [each["steps"] for each in told] == [steps] * len(workers)
    assert len({each["hash"] for each in told}) == 1
    return told, logs


def finish_where_the_switch_came_back(workers, steps, said="switch 1 stands in for switch 0"):
    """Those at switch 0 of level 1, workers 0 and 2, went elsewhere and back; nobody else did."""
    told, logs = finish_training(workers, steps)
    assert [(each["detours"], each["detoured_lanes"]) for each in told] == [
        (1, 0), (0, 0)] * 2, told
    for log, moved in zip(logs, [True, False] * 2, strict=True):
        assert (said in log) == moved, log
        assert ("switch 0 is used again" in log) == moved, log


@pytest.mark.full
@pytest.mark.parametrize("ports, wire", [(3, "float32"), (2, "bfloat16")])
def test_pytorch_trains_and_all_replicas_are_the_same(ports, wire):
    pytest.importorskip("torch")
    with CubeLab(ports, 2, plain_network=True) as cube:
        cube.start_appliances(BUILD)
        workers = [start_training(cube, rank, WIRE=wire) for rank in range(cube.workers)]
        finish_training(workers, steps=20)


@pytest.mark.full
def test_overlap_with_each_worker_s_levels_in_its_environment_trains_as_attach_with_a_file():
    pytest.importorskip("torch")
    with CubeLab(2, 2, plain_network=True) as cube:
        cube.start_appliances(BUILD)

        def by_environment(rank):
            boxes = [f"udp://10.{level}.{cube.cube.switch_of(rank, level)}.1" for level in range(2)]
            return {"SLUICE_ADDRESS": "bcube://2,2", "SLUICE_BCUBE_LEVELS": ",".join(boxes),
                    "SLUICE_BCUBE_MODE": "aggregated",
                    "SLUICE_BCUBE_DIGITS": ",".join(map(str, cube.cube.digits(rank)))}

        plain, _ = finish_training([start_training(cube, rank) for rank in range(4)], steps=20)
        told, _ = finish_training([start_training(cube, rank, OVERLAP="1", **by_environment(rank))
                                   for rank in range(4)], steps=20)
        assert [each["overlapped"] for each in plain + told] == [0] * 4 + [19] * 4
        assert {each["hash"] for each in told} == {each["hash"] for each in plain}


def test_pytorch_trains_with_equal_replicas_without_any_appliance():
    pytest.importorskip("torch")
    with CubeLab(2, 2, plain_network=True, mode="plain") as cube:
        workers = [start_training(cube, rank, SLUICE_LOG="info") for rank in range(cube.workers)]
        told, logs = finish_training(workers, steps=20)
        assert [line for log in logs for line in log.splitlines() if "strangers" in line] == []


def test_a_box_that_dies_is_named_within_seconds():
    with CubeLab(2, 2) as cube:
        cube.start_appliances(BUILD)
        workers = [start(cube, rank, steps=100_000, tensors=5, elems=20_000) for rank in range(4)]
        for worker in workers:
            wait_joined(worker)
        time.sleep(0.5)
        cube.boxes[1, 0].kill()
        start_s = time.monotonic()
        reports = [finish(worker, timeout=300) for worker in workers]
        took_s = time.monotonic() - start_s
        assert all(report["exit"] == 3 for report in reports), reports
        # Workers 0 and 2 are at that switch; who sees it first ends the job for all.
        errors = [report["error"] for report in reports]
        assert any("level 1, switch 0" in error and "silent" in error for error in errors), errors
        within(took_s, 15)


def kill_in_mid_step(cube, place, port_bytes):
    """Stops the box when its workers, who are about to sum, have sent it an eighth of a step's
    bytes, and kills it when they have sent it more, which it did not answer; the microseconds
    then, on the clock of the workers' traces."""
    deadline = time.monotonic() + 300

    def receive(count):
        enough = cube.received_bytes(*place) + count
        while cube.received_bytes(*place) < enough:
            assert time.monotonic() < deadline

    receive(cube.cube.ports * port_bytes / 8)
    cube.boxes[place].send_signal(signal.SIGSTOP)
    receive(10_000)
    ended_us = time.monotonic() * 1e6
    cube.boxes[place].kill()
    cube.boxes[place].wait()
    return ended_us


def sums_of(cube, rank):
    """Of the rank's trace: what it has of each tensor and of each part of one, with their start."""
    path = cube.directory / f"sluice-default-rank{rank}.json"
    return [{**args, "ts": event["ts"]} for event in trace.read_events(path)
            if "result_us" in (args := event.get("args", {}))]


@pytest.mark.parametrize("ports", [2, pytest.param(3, marks=pytest.mark.full)])
def test_training_goes_on_by_way_of_neighbours_when_a_box_is_killed_in_mid_step(ports):
    pytest.importorskip("torch")
    width, steps = 3000, 6
    # At this rate a step's sum takes more than a second, so that the box dies in the midst of one.
    with CubeLab(ports, 2, plain_network=True, detours=True, rate_mbps=4) as cube:
        cube.start_appliances(BUILD)
        workers = start_steps(cube, steps, WIDTH=str(width), TELL_AFTER="1",
                              SLUICE_TRACE=str(cube.directory))
        gradient_bytes = 4 * (64 * width + width + width * 10 + 10)
        ended_us = kill_in_mid_step(cube, (1, 0), gradient_bytes * 2 / 3)
        told, logs = finish_training(workers, steps)
        moved = [rank in cube.cube.servers_of(1, 0) for rank in range(cube.workers)]
        sums = [args for rank in cube.cube.servers_of(1, 0) for args in sums_of(cube, rank)]
        under_way = {args["step"] for args in sums if "level" not in args
                     and args["ts"] < ended_us < args["ts"] + args["result_us"]}
        # The switch that stands in finished the step in the midst of which the box had died.
        step = min(args["step"] for args in sums if args.get("detoured"))
        assert step in under_way
        # The workers who were not at that switch have not noticed. Lanes: up, turn, down.
        assert [f"from step {step} on switch 1 stands in for switch 0" in log
                for log in logs] == moved, logs
        assert [(each["detours"], each["detoured_lanes"]) for each in told] == [
            (1, 3) if each else (0, 0) for each in moved], told


@pytest.mark.full
def test_training_begins_without_a_box_that_is_not_there():
    pytest.importorskip("torch")
    with CubeLab(2, 2, plain_network=True, detours=True) as cube:
        cube.start_appliances(BUILD)
        cube.boxes[1, 0].kill()
        workers = [start_training(cube, rank, SLUICE_LOG="info") for rank in range(cube.workers)]
        told, logs = finish_training(workers, steps=20)
        for log, moved in zip(logs, [True, False] * 2, strict=True):
            assert ("from step 1 on switch 1 stands in for switch 0" in log) == moved, log
        assert [(each["detours"], each["detoured_lanes"]) for each in told] == [
            (1, 3), (0, 0)] * 2, told


def test_a_box_that_is_started_again_is_used_again():
    pytest.importorskip("torch")
    with CubeLab(2, 2, plain_network=True, detours=True) as cube:
        cube.start_appliances(BUILD)
        workers = start_steps(cube, 600, PAUSE_S="0.05")
        cube.boxes[1, 0].kill()
        cube.boxes[1, 0].wait()
        time.sleep(8)  # its silence is noticed after 4 s
        cube.start_again(BUILD, (1, 0))  # and has counted nothing
        first = counted = 0
        deadline = time.monotonic() + 300
        while counted <= first + 10 and time.monotonic() < deadline:
            time.sleep(0.2)
            counted = cube.contributions(1, 0)
            first = first or counted
        assert counted > first + 10  # it is used, and goes on being used
        finish_where_the_switch_came_back(workers, 600)


@pytest.mark.full
def test_workers_by_other_ways_sum_for_each_other_when_a_switch_that_only_forwards_is_lost():
    with CubeLab(3, 2, detours=True, mode="plain") as cube:
        workers = [start(cube, rank, steps=1_500, tensors=3, elems=2_000, pause_ms=1)
                   for rank in range(cube.workers)]
        for worker in workers:
            wait_joined(worker)
        time.sleep(0.5)
        cube.switch(1, 0, up=False)
        for worker in workers:
            report = finish(worker)
            assert report["exit"] == 0, report


@pytest.mark.full
@pytest.mark.parametrize("steps, early, said", [
    (400, True, "from step 1 on switch 1 stands in for switch 0"),
    (600, False, "switch 1 stands in for switch 0")], ids=["from_the_start", "in_mid_run"])
def test_a_switch_that_only_forwards_is_missing_and_used_when_it_is_there(steps, early, said):
    pytest.importorskip("torch")
    with CubeLab(2, 2, plain_network=True, detours=True, mode="plain") as cube:
        cube.switch(1, 0, up=not early)
        workers = start_steps(cube, steps, PAUSE_S="0.05")
        if not early:
            cube.switch(1, 0, up=False)
            time.sleep(8)  # its silence is noticed after 4 s
        cube.switch(1, 0, up=True)
        finish_where_the_switch_came_back(workers, steps, said)
