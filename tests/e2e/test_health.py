"""Health as a service manager and a probe see it: readiness by name, the watchdog, the log."""

import json
import os
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from lab import Lab, missing
from vhost_box import VhostBox
from workers import BUILD, wait_until


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, page):
    """(status, text) of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """The service manager's socket: a function that returns the next datagram."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(300)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield lambda: listener.recv(4096).decode()


def test_the_service_manager_hears_that_it_is_ready_lives_and_ends(tmp_path, manager, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with VhostBox(tmp_path, ports=1) as box:
        first = manager()
        assert first.startswith("READY=1\nSTATUS=ready: 10.77.0.1 UDP port 7700"), first
        assert manager() == "WATCHDOG=1"
        assert manager() == "WATCHDOG=1"
        box.process.terminate()
        last = manager()
        while last == "WATCHDOG=1":
            last = manager()
        assert last.startswith("STOPPING=1\n"), last
        assert box.process.wait(300) == 0


def test_a_box_answers_probes_and_says_what_it_is(tmp_path):
    port = free_port()
    address = f'[metrics]\naddress = "127.0.0.1:{port}"'
    with VhostBox(tmp_path, ports=1, metrics=address):
        assert get(port, "healthz") == (200, "ok\n")
        assert get(port, "readyz") == (200, "ready\n"), "a socket waits for its guest"
        status, page = get(port, "")
        assert status == 200 and 'href="metrics"' in page
        assert get(port, "nothing")[0] == 404
        page = get(port, "metrics")[1]
        assert "\nsluice_ready 1\n" in page and 'sluice_build_info{version="' in page


def test_the_start_log_is_short_and_has_the_whole_configuration_at_debug(tmp_path):
    short, long = tmp_path / "info", tmp_path / "debug"
    for folder, level in ((short, "info"), (long, "debug")):
        folder.mkdir()
        with VhostBox(folder, ports=1, appliance_extra=f'log_level = "{level}"'):
            pass
    lines = (short / "sluiced.log").read_text().splitlines()
    assert len(lines) < 24, lines
    assert "chunk_bytes_max" not in "\n".join(lines)
    text = (long / "sluiced.log").read_text()
    assert "debug: chunk_bytes_max = " in text and "lab" not in text.split("secret")[1][:40]


def lines_for_the_journal(config, path):
    """The lines of a box that can't start, on a stderr that JOURNAL_STREAM names."""
    with path.open("wb") as stderr:
        stat = os.fstat(stderr.fileno())
        done = subprocess.run(
            [BUILD / "dataplane" / "sluiced", "--config", config], stderr=stderr, timeout=300,
            env={**os.environ, "JOURNAL_STREAM": f"{stat.st_dev}:{stat.st_ino}"}, check=False)
    assert done.returncode == 1
    return [line for line in path.read_text().splitlines() if line.startswith("<")]


def test_a_line_has_the_journals_priority_where_stderr_is_the_journal(tmp_path):
    config = tmp_path / "appliance.toml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config.write_text(
            f'[metrics]\naddress = "127.0.0.1:{taken.getsockname()[1]}"\n[[port]]\nname = "a"\n'
            f'type = "vhost-user"\npath = "{tmp_path}/a.sock"\n[appliance]\nmemory_mib = 64\n')
        lines = lines_for_the_journal(config, tmp_path / "stderr")
    assert lines[0].startswith("<6>sluiced ") and lines[-1].startswith("<3>the metrics"), lines


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_port_that_is_down_is_not_ready_by_name():
    with Lab(hosts=2) as lab:
        lab.start_appliance(BUILD)

        def ready():
            done = lab.popen(
                None,
                ["/usr/bin/python3", "-c", "import json, sys, urllib.request as u, "
                 "urllib.error as e\ntry: a = u.urlopen('http://127.0.0.1:9464/readyz', "
                 "timeout=300); print(json.dumps([a.status, a.read().decode()]))\n"
                 "except e.HTTPError as x: print(json.dumps([x.code, x.read().decode()]))"],
                stdout=subprocess.PIPE, text=True)
            return json.loads(done.communicate(timeout=300)[0])

        wait_until(lambda: ready() == [200, "ready\n"], 300, "both links up")
        link = lab.popen(1, ["ip", "link", "set", "eth0", "down"])
        assert link.wait(300) == 0
        wait_until(lambda: ready()[0] == 503, 300, "the link down")
        status, why = ready()
        assert (status, why.count("\n")) == (503, 1) and why.startswith("port \""), why
        assert lab.popen(1, ["ip", "link", "set", "eth0", "up"]).wait(300) == 0
        wait_until(lambda: ready()[0] == 200, 300, "the link up again")
