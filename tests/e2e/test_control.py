"""sluicectl and the box's local socket: what is there, who goes, who may ask."""

import os
import re
import socket
import stat
import subprocess

import pytest
from sluicectl import TOOL, Sluicectl
from vhost_box import VhostBox
from workers import finish, start, wait_joined, wait_until


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    folder = tmp_path_factory.mktemp("box")
    control = Sluicectl(folder / "control.sock")
    with VhostBox(folder, ports=2, extra=control.config('mode = "0620"')) as made:
        made.control = control
        yield made


@pytest.fixture
def workers(box, request):
    """Two ranks of a synchronous job that would step for long; its name is the test's."""
    made = [start(None, None, box.url(rank), rank, 2, job=request.node.name[:30], steps=1_000_000,
                  elems=2_000, pause_ms=5) for rank in range(2)]
    for worker in made:
        wait_joined(worker)
    yield made
    for worker in made:
        worker.kill()
        worker.communicate()


def test_shows_the_box_its_jobs_members_and_ports(box, workers, request):
    name = request.node.name[:30]
    status = box.control.ask("status")
    assert status["ready"] and status["reasons"] == [] and status["jobs"] == 1
    assert status["buffers_capacity"] > status["buffers_in_use"]
    wait_until(lambda: box.control.ask("jobs")["jobs"][0]["step"] > 2, 300, "steps")
    job = box.control.ask("jobs")["jobs"][0]
    assert (job["job"], job["state"], job["members"], job["policy"]) == (name, "running", 2, "sync")
    members = box.control.ask("members", name)["members"]
    assert [member["state"] for member in members] == ["joined", "joined"]
    assert all(member["included_chunks"] > 0 for member in members)
    ports = box.control.ask("ports")["ports"]
    assert [(port["port"], port["up"]) for port in ports] == [("worker0", True), ("worker1", True)]
    assert all(port["rx_packets"] > 0 and port["tx_bytes"] > 0 for port in ports)

    lines = box.control.table("status")
    assert lines[0] == "ready" and lines[1].startswith("sluiced ") and "up " in lines[1]
    assert re.match(rf"{name} +running +2/2 +\d+ +sync", box.control.table("jobs")[1])
    assert len(box.control.table("members", name)) == 3
    assert box.control.table("ports")[0].split()[:3] == ["port", "link", "changes"]


def test_kick_ends_a_job_and_its_workers_learn_who_did_it(box, workers, request):
    name = request.node.name[:30]
    assert box.control.table("kick", name) == [f'kicked job "{name}"']
    for worker in workers:
        report = finish(worker)
        assert report["exit"] != 0
        assert "the operator of the appliance has ended it" in report["error"]
    assert f'sluicectl kicked job "{name}"' in box.log.read_text()


def test_kick_of_a_rank_names_it(box, workers, request):
    name = request.node.name[:30]
    assert box.control.table("kick", name, 1) == [f'kicked rank 1 of job "{name}"']
    report = finish(workers[0])
    assert "has removed rank 1 at" in report["error"]


def test_a_mistake_is_answered_with_what_there_is(box):
    done = box.control.run("members", "nothing")
    assert done.returncode == 1 and 'no job "nothing" on this box' in done.stderr
    assert box.control.run("kick").returncode == 2
    assert box.control.run("log-level", "loud").returncode == 2


def raw(box, text):
    """The answer to any bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(300)
        peer.connect(str(box.control.path))
        peer.sendall(text)
        peer.shutdown(socket.SHUT_WR)
        parts = []
        while part := peer.recv(4096):
            parts.append(part)
    return b"".join(parts).decode()


def test_the_box_refuses_by_name_what_the_tool_would_not_send(box):
    assert '"error":"no command \\"explode\\"; there are: status, jobs, ' in raw(box, b"explode")
    assert "give kick JOB [RANK]" in raw(box, b"kick")
    assert '\\"x\\" is no rank' in raw(box, b"kick\njob\nx")
    assert "give one of trace, debug, info, warning, error" in raw(box, b"log-level\nloud")
    assert raw(box, b"x" * 5000) == "", "too long to be a request"
    assert '"ok":false' in raw(box, bytes(range(1, 256)))
    assert box.control.ask("status")["ok"]


def test_the_sockets_file_is_as_the_settings_say(box):
    info = os.stat(box.control.path)
    assert stat.S_ISSOCK(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o620


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_told_what_to_do(box):
    done = subprocess.run(
        ["/usr/bin/python3", "-B", "-c",
         "import os, runpy, sys; tool = compile(open(sys.argv[1]).read(), 'sluicectl', 'exec'); "
         "os.setuid(65534); sys.argv = sys.argv[1:]; exec(tool, {'__name__': '__main__'})",
         str(TOOL), "--socket", str(box.control.path), "status"],
        capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3 and "not for this user" in done.stderr, done.stderr


def test_log_level_changes_at_once(box):
    assert box.control.table("log-level", "debug") == ["the log level is debug"]
    assert box.control.ask("status")["log_level"] == "debug"
    assert box.control.table("log-level", "info") == ["the log level is info"]


def test_without_a_box_the_tool_says_so(tmp_path):
    done = Sluicectl(tmp_path / "none.sock").run("status")
    assert done.returncode == 3 and "start sluiced, or give --socket" in done.stderr


def test_a_socket_that_was_left_behind_is_replaced_and_a_live_one_is_not(box, tmp_path):
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(left))
    control = Sluicectl(left)
    with VhostBox(tmp_path, ports=1, extra=control.config()):
        assert control.ask("status")["ready"]
    assert not left.exists(), "removed at the end"
    with pytest.raises(AssertionError, match="another process answers there"):
        with VhostBox(tmp_path, ports=1, extra=box.control.config()):
            pass


def test_completion_offers_commands_jobs_and_levels():
    script = f"""
      source {TOOL}.bash
      sluicectl() {{ printf 'job state\\ndigits running\\n'; }}
      complete_at() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sluicectl
                       echo "${{COMPREPLY[*]}}"; }}
      complete_at sluicectl m
      complete_at sluicectl kick d
      complete_at sluicectl --json log-level e
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300,
                          check=True)
    assert done.stdout.splitlines() == ["members", "digits", "error"], done
