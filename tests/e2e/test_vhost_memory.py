"""A vhost-user client that cuts off the memory that it shares ends its own port, no other's job.
One that comes and goes does not fill the log."""

import os
import signal
import socket
import time

import pytest

from vhost_box import VhostBox
from workers import finish, start, wait_joined


def shared_memory(pid: int) -> list:
    """Descriptors of the memory that DPDK shares with the appliance: one file without a name."""
    folder = f"/proc/{pid}/fd"
    paths = [f"{folder}/{number}" for number in os.listdir(folder)]
    return [path for path in paths if "nohuge" in os.readlink(path)]


def stop(pid: int) -> None:
    """Stops the process. A thread that still runs when this returns would touch its memory."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    for task in os.listdir(f"/proc/{pid}/task"):
        while True:
            with open(f"/proc/{pid}/task/{task}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "T":
                    break
            assert time.monotonic() < deadline, f"thread {task} does not stop"
            time.sleep(0.001)


# A client that lives on without touching what it cut off keeps its port connected; one that
# does touch it dies of its own deed at once, and its socket closes.
@pytest.mark.parametrize("lives_on", [False, True])
def test_truncated_guest_memory_ends_only_the_job_behind_its_port(tmp_path, lives_on):
    with VhostBox(tmp_path, ports=4) as box:
        bystanders = [
            start(None, None, box.url(2 + rank), rank, 2, job="calm", steps=400, pause_ms=10,
                  elems=20_000, run_id=1)
            for rank in range(2)
        ]
        for worker in bystanders:
            wait_joined(worker)
        victims = [
            start(None, None, box.url(rank), rank, 2, job="victim", steps=100_000, elems=40_000,
                  run_id=2)
            for rank in range(2)
        ]
        for worker in victims:
            wait_joined(worker)
        time.sleep(0.3)
        memory = shared_memory(victims[0].pid)
        assert memory, "the victim shares no memory"
        if lives_on:
            stop(victims[0].pid)
        for path in memory:
            with open(path, "r+b") as file:
                os.ftruncate(file.fileno(), 0)
        survivor = finish(victims[1], timeout=300)
        assert survivor["exit"] == 3 and "rank 0" in survivor["error"], survivor
        for worker in bystanders:
            report = finish(worker)
            assert report["exit"] == 0, report
        assert box.process.poll() is None, box.log.read_text(errors="replace")[-2000:]
        log = box.log.read_text(errors="replace")
        assert not lives_on or "took away the memory" in log, log[-2000:]
        os.killpg(victims[0].pid, signal.SIGKILL)
        finish(victims[0])
        # The port serves the next client.
        again = [
            start(None, None, box.url(rank), rank, 2, job="again", steps=20, elems=20_000, run_id=3)
            for rank in range(2)
        ]
        for worker in again:
            report = finish(worker)
            assert report["exit"] == 0, report


def test_a_client_that_comes_and_goes_with_nonsense_does_not_fill_the_log(tmp_path):
    with VhostBox(tmp_path, ports=2) as box:
        for _ in range(300):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"{tmp_path}/port0.sock")
                client.send(b"x" * 12)
                while client.recv(1):  # until it is closed
                    pass
        ranks = [start(None, None, box.url(rank), rank, 2, steps=20) for rank in range(2)]
        for rank in ranks:
            report = finish(rank)
            assert report["exit"] == 0, report
        log = box.log.read_text(errors="replace")
        assert 0 < log.count(" dpdk: ") < 100, log[-2000:]
