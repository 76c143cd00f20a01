"""Every mistake ends within 5 s in an error that names address, job, ranks and both values."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import pytest
from lab import Lab, missing
from tiers import within
from workers import BUILD, finish, read_line, start, wait_joined, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def lab():
    with Lab(hosts=3) as made:
        made.appliance = made.start_appliance(BUILD, made.config(member_timeout_s=3))
        yield made


def fails(report, *words, status=None):
    assert report["exit"] == 3, report
    for word in words:
        assert word in report["error"], f"{word!r} is not in: {report['error']}"
    if status:
        assert report["status"] == status, report


def timed(process, limit=5.0):
    begin = time.monotonic()
    report = finish(process)
    within(time.monotonic() - begin, limit, report)
    return report


def test_an_appliance_that_is_not_there(lab):
    report = timed(start(lab, 0, "udp://10.77.0.12:7700", 1, 2, job="nobody"))
    fails(report, "10.77.0.12:7700", "nobody", "rank 1", status="unreachable")
    report = timed(start(lab, 0, "udp://10.77.0.99:7700", 1, 2, job="nobody"))
    fails(report, "10.77.0.99:7700", "nobody", "rank 1", status="unreachable")


def test_a_wrong_secret(lab):
    report = timed(start(lab, 0, lab.url, 1, 2, job="secret", secret="wrong"))
    fails(report, "10.77.0.1:7700", "secret", "rank 1", status="refused")


FOREIGN_JOIN = """
import select, socket, struct
join = struct.pack("<HBBHHQQ", 0x51C5, 99, 1, 0, 0, 0, 0x5EED) + bytes(300)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    for attempt in range(20):
        sock.sendto(join, ("10.77.0.1", 7700))
        if select.select([sock], [], [], 0.25)[0]:
            reply = sock.recv(65536)
            nonce, code, text_bytes = struct.unpack_from("<QHH", reply, 16)
            print(hex(nonce), code, reply[28:28 + text_bytes].decode())
            break
