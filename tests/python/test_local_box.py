"""`python3 -m sluice launch --local-box`: a private appliance around any script."""

import os
import subprocess
import sys

import pytest
from conftest import BUILD

_LAUNCH = [sys.executable, "-B", "-m", "sluice", "launch", "--local-box", "--build-dir", str(BUILD)]
_SUM = """
import array, os, sluice
with sluice.Job([("a", 4, "float32")]) as job:
    data = array.array("f", [job.rank] * 4)
    job.submit(0, data.buffer_info()[0])
    job.wait_step(timeout=300)
    print(os.environ["SLUICE_ADDRESS"].split(":")[0], data.tolist())
"""
_DEATH = """
import os, signal
def stat(pid):
    try:
        return open(f"/proc/{pid}/stat").read().split()
    except OSError:
        return [""] * 4
box = next(pid for pid in os.listdir("/proc") if pid.isdigit()
           and stat(pid)[1:4:2] == ["(sluiced)", str(os.getppid())])
os.kill(int(box), signal.SIGKILL)
while len(os.listdir(f"/proc/{box}/task")) > 1 or stat(box)[2] != "Z":
    pass
raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def built(library):
    if not (BUILD / "dataplane" / "sluiced").exists():
        pytest.skip(f"{BUILD}/dataplane/sluiced is not built")


def launch(folder, code, *options, count=3):
    script = folder / "script.py"
    script.write_text(code)
    return subprocess.run([*_LAUNCH, "-n", str(count), *options, str(script)], cwd=folder,
                          env={**os.environ, "TMPDIR": str(folder)}, capture_output=True,
                          text=True, timeout=300, check=False)


def test_the_ranks_sum_through_a_box_that_ends_with_them(tmp_path):
    done = launch(tmp_path, _SUM)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] vhost [1.0, 1.0, 1.0, 1.0]" for rank in range(3)]
    assert "sluice top 127.0.0.1:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"], "nothing is left"


def test_a_script_that_fails_gives_its_own_status(tmp_path):
    done = launch(tmp_path, "raise SystemExit(7)", count=1)
    assert done.returncode == 7
    assert "sluiced exited" not in done.stderr and "killed" not in done.stderr


def test_a_box_that_died_is_named_with_its_last_words(tmp_path):
    done = launch(tmp_path, _DEATH, count=1)
    assert done.returncode == 3, done.stderr
    assert "sluice launch: sluiced was killed by SIGKILL. Its last words:" in done.stderr
    assert "ready:" in done.stderr


@pytest.mark.parametrize("options, words", [
    (["--address", "udp://h"], "--local-box and --address udp://h: give one"),
    (["--nnodes", "2", "--master-port", "29500"], "--nnodes 2: workers of other machines"),
])
def test_a_box_for_one_machine_is_not_given_to_others(tmp_path, options, words):
    done = launch(tmp_path, "pass", *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_without_sluiced_the_ways_to_get_it_are_named(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("pass")
    done = subprocess.run([*_LAUNCH[:-1], str(tmp_path), "-n", "1", str(script)], text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"there is no sluiced at {tmp_path}" in done.stderr and "Debian package" in done.stderr
