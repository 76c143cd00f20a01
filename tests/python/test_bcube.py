"""BCube: the plan's files, and jobs over them in one process."""

import itertools
import os
import subprocess
from pathlib import Path

import numpy
import pytest
from inproc import on_all_ranks

import sluice
from sluice import __main__ as command_line
from sluice import bcube, trace

SLUICED = Path(os.environ.get("SLUICE_BUILD", "build")) / "dataplane" / "sluiced"


def test_a_level_s_switches_join_servers_that_differ_in_its_digit_alone():
    cube = bcube.Cube(3, 3)
    for level in range(3):
        for switch in range(cube.switches):
            joined = [cube.digits(server) for server in cube.servers_of(level, switch)]
            assert [digits[level] for digits in joined] == [0, 1, 2]
            for other in set(range(3)) - {level}:
                assert len({digits[other] for digits in joined}) == 1


@pytest.mark.parametrize("arguments, words", [
    (["--ports", "2", "--levels", "10"],
     "level 0, switch 256 would have udp://10.0.256.1:7700, and 256 is above 255; give another "
     "pattern, for example of numbers, udp://10.{network}.1:7700"),
    (["--ports", "250", "--levels", "1", "--mode", "plain"],
     "level 0, server 246 would have udp://10.0.0.256:7700, and 256 is above 255; give another "
     "pattern, for example of names, udp://{level}-{server}.cube:7700"),
    (["--ports", "3", "--levels", "2", "--address", "udp://10.0.0.1:{level}{switch}7000"],
     "level 1, switch 0 would have udp://10.0.0.1:107000, and ports are 1 to 65519, not 107000"),
    (["--ports", "3", "--levels", "2", "--address", "10.{level}.{switch}.1"],
     "addresses are udp://; give for example udp://10.{level}.{switch}.1:7700"),
    (["--ports", "3", "--levels", "2", "--address", "udp://10.{level:s}.{switch}.1"],
     "Unknown format code 's'"),
    (["--ports", "3", "--levels", "2", "--address", "udp://10.{level"],
     "it may hold {level}, {switch}, {network}"),
    (["--ports", "3", "--levels", "2", "--interface", "eth{port}"],
     "--interface eth{port}: it may hold {digit}, {server}, not port"),
    (["--ports", "3", "--levels", "2", "--interface", "eth"],
     "all ports of a switch would have it; give for example eth{digit}"),
    (["--ports", "33", "--levels", "1"], "an appliance has 32 ports at most, not 33; plan more")])
def test_what_a_plan_cannot_have_is_refused_with_place_and_remedy(tmp_path, capsys, arguments,
                                                                  words):
    assert command_line.main(["bcube", "plan", *arguments, "--out", str(tmp_path / "plan")]) == 2
    assert words in capsys.readouterr().out
    assert not (tmp_path / "plan").exists()


def test_workers_may_have_names_that_are_no_numbers_out_of_range(tmp_path):
    cube = bcube.Cube(2, 10)
    rows = bcube.addresses(cube, "plain", "udp://{level}-{server:04}.cube:7700")
    assert rows[9][1023] == "udp://9-1023.cube:7700" and rows[0][7] == "udp://0-0007.cube:7700"
    bcube.write_plan(cube, "plain", "udp://{level}-{server}.cube:7700", tmp_path)


def check_config(file):
    """What `sluiced --check-config` says but for warnings and the interfaces, which are those of
    another machine."""
    if not SLUICED.exists():
        pytest.skip(f"{SLUICED} is not built")
    done = subprocess.run([SLUICED, "--check-config", "--config", file], capture_output=True,
                          text=True)
    said = (done.stdout + done.stderr).splitlines()
    assert said, done.returncode
    return [line for line in said if not line.startswith("warning: ") and
            "no such interface on this host" not in line]


@pytest.mark.parametrize("pattern, first", [
    ("udp://{level}-{switch}.cube:7700", "0-0.cube"), ("udp://10.0.{level}.{switch}", "10.0.0.0"),
    ("udp://127.{level}.{switch}.1", "127.0.0.1"), ("udp://224.{level}.{switch}.1", "224.0.0.1"),
    ("udp://010.{level}.{switch}.1", "010.0.0.1"),
    ("udp://10.{level}.{switch}.1:65520", "10.0.0.1:65520"),
    ("udp://[fd00::{level}:{switch}]:7700", "[fd00::0:0]")])
def test_addresses_that_an_appliance_cannot_have_are_refused_by_the_plan(tmp_path, capsys, pattern,
                                                                         first):
    assert command_line.main(["bcube", "plan", "--ports", "2", "--levels", "2", "--address",
                              pattern, "--out", str(tmp_path / "plan")]) == 2
    text = capsys.readouterr().out
    assert f"level 0, switch 0 would have udp://{first}" in text
    assert "for example of numbers, udp://10.{network}.1:7700" in text
    assert not (tmp_path / "plan").exists()
    # The appliance is of the same mind.
    file = tmp_path / "switch.toml"
    file.write_text(bcube.appliance_file(bcube.Cube(2, 2), 0, 0, f"udp://{first}", "w{digit}"))
    assert check_config(file)