"""


def test_a_library_of_another_release_is_told_of_both_versions(lab):
    worker = lab.popen(0, [sys.executable, "-c", FOREIGN_JOIN], stdout=subprocess.PIPE, text=True)
    told = worker.communicate(timeout=300)[0]
    assert told.startswith("0x5eed 2 it speaks version 99 of the protocol, the appliance version")


@contextlib.contextmanager
def rank_0_there(lab, job, **options):
    """Of two; it waits for the other."""
    run_id = time.monotonic_ns()
    first = start(lab, 0, lab.url, 0, 2, job=job, run_id=run_id, **options)
    try:
        there = f'sluice_job_members{{job="{job}"}} 1\n'
        wait_until(lambda: there in lab.scrape(), 300, "one joins")
        yield run_id
    finally:
        first.kill()
        finish(first)


def test_another_layout(lab):
    with rank_0_there(lab, "layout", elems=1000) as run_id:
        second = start(lab, 1, lab.url, 1, 2, job="layout", run_id=run_id, elems=1001)
        report = timed(second)
    fails(report, lab.url, "layout of rank 1", "job 'layout'", "set by rank 0", status="refused")


def test_two_workers_with_the_same_rank(lab):
    with rank_0_there(lab, "twice") as run_id:
        report = timed(start(lab, 1, lab.url, 0, 2, job="twice", run_id=run_id))
    fails(report, "twice", "rank 0", lab.address(0), status="refused")


def test_a_world_size_that_disagrees(lab):
    with rank_0_there(lab, "world") as run_id:
        report = timed(start(lab, 1, lab.url, 1, 3, job="world", run_id=run_id))
    fails(report, lab.url, "world size 3", "job 'world' has world size 2", status="refused")


def test_an_mtu_that_does_not_carry_a_chunk(lab):
    report = timed(start(lab, 0, lab.url, 0, 1, job="mtu", mtu=9000))
    fails(report, "10.77.0.1:7700", "mtu", "1472", "8926")


def test_a_smaller_mtu_at_the_appliance():
    with Lab(hosts=1) as small:
        config = small.config(port_mtu=1000, limits="chunk_bytes_max = 832")
        small.start_appliance(BUILD, config)
        report = timed(start(small, 0, small.url, 0, 1, job="mtu"))
        fails(report, "10.77.0.1:7700", "mtu", "972", "1438")


def test_ranks_that_do_not_come_are_named(lab):
    report = timed(start(lab, 0, lab.url, 1, 3, job="absent", join_timeout_ms=2000))
    fails(report, "absent", "0", "2", status="timed out")


def test_a_process_that_dies_ends_the_job_with_its_rank_named(lab):
    options = dict(job="death", run_id=time.monotonic_ns(), steps=100000, elems=5000)
    workers = [start(lab, rank, lab.url, rank, 3, **options) for rank in range(3)]
    for worker in workers:
        wait_joined(worker)
    time.sleep(0.5)
    os.killpg(workers[1].pid, signal.SIGKILL)
    for rank in (0, 2):
        report = timed(workers[rank])
        fails(report, "death", "rank 1", status="peer lost")
    finish(workers[1])


def test_an_idle_process_that_dies_is_noticed_too(lab):
    options = dict(job="idle", run_id=time.monotonic_ns(), steps=2, pause_ms=20000, elems=50)
    workers = [start(lab, rank, lab.url, rank, 2, **options) for rank in range(2)]
    for worker in workers:
        wait_joined(worker)
    time.sleep(1)
    log = lab.directory / "sluiced.log"
    line = f'job "idle" has ended: rank 0 at {lab.address(0)}:'
    told = lambda: log.read_text(errors="replace").count(line)
    before, begin = told(), time.monotonic()
    try:
        os.killpg(workers[0].pid, signal.SIGKILL)
        finish(workers[0])
        wait_until(lambda: told() > before, 300, "the death in the log")
        within(time.monotonic() - begin, 5)
    finally:
        os.killpg(workers[1].pid, signal.SIGKILL)
        finish(workers[1])


def test_a_silent_host_is_noticed_after_member_timeout_plus_one_second(lab):
    options = dict(job="silent", run_id=time.monotonic_ns(), steps=100000, elems=5000)
    workers = [start(lab, rank, lab.url, rank, 2, **options) for rank in range(2)]
    for worker in workers:
        wait_joined(worker)
    time.sleep(0.5)
    begin = time.monotonic()
    lab.in_host(0, "ip link set eth0 down")
    try:
        report = finish(workers[1])
        took = time.monotonic() - begin
        fails(report, "silent", "rank 0", status="peer lost")
        assert took >= 2.5, f"member_timeout is 3 s, the job ended after {took:.1f} s"
        within(took, 4.5, "member_timeout is 3 s")
    finally:
        lab.in_host(0, "ip link set eth0 up")
        os.killpg(workers[0].pid, signal.SIGKILL)
        finish(workers[0])


def test_a_stalled_step_is_reported_with_the_tensors_and_ranks_that_are_missing(lab):
    workers = [
        start(
            lab,
            rank,
            lab.url,
            rank,
            2,
            job="stall",
            steps=1,
            tensors=3,
            elems=3000,
            stall_report_ms=1000,
            **({"skip_tensor": 1, "pause_ms": 300_000} if rank == 0 else {}),
        )
        for rank in range(2)
    ]
    for worker, words in zip(workers, [["layer1.weight"], ["layer1.weight", "rank 0"]]):
        line = ""  # the first report may come before the appliance has said who is missing
        while not (line.startswith("STALL ") and all(word in line for word in words)):
            assert select.select([worker.stdout], [], [], 60)[0], f"{words} in no stall report"
            line = read_line(worker)
            assert line, f"it ended: {finish(worker)}"
    for worker in workers:
        os.killpg(worker.pid, signal.SIGTERM)
        finish(worker)


def test_a_rank_that_nobody_joins_says_for_whom_it_waits_and_so_does_the_box(lab):
    worker = start(lab, 0, lab.url, 0, 2, job="alone", stall_report_ms=1000)
    line = ""
    while "STALL" not in line:
        assert select.select([worker.stdout], [], [], 60)[0], "no report"
        line = read_line(worker)
        assert line, f"it ended: {finish(worker)}"
    assert "1 of 2 ranks here; waiting for rank 1" in line
    told = 'job "alone" is forming: 1 of 2 ranks here; waiting for rank 1'
    log = lab.directory / "sluiced.log"
    wait_until(lambda: told in log.read_text(errors="replace"), 300, told)
    os.killpg(worker.pid, signal.SIGTERM)
    finish(worker)


def test_the_appliance_that_ends_tells_its_members():
    with Lab(hosts=2) as own:
        box = own.start_appliance(BUILD)
        workers = [
            start(own, rank, own.url, rank, 2, steps=100000, elems=5000, restart_ms=0)
            for rank in range(2)
        ]
        for worker in workers:
            wait_joined(worker)
        time.sleep(0.5)
        box.terminate()
        for worker in workers:
            report = timed(worker)
            fails(
                report,
                "10.77.0.1:7700",
                status="closed" if report["status"] == "closed" else "peer lost",
            )
        assert box.wait(300) == 0


def test_an_appliance_killed_without_a_word_is_noticed_in_5_s():
    with Lab(hosts=2) as own:
        box = own.start_appliance(BUILD)
        workers = [
            start(own, rank, own.url, rank, 2, steps=100000, elems=5000, restart_ms=0)
            for rank in range(2)
        ]
        for worker in workers:
            wait_joined(worker)
        os.killpg(box.pid, signal.SIGKILL)
        for worker in workers:
            fails(timed(worker), "10.77.0.1:7700", status="unreachable")
