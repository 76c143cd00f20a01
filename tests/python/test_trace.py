"""The Chrome trace: the files of real jobs, and `python3 -m sluice trace`, which joins them."""

import collections
import json
import threading

import numpy
import pytest
import ranks

import sluice
from sluice import __main__ as command_line
from sluice import trace

SPECS = [("first", 30_000, "float32"), ("last \"layer\"", 7, "float32")]
ROUNDING_US = 4.0  # times on the wire are whole microseconds


def _tensors(folder):
    """{(tensor, step): {rank: arguments of its slice, with 'ts' and 'end'}} of a folder's files."""
    found = collections.defaultdict(dict)
    for path in sorted(folder.glob(trace.PATTERN)):
        events = json.loads(path.read_text())  # strictly: these have been closed
        rank = next(e["args"]["rank"] for e in events if e["name"] == "trace begins")
        for event in events:
            if event["ph"] == "X" and event["name"].startswith("step "):
                key = event["args"]["tensor"], event["args"]["step"]
                assert rank not in found[key], f"two slices of {key} of rank {rank}"
                found[key][rank] = dict(event["args"], ts=event["ts"],
                                        end=event["ts"] + event["dur"])
    return found


def _check_order(one):
    """What must hold for one tensor and step of one rank, whatever the network did."""
    sent = [one[name] for name in ("first_sent_us", "last_sent_us") if name in one]
    for times in ([0, one["queued_us"], *sent],
                  [one["queued_us"], one["result_us"], one["applied_us"]],
                  [one["first_contribution_us"], one["kth_contribution_us"], one["result_us"]]):
        assert times == sorted(times), one
    assert len(sent) == (2 if one["packets"] else 0)
    # The file has nanoseconds, its reader doubles.
    assert one["end"] - one["ts"] == pytest.approx(one["applied_us"], abs=0.01)


def _check_sync(tensors, count):
    """Likewise for all ranks of one machine, when every step needed every one of them."""
    checks, early = 0, []
    for key, by_rank in tensors.items():
        assert sorted(by_rank) == list(range(count)), key
        for one in by_rank.values():
            _check_order(one)
            assert one["k"] == count and one["contributes"] and one["packets"] > 0
            # Early by at most half of the smallest round trip and a loop of the appliance's thread
            # (client/core/calls/trace.h), which may be preempted: so not each of them is judged.
            tolerance_us = one["smallest_round_trip_us"] / 2 + ROUNDING_US
            kth_us = one["ts"] + one["kth_contribution_us"]
            first_us = one["ts"] + one["first_contribution_us"]
            sent = [other["ts"] + other["first_sent_us"] for other in by_rank.values()]
            checks += 2
            early += [late_us for late_us in (max(sent) - kth_us, min(sent) - first_us)
                      if late_us > tolerance_us]
    assert len(early) <= checks / 10, early
    assert not early or max(early) < 1e7


def _check_lanes(folder):
    """Slices of a track lie inside the slice of their step, and do not overlap."""
    for path in folder.glob(trace.PATTERN):
        tracks = collections.defaultdict(list)
        for event in json.loads(path.read_text()):
            if event["ph"] == "X":
                tracks[event["tid"]].append(event)
        for track in tracks.values():
            outer = {e["args"]["step"]: e for e in track if e["name"].startswith("step ")}
            end = 0
            for event in (e for e in track if e["args"] and not e["name"].startswith("step ")):
                whole = outer[event["args"]["step"]]
                assert whole["ts"] - 0.01 <= event["ts"]
                assert event["ts"] + event["dur"] <= whole["ts"] + whole["dur"] + 0.01
                assert event["ts"] >= end - 0.01, event
                end = event["ts"] + event["dur"]


@pytest.mark.usefixtures("library")
def test_two_ranks_leave_every_tensor_of_every_step_in_order(tmp_path):
    def work(rank):
        with sluice.Job(SPECS, f"inproc://{tmp_path.name}", job="traced", rank=rank, world_size=2,
                        run_id=9, trace=tmp_path) as job:
            arrays = [numpy.zeros(count, numpy.float32) for _, count, _ in SPECS]
            for step in range(1, 6):
                for index, array in enumerate(arrays):
                    job.submit(index, array, priority=10 * step + index)
                for index in range(len(arrays)):
                    job.wait(index, timeout=300)
                job.mark_applied("first")

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "sluice-traced-rank0.json", "sluice-traced-rank1.json"]
    tensors = _tensors(tmp_path)
    assert len(tensors) == 2 * 5
    _check_sync(tensors, 2)
    _check_lanes(tmp_path)
    for (tensor, step), by_rank in tensors.items():
        assert {one["bytes"] for one in by_rank.values()} == {4 * SPECS[tensor][1]}
        assert {one["priority"] for one in by_rank.values()} == {10 * step + tensor}
    names = [e["args"]["name"] for e in trace.read_events(tmp_path / "sluice-traced-rank1.json")
             if e["name"] == "thread_name"]
    assert names == ["first", "last \"layer\""]


