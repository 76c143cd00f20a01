"""The appliance is a switch too: it answers ARP and ping and forwards by learned MAC address."""

import os
import pathlib
import signal
import time

import pytest
from lab import BOX_ADDRESS, Lab, metric, missing
from workers import BUILD, ping, run_in, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def lab():
    with Lab(hosts=3) as made:
        made.appliance = made.start_appliance(BUILD)
        yield made


def test_answers_arp_and_ping_on_its_address(lab):
    ping(lab, "-c", "3", "-i", "0.2", BOX_ADDRESS)


@pytest.mark.parametrize("bytes_of_data", [0, 1, 1472])
def test_forwards_between_its_ports(lab, bytes_of_data):
    ping(lab, "-c", "3", "-i", "0.2", "-s", str(bytes_of_data), lab.address(1))


def test_sends_a_learned_address_to_its_port_only(lab):
    run_in(lab, 0, ["ping", "-c", "1", "-W", "10", lab.address(1)])
    before = lab.link_bytes(2)[1]
    ping(lab, "-c", "20", "-i", "0.02", "-s", "1000", lab.address(1))
    assert lab.link_bytes(2)[1] - before < 3000, "frames for host 1 were flooded to host 2"


def cpu_s(process):
    """Of all threads, so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_leaves_the_processor_alone_while_nothing_comes(lab):
    """Counted in rounds: what a round costs depends on who else uses the machine."""
    time.sleep(2)  # after a second without work a worker rests longer
    loops = metric(lab.scrape(), "sluice_lcore_loops_total")
    cpu, began = cpu_s(lab.appliance), time.monotonic()
    time.sleep(5)
    loops = metric(lab.scrape(), "sluice_lcore_loops_total") - loops
    seconds = time.monotonic() - began
    # A nap of 0.5 ms a round at the shortest; a busy loop makes a million rounds a second.
    assert 0 < loops < 2 * seconds / 0.5e-3, f"{loops / seconds:.0f} rounds a second"
    assert cpu_s(lab.appliance) - cpu < 0.5 * seconds, "another thread spins"


def test_reads_its_file_again_on_sighup_and_ends_cleanly_on_sigterm(lab):
    lab.appliance.send_signal(signal.SIGHUP)
    log = lab.directory / "sluiced.log"
    line = "SIGHUP: settings that have changed: 0"
    wait_until(lambda: line in log.read_text(), 300, "a line about the signal")
    out, code = run_in(lab, 0, ["ping", "-c", "1", "-W", "10", BOX_ADDRESS])
    assert code == 0, out
    lab.appliance.terminate()
    assert lab.appliance.wait(300) == 0