def test_a_pattern_of_networks_fits_every_bcube():
    for levels in range(1, 11):
        for ports in range(2, 33):
            if ports ** levels <= 1024:
                rows = bcube.addresses(bcube.Cube(ports, levels), "aggregated",
                                       "udp://10.{network}.1:7700")
    assert rows[9][511] == "udp://10.19.255.1:7700"


@pytest.mark.parametrize("ports, levels, more", [
    (3, 2, []), (2, 3, ["--address", "udp://10.{network}.1:7700"]),
    (2, 2, ["--address", "udp://192.168.1{level}{switch}.254/"]), (32, 1, []),
    (4, 2, ["--address", "udp://172.{network}.1:65519", "--interface", "to{server}"])])
def test_sluiced_accepts_every_configuration_of_a_plan(tmp_path, ports, levels, more):
    assert command_line.main(["bcube", "plan", "--ports", str(ports), "--levels", str(levels),
                              *more, "--out", str(tmp_path)]) == 0
    files = sorted(tmp_path.glob("switch-*.toml"))
    assert len(files) == levels * ports ** (levels - 1)
    for file in files:
        assert check_config(file) == []


def test_the_command_says_who_has_which_address_and_how_workers_join(tmp_path, capsys):
    out = tmp_path / "plan"
    assert command_line.main(["bcube", "plan", "--ports", "3", "--levels", "2",
                              "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "worker 5 digits 2,1: udp://10.0.1.1:7700, udp://10.1.2.1:7700" in printed
    assert "level 1 switch 2     --+-- . . 2 . . 5 . . 8" in printed
    assert f"bcube://3,2?file={out}/cube.toml" in printed


def test_without_appliances_the_command_gives_each_worker_an_address_at_each_level(tmp_path,
                                                                                    capsys):
    assert command_line.main(["bcube", "plan", "--ports", "3", "--levels", "2", "--mode", "plain",
                              "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "6 ordinary switches, which only forward, with 3" in printed
    assert "worker 5 digits 2,1: udp://10.0.1.12:7700, udp://10.1.2.11:7700" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cube.toml", "drawing.txt"]


@pytest.mark.parametrize("pattern, words", [
    ("udp://10.0.0.1", "level 0, switch 0 and level 0, switch 1"),
    ("udp://10.0.{level}.1{switch}",
     "level 0, switch 0 and level 0, switch 1 are both in 10.0.0.0/24"),
    ("udp://10.{level}.{worker}.1", "worker")])
def test_a_plan_whose_addresses_are_not_apart_is_refused(tmp_path, capsys, pattern, words):
    assert command_line.main(["bcube", "plan", "--ports", "2", "--levels", "2", "--address",
                              pattern, "--out", str(tmp_path)]) == 2
    assert words in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ports, levels, mode", [
    (2, 2, "aggregated"), (3, 2, "aggregated"), (2, 2, "plain")])
def test_a_job_sums_over_the_planned_file(tmp_path, ports, levels, mode):
    cube = bcube.Cube(ports, levels)
    place = "switch" if mode == "aggregated" else "server"
    bcube.write_plan(cube, mode, f"inproc://{tmp_path.name}-{{level}}-{{{place}}}", tmp_path)

    def work(job):
        got = []
        for step in range(3):
            weight = numpy.arange(1000, dtype=numpy.float32) + job.rank + step
            bias = numpy.full(7, job.rank, numpy.float32)
            job.submit("weight", weight)
            job.submit("bias", bias)
            job.wait_step()
            got.append((weight.tobytes(), bias.tobytes()))
        job.barrier()
        parts = job.part_stats()
        assert [(part["thread"], part["level"]) for part in parts] == [
            (thread, level) for thread in range(levels) for level in range(levels)]
        assert 0 < sum(part["bytes_sent"] for part in parts) < job.stats()["bytes_sent"]
        return got

    found = on_all_ranks(work, cube.servers, f"bcube://{ports},{levels}?file={tmp_path}/cube.toml")
    assert all(each == found[0] for each in found)
    weight, bias = (numpy.frombuffer(values, numpy.float32) for values in found[0][2])
    workers = numpy.float32(cube.servers)
    sums = sum(numpy.arange(1000, dtype=numpy.float32) + 2 + rank for rank in range(cube.servers))
    assert (weight == sums / workers).all()
    assert (bias == numpy.float32(sum(range(cube.servers))) / workers).all()


def test_workers_of_a_plan_with_names_find_each_other(library, tmp_path):
    bcube.write_plan(bcube.Cube(2, 2), "plain", "udp://localhost:2{level}{server}70", tmp_path)

    def work(job):
        weight = numpy.full(1000, 2 * job.rank, numpy.float32)
        job.submit("weight", weight)
        job.submit("bias", numpy.zeros(7, numpy.float32))
        job.wait_step()
        job.barrier()
        return (weight == 3).all()

    assert all(on_all_ranks(work, 4, f"bcube://2,2?file={tmp_path}/cube.toml", secret="cube"))


@pytest.mark.parametrize("mode", ["aggregated", "plain"])
def test_a_trace_shows_each_tensor_s_parts_by_thread_and_level(tmp_path, mode):
    cube = bcube.Cube(2, 2)
    place = "switch" if mode == "aggregated" else "server"
    bcube.write_plan(cube, mode, f"inproc://{tmp_path.name}-{{level}}-{{{place}}}", tmp_path)
    folder = tmp_path / "traces"

    def work(job):
        for _ in range(3):
            job.submit("weight", numpy.ones(1000, numpy.float32))
            job.submit("bias", numpy.ones(7, numpy.float32))
            job.wait_step()

    on_all_ranks(work, 4, f"bcube://2,2?file={tmp_path}/cube.toml", trace=folder)
    merged = trace.merge(folder)
    assert merged.ranks == [0, 1, 2, 3] and merged.steps == [1, 2, 3]
    tracks = {e["tid"]: e["args"]["name"] for e in merged.events if e["name"] == "thread_name"}
    steps = [e for e in merged.events if e["ph"] == "X" and e["name"].startswith("step ")]
    for rank, (tensor, name) in itertools.product(range(4), enumerate(("weight", "bias"))):
        mine = [e for e in steps if e["pid"] == rank + 1 and e["args"]["tensor"] == tensor]
        whole = {e["args"]["step"]: e for e in mine if "thread" not in e["args"]}
        parts = [e for e in mine if "thread" in e["args"]]
        assert sorted(whole) == [1, 2, 3] and parts
        for part in parts:
            args, of = part["args"], whole[part["args"]["step"]]
            assert tracks[part["tid"]].startswith(
                f"{name}: thread {args['thread']}, stage {args['stage']} {args['way']}, "
                f"level {args['level']}")
            # BCube(2, 2): a thread begins at the level of its number and turns at the other.
            assert args["level"] == (args["thread"] + args["stage"]) % 2
            assert args["way"] == "turn" if args["stage"] == 1 else args["way"] in ("up", "down")
            assert args["switch"] == (rank % 2 if args["level"] == 1 else rank // 2)
            assert args["detoured"] is False
            # A packet that says of many slices that there is no data counts for one.
            assert args["packets"] > 0 or args["k"] > 0
            assert of["ts"] <= part["ts"] + 0.01
            assert part["ts"] + part["dur"] <= of["ts"] + of["args"]["result_us"] + 0.01
        for step in (1, 2, 3):  # all of the tensor has gone up at once
            first = [args["bytes"] for args in (e["args"] for e in parts)
                     if (args["step"], args["stage"], args["way"]) == (step, 0, "up")]
            assert sum(first) == whole[step]["args"]["bytes"]


# 257 needs nine bits; all ranks round alike, so their average is what each of them sent.
@pytest.mark.parametrize("options", [{"wire": "bfloat16"}, {"wire": "int8"},
                                     {"prune": "static", "prune_fraction": 0.1,
                                      "prune_min_elems": 1}])
def test_what_a_wire_format_or_pruning_loses_comes_later(tmp_path, options):
    cube = bcube.Cube(2, 2)
    bcube.write_plan(cube, "aggregated", f"inproc://{tmp_path.name}-{{level}}-{{switch}}", tmp_path)

    def work(job):
        total = numpy.zeros(1000, numpy.float32)
        for _ in range(3):
            weight = numpy.arange(1000, dtype=numpy.float32) % 257 + 1
            job.submit("weight", weight)
            job.submit("bias", numpy.ones(7, numpy.float32))
            job.wait_step()
            total += weight
        residual = numpy.zeros(1000, numpy.float32)
        job.get_residual("weight", residual)
        assert residual.any()
        left = job.left_behind().elem_count
        assert left == ((residual != 0).sum() if "prune" in options else 0)
        assert (total + residual == 3 * (numpy.arange(1000) % 257 + 1)).all()
        return total.tobytes()

    found = on_all_ranks(work, 4, f"bcube://2,2?file={tmp_path}/cube.toml", **options)
    assert len(set(found)) == 1



@pytest.mark.parametrize("ports, levels", [(2, 2), (3, 2), (2, 3)])
def test_who_stands_in_knows_the_way_back_to_all_who_ask(ports, levels):
    cube = bcube.Cube(ports, levels)
    for server in range(cube.servers):
        for level in range(levels):
            other, neighbour, switch = cube.detour(server, level)
            for stand_in in cube.servers_of(level, switch):
                asks_from = cube.switch_of(server, other)
                direct = stand_in == neighbour  # at that switch itself
                route = (level, neighbour, other, asks_from)
                assert (route in cube.ways_back(stand_in)) != direct
    assert cube.ways_back(0) and bcube.Cube(4, 1).ways_back(0) == []


def test_options_that_parts_of_a_gradient_cannot_have_are_refused_by_name():
    with pytest.raises(sluice.InvalidArgument, match="world size 1.*4 servers"):
        sluice.Job([("w", 8, "float32")], "bcube://2,2?levels=inproc://a,inproc://b", rank=0,
                   world_size=1, run_id=1)