def _train(rank, steps=15, policy=None, caught_up=None):
    """`caught_up`: a file that rank 0 writes once it has caught up with step 4, for which it has
    waited; the others take step 5 then."""
    import time
    from pathlib import Path

    import numpy

    import sluice
    options = dict(policy="fixed", k=policy) if policy else {}
    with sluice.Job([("a", 60_000, "float32"), ("b", 50, "float32")], **options) as job:
        arrays = [numpy.ones(spec.elem_count, numpy.float32) for spec in job.tensors]
        step = 0
        while step < steps:
            while caught_up and rank == 0 and step == 3 and job.behind() == 0:
                time.sleep(0.005)
            while caught_up and rank > 0 and step == 4 and not Path(caught_up).exists():
                time.sleep(0.005)
            catching_up = job.behind() > 0
            if policy and not catching_up:
                time.sleep(0.05 if rank == 0 else 0.03)
            for index, array in enumerate(arrays):
                if catching_up:
                    job.catch_up(index, array)
                else:
                    job.submit(index, array, priority=index)
            try:
                step = job.wait_step(timeout=300)
            except sluice.Behind:  # a busy machine: what is in the trace is enough
                break
            if caught_up and rank == 0 and step == 4:
                Path(caught_up).touch()
        return job.stats()


def test_under_loss_every_time_is_in_order_and_repetitions_are_counted(lossy_appliance, tmp_path):
    folder = tmp_path / "made" / "by the job"
    stats = ranks.run(_train, 4, tmp_path, box=lossy_appliance,
                      environment=dict(SLUICE_TRACE=str(folder)))
    tensors = _tensors(folder)
    assert len(tensors) == 2 * 15
    _check_sync(tensors, 4)
    _check_lanes(folder)
    again = {rank: sum(by_rank[rank]["sent_again"] for by_rank in tensors.values())
             for rank in range(4)}
    assert again == {rank: one["retransmissions"] for rank, one in enumerate(stats)}
    assert again[3] > 0  # its port is the lossy one


def test_ranks_that_the_others_do_not_wait_for_leave_their_times_too(appliance, tmp_path):
    ranks.run(_train, 3, tmp_path, box=appliance,
              arguments=dict(policy=2, caught_up=str(tmp_path / "caught_up")),
              environment=dict(SLUICE_TRACE=str(tmp_path)))
    tensors = _tensors(tmp_path)
    for by_rank in tensors.values():
        for one in by_rank.values():
            _check_order(one)
    _check_lanes(tmp_path)
    late = [one for (_, step), by_rank in tensors.items() if step > 2
            for rank, one in by_rank.items() if rank == 0 and not one["contributes"]]
    assert late, "rank 0 never had to catch up"


