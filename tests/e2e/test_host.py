"""What goes wrong on a host around the appliance and its workers ends no synchronous job.

The flapping of a link is in test_flap.py, an appliance that stands still in test_restart.py; that
no clock but the monotonic one is read is a rule of the style check.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import READY, Lab, LabError, missing, stop
from workers import BUILD, finish, start, wait_joined, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

STEPS = 600


@contextlib.contextmanager
def job(lab, hosts=(0, 1), pause_ms=5):
    """A job of a rank a host is under way inside, and has ended with all its sums exact after."""
    ranks = [start(lab, host, lab.url, rank, len(hosts), steps=STEPS, pause_ms=pause_ms,
                   elems=5000) for rank, host in enumerate(hosts)]
    for rank in ranks:
        wait_joined(rank)
    yield ranks
    assert any(rank.poll() is None for rank in ranks), "it had ended before anything went wrong"
    for rank in ranks:
        report = finish(rank)
        assert report["exit"] == 0 and report["steps"] == STEPS, report


def test_a_worker_gets_a_new_address():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)
        with job(lab):
            lab.in_host(0, "ip addr add 10.77.0.99/24 dev eth0")
            lab.in_host(0, f"ip addr del {lab.address(0)}/24 dev eth0")
            lab.in_host(0, "ip addr replace 10.77.0.99/24 dev eth0")


def test_the_appliances_own_card_is_reset():
    with Lab(hosts=2) as lab:
        box = lab.start_appliance(BUILD)
        with job(lab):
            for _ in range(3):
                lab.in_box("ip link set s0 down")
                time.sleep(0.2)
                lab.in_box("ip link set s0 up")
                time.sleep(0.2)
        assert box.poll() is None


def test_a_link_that_flaps_once_a_second():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)
        with job(lab):
            for _ in range(5):
                lab.in_host(0, "ip link set eth0 down")
                time.sleep(0.5)
                lab.in_host(0, "ip link set eth0 up")
                time.sleep(0.5)


def is_ready(lab):
    with contextlib.suppress(LabError):
        return "\nsluice_ready 1\n" in lab.scrape()
    return False


def test_the_disk_for_logs_is_full():
    """Of the appliance and of a worker, at the level with the most lines."""
    with Lab(hosts=2) as lab:
        path = lab.directory / "appliance.toml"
        path.touch(mode=0o600)
        path.write_text(lab.config().replace("[appliance]", '[appliance]\nlog_level = "debug"'))
        with open("/dev/full", "wb") as full:
            box = lab.popen(None, [str(BUILD / "dataplane" / "sluiced"), "--config", str(path)],
                            stdout=full, stderr=full)
            wait_until(lambda: is_ready(lab), 300, "ready")
            env = {"SLUICE_LOG": "debug"}
            command = [str(BUILD / "tests" / "e2e" / "e2e_worker"), "--address", lab.url, "--world",
                       "2", "--steps", "50", "--elems", "5000", "--rank"]
            ranks = [lab.popen(rank, [*command, str(rank)], env=env, stdout=subprocess.PIPE,
                               stderr=full, text=True) for rank in range(2)]
            for rank in ranks:
                out, _ = rank.communicate(timeout=300)
                assert rank.returncode == 0, out
        assert box.poll() is None
        os.killpg(box.pid, signal.SIGTERM)
        assert box.wait(300) == 0


def memory_group():
    """A new control group, and the files for its limit and its processes; None if there is none."""
    for root, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                        ("/sys/fs/cgroup", "memory.max")):
        folder = Path(root) / f"sluice-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                return folder, folder / limit
            folder.rmdir()
    return None


HOG = "held = []\nwhile True: held.append(bytearray(1 << 20))"


def test_memory_runs_out_around_a_worker():
    """A process beside a rank takes all memory of their control group, again and again."""
    group = memory_group()
    if group is None:
        pytest.skip("no control group for memory can be made here")
    folder, limit = group
    hogs = 0
    try:
        limit.write_text(str(128 << 20))
        with Lab(hosts=2) as lab:
            lab.start_appliance(BUILD)
            with job(lab) as ranks:
                (folder / "cgroup.procs").write_text(str(ranks[0].pid))
                for _ in range(3):
                    hog = subprocess.Popen(
                        [sys.executable, "-c", f"input()\n{HOG}"], stdin=subprocess.PIPE,
                        start_new_session=True, preexec_fn=lambda: Path(
                            "/proc/self/oom_score_adj").write_text("900"))
                    (folder / "cgroup.procs").write_text(str(hog.pid))
                    hog.communicate(b"\n", timeout=120)
                    hogs += hog.returncode == -signal.SIGKILL
        assert hogs == 3
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), 60, "an empty group")
        folder.rmdir()


def test_a_second_appliance_with_the_same_address_is_named_and_not_believed():
    """The other one is on host 2. Both have a line with the port of the one opposite."""
    with Lab(hosts=3) as lab:
        lab.start_appliance(BUILD)
        path, log = lab.directory / "other.toml", lab.directory / "other.log"
        path.touch(mode=0o600)
        ports = lab.config().split("[[port]]")
        path.write_text(f"{ports[0]}[[port]]{ports[1].replace('s0', 'eth0')}")
        with job(lab, pause_ms=200):
            with log.open("wb") as output:
                other = lab.popen(2, [str(BUILD / "dataplane" / "sluiced"), "--config", str(path)],
                                  stdout=output, stderr=subprocess.STDOUT)
            wait_until(lambda: READY in log.read_text() or other.poll() is not None, 300, "ready")
            claims = "another appliance has its address"  # the MAC follows from the address
            for one in (log, lab.directory / "sluiced.log"):  # each asks every 10 s
                wait_until(lambda one=one: claims in one.read_text(), 120, claims)
        assert other.poll() is None, log.read_text()
        stop(other)
