"""`python3 -m sluice doctor`: one line a check, and a status that scripts can use."""

import os
import re
import subprocess
import sys

import pytest


def doctor(*arguments, **environment):
    return subprocess.run([sys.executable, "-B", "-m", "sluice", "doctor", *arguments],
                          env={**os.environ, **environment}, capture_output=True, text=True,
                          timeout=300, check=False)


def line(done, name):
    return next(text for text in done.stdout.splitlines() if text[5:].startswith(name))


def test_a_missing_library_is_a_no_with_the_remedy():
    done = doctor(SLUICE_LIBRARY="/nonexistent/libsluice.so")
    assert done.returncode == 1
    assert line(done, "library").startswith("no ")
    assert "not tried" in line(done, "udp offload")
    assert "./run build" in done.stdout and "/nonexistent/libsluice.so" in done.stdout


@pytest.mark.usefixtures("library")
def test_a_working_machine_gets_status_0_and_the_facts():
    done = doctor()
    assert done.returncode == 0, done.stdout + done.stderr
    assert line(done, "library").startswith("ok ")
    assert "rmem_max" in line(done, "udp buffers")
    offload = line(done, "udp offload")
    assert offload.startswith("ok "), done.stdout
    counts = re.search(r"(\d+) of (\d+) packets left .*, (\d+) of (\d+) came in trains", offload)
    left, sent, came, received = map(int, counts.groups())
    assert 0 < left <= sent and 0 < came <= received
    assert line(done, "gpu").startswith("off ")
    assert "SLUICE_ADDRESS" in line(done, "appliance")


@pytest.mark.usefixtures("library")
def test_an_appliance_that_is_not_there_is_a_no_that_names_the_address():
    done = doctor("--address", "udp://127.0.0.1:9")
    assert done.returncode == 1
    assert "path MTU" in line(done, "address")
    assert line(done, "appliance").startswith("no ")
    assert "127.0.0.1:9" in line(done, "appliance")


@pytest.mark.usefixtures("library")
def test_an_mtu_is_held_against_the_path_and_tried():
    done = doctor("--address", "inproc://doctor-mtu", "--mtu", "9000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "chunks of 8832 bytes" in line(done, "appliance")
    done = doctor("--address", "inproc://doctor-mtu")
    assert "chunks of 1344 bytes" in line(done, "appliance")
    done = doctor("--address", "udp://127.0.0.1:9", "--mtu", "70000")
    assert done.returncode == 1
    assert line(done, "address").startswith("no ")
    assert "does not carry packets of 70000" in line(done, "address")


@pytest.mark.usefixtures("library")
def test_a_socket_that_does_not_exist_is_named():
    done = doctor("--address", "vhost://10.77.0.1/nonexistent/port0.sock")
    assert done.returncode == 1
    assert "there is no socket /nonexistent/port0.sock" in line(done, "address")


@pytest.mark.usefixtures("library")
def test_an_appliance_inside_the_process_is_joined_and_sums():
    done = doctor("--address", "inproc://doctor")
    assert done.returncode == 0, done.stdout
    assert "joined in" in line(done, "appliance")
    assert " 0 of" in line(done, "appliance")  # nothing there makes trains


def test_a_real_appliance_is_joined_over_vhost(appliance):
    done = doctor("--address", appliance.address, SLUICE_SECRET=appliance.secret)
    assert done.returncode == 0, done.stdout
    assert "joined in" in line(done, "appliance")


def test_a_wrong_secret_is_a_no_with_the_appliances_own_words(appliance):
    done = doctor("--address", appliance.address, SLUICE_SECRET="wrong")
    assert done.returncode == 1
    assert "secret" in line(done, "appliance")