def test_without_it_nothing_is_written(library, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_TRACE", str(tmp_path / "env"))
    with sluice.Job([("a", 8, "float32")], f"inproc://{tmp_path.name}", job="none", rank=0,
                    world_size=1, run_id=1, trace="") as job:
        job.mark_applied("a")  # says nothing to nobody
    assert not (tmp_path / "env").exists()


def test_a_folder_that_cannot_be_made_is_refused_with_the_remedy(library, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(sluice.IoError, match="trace folder '.*file/traces': cannot make it: .*"
                                             "give a folder that this process may write to"):
        sluice.Job([("a", 8, "float32")], f"inproc://{tmp_path.name}", job="none", rank=0,
                   world_size=1, run_id=1, trace=blocked / "traces")


# ---- joining files ----

def _rank_file(folder, rank, *, machine="m0", run="01", clock=0.0, steps=(1, 2), name=None):
    """As a rank would leave it: one tensor, complete at the appliance 50 us after `1000 * step`."""
    events = [
        {"ph": "M", "pid": rank + 1, "tid": rank + 1, "name": "process_name",
         "args": {"name": f"rank {rank}"}},
        {"ph": "i", "pid": rank + 1, "tid": rank + 1, "name": "trace begins", "ts": clock, "s": "p",
         "args": {"job": "j", "ordinal": 0, "rank": rank, "world_size": 3, "run_id": run,
                  "machine": machine}}]
    for step in steps:
        begin = clock + 1000.0 * step
        track = {"pid": rank + 1, "tid": rank + 7}
        events += [
            {"ph": "X", **track, "name": f"step {step}", "ts": begin, "dur": 90.0,
             "args": {"tensor": 0, "step": step, "kth_contribution_us": 50.0}},
            {"ph": "X", **track, "name": "on the wire", "ts": begin, "dur": 40.0,
             "args": {"step": step}}]
    path = folder / (name or f"sluice-j-rank{rank}.json")
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return path


def test_a_file_without_its_end_is_read_as_far_as_it_goes(tmp_path):
    whole = _rank_file(tmp_path, 0)
    text, events = whole.read_text(), trace.read_events(whole)
    for cut in ("\n]\n", "]\n", "}\n]\n"):
        whole.write_text(text[:-len(cut)])
        lost = 1 if "}" in cut else 0
        assert trace.read_events(whole) == events[:len(events) - lost]
    whole.write_text("not a trace")
    with pytest.raises(trace.TraceError, match="not a Chrome trace"):
        trace.read_events(whole)


def test_ranks_of_several_machines_are_put_on_one_clock(tmp_path):
    _rank_file(tmp_path, 0)
    _rank_file(tmp_path, 1, machine="m1", clock=5e6)
    _rank_file(tmp_path, 2, machine="m2", clock=-3e6, steps=(9,))
    merged = trace.merge(tmp_path)
    begins = collections.defaultdict(list)
    for event in merged.events:
        if event["name"].startswith("step "):
            begins[event["pid"] - 1].append(event["ts"])
    assert begins[1] == begins[0] == [1000.0, 2000.0]
    assert begins[2] == [-3e6 + 9000]  # shares no step with the others
    assert any("m1: clock moved by -5000000 us, by 2 moments" in r for r in merged.remarks)
    assert any("m2 has no step in common" in r for r in merged.remarks)


def test_clocks_of_machines_that_share_no_switch_are_put_on_one_by_way_of_others(tmp_path):
    # Rank 1 is at a switch with rank 0 and at another with rank 2. On the way up ranks want sums of
    # their own, which were not complete at one time.
    def part(rank, way, level, step, at_us, clock):
        return {"ph": "X", "pid": rank + 1, "tid": rank + 9, "name": f"step {step}",
                "ts": clock + at_us, "dur": 90.0,
                "args": {"tensor": 0, "step": step, "kth_contribution_us": 50.0, "way": way,
                         "level": level, "switch": 0}}
    clocks = (0.0, 5e6, -3e6)
    for rank, parts in enumerate([[("turn", 0), ("up", 1)], [("turn", 0), ("turn", 1)],
                                  [("turn", 1), ("up", 0)]]):
        path = _rank_file(tmp_path, rank, machine=f"m{rank}", clock=clocks[rank], steps=())
        events = trace.read_events(path) + [
            part(rank, way, level, 1, 1000.0 + 300 * level + (7 * rank if way == "up" else 0),
                 clocks[rank]) for way, level in parts]
        path.write_text(json.dumps(events))
    merged = trace.merge(tmp_path)
    at_turns = {e["ts"] for e in merged.events if e.get("args", {}).get("way") == "turn"}
    assert at_turns == {1000.0, 1300.0}
    assert any("m2: clock moved by 3000000 us, by 1 moments" in r for r in merged.remarks)


def test_only_the_newest_run_and_the_steps_asked_for_are_joined(tmp_path):
    old = _rank_file(tmp_path, 2, run="00")
    _rank_file(tmp_path, 0, steps=(1, 2, 3))
    _rank_file(tmp_path, 1, steps=(1, 2, 3))
    import os
    os.utime(old, (1, 1))
    merged = trace.merge(tmp_path, 2, 2)
    assert (merged.ranks, merged.steps) == ([0, 1], [2])
    assert len([e for e in merged.events if e["ph"] == "X"]) == 2 * 2
    assert merged.remarks == ["sluice-j-rank2.json is of another run and left out",
                              "no file of rank 2"]


@pytest.mark.parametrize("text, wrong", [
    ("0", "counted from 1"), ("5-3", "5 is after 3"), ("x", "give N or N-M"), ("4-", "give N")])
def test_a_wrong_range_of_steps_is_refused(text, wrong, tmp_path, capsys):
    _rank_file(tmp_path, 0)
    assert command_line.main(["trace", str(tmp_path), "--steps", text]) == 2
    assert wrong in capsys.readouterr().err


def test_the_command_writes_one_file_and_says_where_to_open_it(tmp_path, capsys):
    for rank in range(3):
        _rank_file(tmp_path, rank)
    assert command_line.main(["trace", str(tmp_path), "--steps", "1-2"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/trace.json: ranks 0, 1, 2, steps 1 to 2; open it in" in out
    events = json.loads((tmp_path / "trace.json").read_text())
    assert len({event["pid"] for event in events}) == 3
    assert command_line.main(["trace", str(tmp_path), "--steps", "7"]) == 1
    assert "no rank has finished a tensor in step 7" in capsys.readouterr().err
    assert command_line.main(["trace", str(tmp_path / "none")]) == 1
    assert f"run the job with SLUICE_TRACE={tmp_path}/none" in capsys.readouterr().err
