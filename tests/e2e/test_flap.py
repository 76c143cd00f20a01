"""A link that flaps and a host that is unreachable for a moment end no synchronous job.

A job of two ranks makes short steps while the network says that rank 0 is away. A step waits for it
to come back; the job ends with all its steps and every sum exact (exit status 0).

The af_packet driver reports no link of a veth: the first test shows what missing frames do.
"""

import contextlib
import subprocess
import time

import pytest
from lab import BOX_ADDRESS, Lab, missing
from workers import BUILD, finish, start, wait_joined

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

STEPS = 400  # 6 s at least
FLAP_S = 1.5
GATEWAY = "10.77.0.200"
UNREACHABLE_S = 1.5  # three quick pings to a dead process take 0.6 s


@contextlib.contextmanager
def appliance():
    with Lab(hosts=2) as made:
        made.start_appliance(BUILD, made.config(member_timeout_s=30))
        yield made


@contextlib.contextmanager
def job_in_full_run(lab):
    """Inside, the job runs. The caller appends when the network was gone and when it was back, by
    time.monotonic(); in between no step may have run, and the job must have ended well."""
    over = lab.directory / "flap_is_over"
    workers = [
        start(lab, rank, lab.url, rank, 2, steps=STEPS, pause_ms=15, elems=5000, last_after=over)
        for rank in range(2)
    ]
    for worker in workers:
        wait_joined(worker)
    time.sleep(0.5)
    outage = []
    yield outage
    assert [worker.poll() for worker in workers] == [None, None], [
        finish(worker) for worker in workers
    ]
    over.touch()
    for rank, worker in enumerate(workers):
        report = finish(worker)
        assert report["exit"] == 0 and report["steps"] == STEPS, report
        # Of two ranks one may hear late of a step that was under way, and of the one after it.
        ends = [end for _, end in report["steps_s"] if outage[0] <= end <= outage[1]]
        assert len(ends) <= 2, f"rank {rank}: steps ended at {ends}, in the outage {outage}"
    assert "has ended: rank" not in (lab.directory / "sluiced.log").read_text()


def test_a_link_that_is_down_for_a_moment_costs_only_that():
    with appliance() as lab, job_in_full_run(lab) as outage:
        lab.in_host(0, "ip link set eth0 down")
        outage.append(time.monotonic())
        time.sleep(FLAP_S)
        outage.append(time.monotonic())
        lab.in_host(0, "ip link set eth0 up")


def read_in(lab, host, command):
    process = lab.popen(host, command.split(), stdout=subprocess.PIPE, text=True)
    return process.communicate(timeout=300)[0]


def unreachables(lab, host):
    """How often the host's kernel has said "destination unreachable"."""
    lines = read_in(lab, host, "cat /proc/net/snmp").splitlines()
    names, values = [line.split() for line in lines if line.startswith("Icmp:")]
    return int(values[names.index("OutDestUnreachs")])


@contextlib.contextmanager
def udp_unreachable(lab, host):
    """Inside, the host's kernel answers UDP with "host unreachable", and its own UDP is lost.

    It says so like a router that has lost the way to the worker, and quotes what it got.
    """
    run = lambda command: lab.in_host(host, command)
    neighbour = read_in(lab, host, f"ip neigh show {BOX_ADDRESS} dev eth0").split()
    appliance_mac = neighbour[neighbour.index("lladdr") + 1]
    run("sysctl -qw net.ipv4.ip_forward=1")
    # Rules are asked in turn, and that for the host's own addresses is the first.
    run("ip rule add pref 100 lookup local")
    run("ip rule del pref 0")
    # ICMP finds the appliance through a gateway of another address; all else goes to nobody's MAC.
    run(f"ip neigh replace {GATEWAY} lladdr {appliance_mac} nud permanent dev eth0")
    run(f"ip route add default via {GATEWAY} dev eth0 table 77")
    run(f"ip rule add pref 50 to {BOX_ADDRESS} ipproto icmp lookup 77")
    run(f"ip neigh replace {BOX_ADDRESS} lladdr 02:00:00:00:00:99 nud permanent dev eth0")
    run(f"ip rule add pref 51 iif eth0 to {lab.address(host)} ipproto udp unreachable")
    try:
        yield
    finally:
        run("ip rule del pref 51")
        run(f"ip neigh replace {BOX_ADDRESS} lladdr {appliance_mac} nud reachable dev eth0")


def test_a_host_that_is_unreachable_for_a_moment_costs_only_that():
    with appliance() as lab, job_in_full_run(lab) as outage:
        before = unreachables(lab, 0)
        with udp_unreachable(lab, 0):
            outage.append(time.monotonic())
            time.sleep(UNREACHABLE_S)
            outage.append(time.monotonic())
        assert unreachables(lab, 0) > before, "the kernel did not say that it is unreachable"
