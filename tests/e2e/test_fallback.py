"""The appliance dies, PyTorch ranks go on over their process group, and return to the appliance."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lab import Lab, missing
from workers import BUILD

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3


def start_training(lab, address):
    """The process group's frames pass the second box, which the job does not know."""
    library = os.environ.get("SLUICE_LIBRARY", BUILD.resolve() / "client" / "libsluice.so")
    env = {"SLUICE_ADDRESS": address, "SLUICE_SECRET": "lab", "WORLD_SIZE": str(RANKS),
           "SLUICE_LIBRARY": str(library), "OMP_NUM_THREADS": "1",
           "PYTHONPATH": str(ROOT / "client" / "python"), "MASTER_ADDR": "10.78.0.10",
           "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth1"}
    command = ["/usr/bin/python3", "-u", str(Path(__file__).with_name("fallback_worker.py")),
               str(lab.directory / "over")]
    ranks = []
    for rank in range(RANKS):
        with (lab.directory / f"rank{rank}.out").open("wb") as output:
            ranks.append(lab.popen(rank, command, env={**env, "RANK": str(rank)}, stdout=output,
                                   stderr=subprocess.STDOUT))
    return ranks


def said(lab, rank):
    return (lab.directory / f"rank{rank}.out").read_text().splitlines()


def wait_for_steps(lab, ranks, way, count):
    """Until rank 0 has done so many steps that way, as the lines from now on say."""
    seen = len(said(lab, 0))
    deadline = time.monotonic() + 300
    while sum(line.endswith(f" {way}") for line in said(lab, 0)[seen:]) < count:
        assert time.monotonic() < deadline and all(one.poll() is None for one in ranks), \
            "\n".join(f"rank {rank}: {line}" for rank in range(RANKS)
                      for line in said(lab, rank)[-12:])
        time.sleep(0.05)


def end_training(lab, ranks):
    """After some more steps over the box. A busy machine may have sent it to the group before."""
    (lab.directory / "over").touch()
    reports = []
    for rank, process in enumerate(ranks):
        assert process.wait(300) == 0, said(lab, rank)
        reports.append(json.loads(said(lab, rank)[-1]))
    assert all(one == reports[0] for one in reports), reports
    return reports[0]


@pytest.mark.parametrize("how", (signal.SIGKILL, signal.SIGSTOP))
def test_a_training_goes_on_without_its_box_and_returns_to_it(how):
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        box = lab.start_appliance(BUILD)
        lab.start_appliance(BUILD, standby=True)
        ranks = start_training(lab, lab.url.split(",")[0])
        wait_for_steps(lab, ranks, "box", 10)
        os.killpg(box.pid, how)
        wait_for_steps(lab, ranks, "group", 30)
        if how == signal.SIGKILL:
            box.wait()
            lab.start_appliance(BUILD)
        else:
            os.killpg(box.pid, signal.SIGCONT)
        assert end_training(lab, ranks)["group_steps"] >= 30


def test_a_training_goes_on_where_one_rank_alone_has_lost_the_box():
    pytest.importorskip("torch")
    with Lab(hosts=RANKS, standby=True) as lab:
        lab.start_appliance(BUILD)
        lab.start_appliance(BUILD, standby=True)
        ranks = start_training(lab, lab.url.split(",")[0])
        wait_for_steps(lab, ranks, "box", 10)
        lab.in_host(1, "ip link set eth0 down")
        wait_for_steps(lab, ranks, "group", 30)
        lab.in_host(1, "ip link set eth0 up")
        assert end_training(lab, ranks)["group_steps"] >= 30
