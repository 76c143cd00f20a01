"""What a process may do that has open ports: nothing that needs a capability, but for one.

Also that an interface is as before when the process is gone, since nothing that is left could tidy
it up.
"""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from lab import Lab, LabError, missing
from workers import BUILD, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

NET_ADMIN = 1 << 12


def fields(process):
    """Of each thread, what the kernel says of its rights."""
    found = []
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        rows = dict(line.split(":\t") for line in status.read_text().splitlines() if ":\t" in line)
        found.append({name: int(rows[name], 16)
                      for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")})
    return found


def interface(lab):
    """What the kernel says of the box's end of the link."""
    asked = lab.popen(None, ["ip", "-d", "-j", "link", "show", "s0"], stdout=subprocess.PIPE)
    return json.loads(asked.communicate(timeout=300)[0])[0]


def test_no_thread_has_a_capability_once_the_ports_are_open():
    with Lab(hosts=1) as lab:
        process = lab.start_appliance(BUILD)
        threads = fields(process)
        assert len(threads) >= 3  # main, control, a worker
        assert threads == [{"CapInh": 0, "CapPrm": 0, "CapEff": 0, "CapAmb": 0,
                            "NoNewPrivs": 1}] * len(threads)
        lab.in_host(0, "ping -c 1 -W 60 10.77.0.1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interface_is_as_before_when_the_process_is_gone(number):
    with Lab(hosts=1) as lab:
        before = interface(lab)
        assert before["promiscuity"] == 0
        process = lab.start_appliance(BUILD)
        assert interface(lab)["promiscuity"] == 1
        process.send_signal(number)
        process.wait(300)
        assert interface(lab) == before


def test_over_af_xdp_one_capability_stays_to_take_the_program_off_at_the_end():
    with Lab(hosts=1, pmd="af_xdp") as lab:
        try:
            process = lab.start_appliance(BUILD)
        except LabError as error:
            pytest.skip(f"no AF_XDP here: {str(error).splitlines()[-1]}")
        threads = fields(process)
        assert {row["CapPrm"] for row in threads} == {NET_ADMIN}
        assert {row["CapInh"] | row["CapAmb"] for row in threads} == {0}
        assert interface(lab)["xdp"]["prog"]["id"]
        process.terminate()
        assert process.wait(300) == 0
        wait_until(lambda: "xdp" not in interface(lab), 60, "no XDP program")
        assert interface(lab)["promiscuity"] == 0
