"""What `doctor` says of hugepages, cards and addresses, over trees like /proc and /sys."""

import io

import pytest
from sluice import _doctor_host as host
from sluice.doctor import Report


@pytest.fixture
def said():
    return io.StringIO()


@pytest.fixture
def report(said):
    return Report(said)


def put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def card(sys, address, driver, pci_class="0x020000"):
    device = sys / "bus" / "pci" / "devices" / address
    put(device / "class", pci_class + "\n")
    if driver:
        (sys / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(sys / "drivers" / driver)
    return device


def test_interfaces_that_are_hardware_have_driver_mtu_speed_and_state(tmp_path, report, said):
    device = card(tmp_path, "0000:01:00.0", "ice")
    eth = tmp_path / "class" / "net" / "eth1"
    for name, text in (("mtu", "9000\n"), ("speed", "25000\n"), ("operstate", "up\n")):
        put(eth / name, text)
    (eth / "device").symlink_to(device)
    put(tmp_path / "class" / "net" / "lo" / "mtu", "65536\n")
    host.check_interfaces(report, tmp_path)
    assert said.getvalue() == "ok   interfaces   eth1: ice, MTU 9000, 25000 Mb/s, up\n"


def test_a_card_with_a_driver_of_dpdk_is_ready_for_an_appliance(tmp_path, report, said):
    card(tmp_path, "0000:01:00.0", "vfio-pci")
    card(tmp_path, "0000:02:00.0", "nvme", "0x010802")
    (tmp_path / "kernel" / "iommu_groups" / "0").mkdir(parents=True)
    host.check_cards(report, tmp_path)
    assert said.getvalue() == ("ok   cards        for an appliance here: 0000:01:00.0 (vfio-pci); "
                               "the IOMMU is on\n")


@pytest.mark.parametrize("driver, words", [("ice", "0000:01:00.0 (ice)"),
                                           ("", "0000:01:00.0 (none)")])
def test_a_card_that_the_kernel_has_gets_the_command(tmp_path, report, said, driver, words):
    card(tmp_path, "0000:01:00.0", driver)
    host.check_cards(report, tmp_path)
    assert said.getvalue().startswith("off  cards") and words in said.getvalue()
    assert "dpdk-devbind.py -b vfio-pci" in said.getvalue()
    assert "no IOMMU is on" in said.getvalue()


@pytest.mark.parametrize("total, word", [(256, "ok "), (0, "off ")])
def test_hugepages_are_counted(tmp_path, report, said, total, word):
    put(tmp_path / "meminfo", f"HugePages_Total: {total}\nHugePages_Free: {total}\n"
        "Hugepagesize: 2048 kB\n")
    host.check_hugepages(report, tmp_path)
    assert said.getvalue().startswith(word)
    assert f"{total} of {total} free, 2048 kB each" in said.getvalue()


_ARP = ("IP address  HW type  Flags  HW address         Mask  Device\n"
        "10.77.0.1   0x1      {}    02:51:0a:4d:00:01  *     eth1\n")


def test_an_address_that_has_answered_is_named_with_its_mac(tmp_path, report, said):
    put(tmp_path / "net" / "arp", _ARP.format("0x2"))
    host.check_owner(report, "10.77.0.1", "10.77.0.10", tmp_path)
    assert said.getvalue().startswith(
        "ok   owner        10.77.0.1 is 02:51:0a:4d:00:01, seen on eth1")


def test_an_address_that_nobody_answers_for_is_a_warning(tmp_path, report, said):
    put(tmp_path / "net" / "arp", _ARP.format("0x0"))
    host.check_owner(report, "10.77.0.1", "10.77.0.10", tmp_path)
    assert said.getvalue().startswith("warn owner        nobody on eth1 answers for 10.77.0.1")


def test_an_address_of_this_machines_kernel_is_a_warning(tmp_path, report, said):
    host.check_owner(report, "10.77.0.1", "10.77.0.1", tmp_path)
    assert said.getvalue().startswith("warn owner") and "'ip address del'" in said.getvalue()


def test_loopback_and_routed_addresses_have_no_owner_here(tmp_path, report, said):
    put(tmp_path / "net" / "arp", _ARP.format("0x2"))
    host.check_owner(report, "127.0.0.1", "127.0.0.1", tmp_path)
    host.check_owner(report, "192.0.2.1", "10.77.0.10", tmp_path)
    assert said.getvalue() == ""
