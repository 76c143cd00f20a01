"""A worker's place in a BCube by the environment alone: SLUICE_ADDRESS says its shape, and the
variables of BCUBE.md the rest."""

import numpy
import pytest
import ranks
from inproc import SPECS, on_threads

import sluice
from sluice import bcube
from sluice.launch import free_port


@pytest.fixture
def plan(library, tmp_path):
    """Of a BCube(2, 2) on loopback, whose workers sum for each other."""
    port = free_port() & ~1
    bcube.write_plan(bcube.Cube(2, 2), "plain", f"udp://127.{{level}}.{{switch}}.{{host}}:{port}",
                     tmp_path / "cube")
    return tmp_path / "cube" / "cube.toml"


def joins_by_its_environment(rank, has_rank):
    import os
    import numpy
    import sluice
    if not has_rank:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    with sluice.Job([("weight", 1000, "float32")]) as job:
        weight = numpy.arange(1000, dtype=numpy.float32) + 4 * job.rank
        job.submit("weight", weight)
        job.wait_step()
        parts = [[part["thread"], part["level"]] for part in job.part_stats()]
        job.barrier()
        return job.rank, job.world_size, parts, bool((weight == numpy.arange(1000) + 6).all())


@pytest.mark.parametrize("has_rank", [True, False])
def test_a_file_a_mode_and_digits_are_found_in_the_environment(plan, tmp_path, has_rank):
    cube = bcube.Cube(2, 2)
    arguments = {"has_rank": has_rank}
    values = ranks.run(joins_by_its_environment, 4, tmp_path, arguments=arguments, environment={
        "SLUICE_ADDRESS": "bcube://2,2", "SLUICE_SECRET": "cube", "SLUICE_BCUBE_FILE": str(plan),
        "SLUICE_BCUBE_MODE": "plain"}, own=lambda rank: {
            "SLUICE_BCUBE_DIGITS": ",".join(map(str, cube.digits(rank)))})
    assert values == [[rank, 4, [[0, 0], [0, 1], [1, 0], [1, 1]], True] for rank in range(4)]


def test_levels_are_found_in_the_environment(library, tmp_path, monkeypatch):
    # One level: all workers of this process have the same appliance.
    monkeypatch.setenv("SLUICE_ADDRESS", "bcube://3,1")
    monkeypatch.setenv("SLUICE_BCUBE_LEVELS", f"inproc://{tmp_path.name}")

    def work(rank):
        with sluice.Job(SPECS, rank=rank, world_size=3, run_id=1) as job:
            weight = numpy.arange(1000, dtype=numpy.float32) + 3 * rank
            job.submit("weight", weight)
            job.submit("bias", numpy.zeros(7, numpy.float32))
            job.wait_step()
            assert (weight == numpy.arange(1000) + 3).all()
            return len(job.part_stats())

    assert on_threads(work, 3) == [1] * 3


@pytest.mark.parametrize("address, variables, words", [
    ("bcube://2,2", {}, "where the appliances are is not said"),
    ("bcube://2,2", {"FILE": "{plan}", "LEVELS": "inproc://a,inproc://b"},
     "SLUICE_BCUBE_FILE: file .* and SLUICE_BCUBE_LEVELS: levels .* are both given"),
    ("bcube://2,2", {"FILE": "{plan}", "MODE": "aggregated"}, "mode aggregated, but .* says plain"),
    ("bcube://2,2", {"FILE": "{plan}", "DIGITS": "0,1"},
     "digits 0,1 are those of rank 2, but this is rank 1, whose digits are 1,0"),
    ("bcube://2,2", {"FILE": "{plan}.away"}, r"cube\.toml\.away"),
    ("bcube://2,2", {"LEVELS": "inproc://a"},
     r"SLUICE_BCUBE_LEVELS: levels inproc://a: 1 addresses, but bcube\(2,2\) has 2 levels"),
    ("bcube://2,2?digits=0,1", {"FILE": "{plan}", "DIGITS": "1,0"}, "digits 0,1 are those of")])
def test_what_the_environment_says_wrongly_is_refused_by_value(plan, monkeypatch, address,
                                                               variables, words):
    monkeypatch.setenv("SLUICE_ADDRESS", address)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLUICE_BCUBE_{name}", value.format(plan=plan))
    with pytest.raises(sluice.Error, match=words):
        sluice.Job(SPECS, rank=1, world_size=4, run_id=1)
