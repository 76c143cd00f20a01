"""Changes of a running box: all or nothing, and without a lost packet."""

import os
import re
import signal
import subprocess

import pytest
from lab import Lab, metric, missing
from sluicectl import Sluicectl
from vhost_box import VhostBox
from workers import BUILD, finish, start, wait_joined, wait_until


@pytest.fixture
def box(tmp_path):
    """A box whose secret is in a file; its configuration file is `box.config`."""
    secret = tmp_path / "secret"
    secret.write_text("sesame\n")
    secret.chmod(0o600)
    control = Sluicectl(tmp_path / "control.sock")
    with VhostBox(tmp_path, ports=2, secret="", extra=control.config(),
                  appliance_extra=f'secret_file = "{secret}"') as made:
        made.control, made.secret, made.config = control, secret, tmp_path / "appliance.toml"
        yield made


def edit(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def one_step(box, rank, secret, job):
    return finish(start(None, None, box.url(rank), 0, 1, job=job, secret=secret, steps=2))


def test_an_older_secret_is_good_as_long_as_its_line_is_there(box):
    box.secret.write_text("tahini\nsesame\n")
    answer = box.control.ask("reload")
    changes = {change["setting"]: change["after"] for change in answer["changes"]}
    assert changes == {"appliance.secret": "6 bytes, not shown",
                       "appliance.secret_file's older secrets": "1"}
    assert one_step(box, 0, "sesame", "old")["exit"] == 0
    assert one_step(box, 1, "tahini", "new")["exit"] == 0
    box.secret.write_text("tahini\n")
    assert box.control.ask("reload")["ok"]
    refused = one_step(box, 0, "sesame", "older")
    assert refused["exit"] != 0 and "wrong secret" in refused["error"]
    assert one_step(box, 1, "tahini", "newer")["exit"] == 0
    assert "tahini" not in box.log.read_text() and "sesame" not in box.log.read_text()


def test_limits_and_policies_are_those_of_the_file_for_jobs_to_come(box):
    edit(box.config, ("[limits]", "[policy]\npolicy = \"fixed\"\nk = 1\n[limits]\njobs = 1"))
    answer = box.control.ask("reload")
    assert {(one["setting"], one["after"]) for one in answer["changes"]} == {
        ("limits.jobs", "1"), ("policy.policy", '"fixed"')}
    assert "limits.jobs: 16 -> 1" not in box.control.table("reload"), "it is applied already"
    worker = start(None, None, box.url(0), 0, 1, job="first", secret="sesame", steps=1_000_000,
                   pause_ms=5)
    wait_joined(worker)
    assert box.control.ask("jobs")["jobs"][0]["policy"] == "fixed"
    refused = one_step(box, 1, "sesame", "second")
    assert "limits.jobs" in refused["error"], refused
    worker.kill()
    worker.communicate()


def test_what_needs_a_restart_is_refused_by_name_and_nothing_is_applied(box):
    edit(box.config, ("[limits]", "[limits]\njobs = 3\nworkers_per_job = 7"),
         ("memory_mib = 256", "memory_mib = 257"),
         ('name = "worker1"', 'name = "worker1"\nmtu = 999'))
    error = box.control.ask("reload")["error"]
    for part in ("appliance.memory_mib (256 -> 257)", 'port "worker1" mtu (1500 -> 999)',
                 "limits.workers_per_job (64 -> 7)", "restart sluiced"):
        assert part in error, error
    assert "limits.jobs" not in error
    edit(box.config, ("\nworkers_per_job = 7", ""), ("257", "256"), ("\nmtu = 999", ""))
    assert [one["setting"] for one in box.control.ask("reload")["changes"]] == ["limits.jobs"]


def test_a_file_with_errors_is_refused_with_all_of_them(box):
    edit(box.config, ("[limits]", "[limits]\njobz = 3\nprefix_jobs = -1"))
    error = box.control.ask("reload")["error"]
    assert re.search(r"toml:\d+: unknown key in \[limits\]: \"jobz\"; did you mean", error), error
    assert "prefix_jobs has a wrong value: -1" in error


def test_sighup_reloads_and_says_what_has_changed(box):
    edit(box.config, ("[limits]", "[limits]\njobs = 5"))
    box.process.send_signal(signal.SIGHUP)
    line = "SIGHUP: settings that have changed: 1"
    wait_until(lambda: line in box.log.read_text(), 300, "a line about the signal")
    assert "limits.jobs is 5, was 16" in box.log.read_text()
    edit(box.config, ("memory_mib = 256", "memory_mib = 300"))
    box.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "appliance.memory_mib (256 -> 300)" in box.log.read_text(), 300, "a refusal")
    assert box.control.ask("status")["ready"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_no_frame_is_lost_while_rules_classes_and_rates_change_under_traffic():
    """Two ranks sum, and a host floods another one with pings, while the box reloads again and
    again. A ping that is lost in the box would never be answered."""
    with Lab(hosts=4) as lab:
        control = Sluicectl(lab.directory / "control.sock")
        plain = lab.config(extra=control.config())
        lab.start_appliance(BUILD, plain)
        path = lab.directory / "appliance.toml"
        workers = [start(lab, rank, lab.url, rank, 2, job="sums", steps=2_000_000, elems=20_000)
                   for rank in range(2)]
        for worker in workers:
            wait_joined(worker)
        flood = lab.popen(2, ["ping", "-f", "-s", "1000", "-W", "300", "-w", "300", "-c", "3000",
                              lab.address(3)], stdout=subprocess.PIPE, text=True)
        for turn in range(12):
            rate = (20_000, 0, 10_000, 40_000)[turn % 4]
            tables = "[[class]]\nindex = 56\nshare = 0.25\n" * (turn % 2)
            for at in range(turn % 3):
                tables += f'[[rule]]\nclass = {10 + at}\nprotocol = "udp"\nport = {9000 + at}\n'
            ports = re.sub(r'(name = "host\d")', rf"\1\nrate_mbps = {rate}", plain)
            path.write_text(tables + ports)
            answer = control.ask("reload")
            assert answer["ok"] and answer["changes"], answer
        out = flood.communicate(timeout=300)[0]
        assert " 0% packet loss" in out, out
        page = lab.scrape()
        lost = [line for line in page.splitlines() if not line.endswith(" 0") and re.match(
            r'sluice_port_dropped_packets_total.*"(queue_full|no_buffer|handover)"', line)]
        assert not lost, lost
        assert metric(page, "sluice_job_members") == 2
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
