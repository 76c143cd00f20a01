"""What `doctor` finds out about the machine itself, from /proc and /sys: hugepages, network cards
and their drivers, the IOMMU, and whose an address is. Reads only; needs no rights.
"""

import ipaddress
from pathlib import Path

_ETHERNET = "0x0200"  # PCI class of a network card
# Drivers with which DPDK can use a card, as in config/host_checks.cc.
_OF_DPDK = {"vfio-pci", "igb_uio", "uio_pci_generic", "mlx4_core", "mlx5_core", "mana"}


def _text(path, default=""):
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):  # an interface that is down has no speed
        return default


def _driver(device):
    link = Path(device) / "driver"
    return link.resolve().name if link.exists() else ""


def check_hugepages(report, proc="/proc"):
    facts = {}
    try:
        for line in Path(proc, "meminfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts[key] = int(value.split()[0])
    except (OSError, ValueError, IndexError) as error:
        report.warn("hugepages", f"/proc/meminfo is not readable ({error})")
        return
    total, free = facts.get("HugePages_Total", 0), facts.get("HugePages_Free", 0)
    text = f"{free} of {total} free, {facts.get('Hugepagesize', 0)} kB each"
    if total:
        report.ok("hugepages", text)
    else:
        report.off("hugepages", f"{text}; only an appliance with pci ports needs them: sysctl "
                                "vm.nr_hugepages=256")


def check_interfaces(report, sys="/sys"):
    """The kernel's network interfaces that are hardware, each with driver, MTU, speed and state."""
    found = []
    for interface in sorted(Path(sys, "class", "net").glob("*")):
        if not (interface / "device").exists():
            continue
        speed = _text(interface / "speed", "-1")
        rate = f", {speed} Mb/s" if speed.isdigit() and speed != "0" else ""
        found.append(f"{interface.name}: {_driver(interface / 'device') or 'no driver'}, MTU "
                     f"{_text(interface / 'mtu')}{rate}, {_text(interface / 'operstate')}")
    if found:
        report.ok("interfaces", "\n".join(found))
    else:
        report.off("interfaces", "the kernel has no network card here")


def check_cards(report, sys="/sys"):
    """Cards that a box here could have as pci ports, and what they lack for it."""
    ready, other = [], []
    for device in sorted(Path(sys, "bus", "pci", "devices").glob("*")):
        if _text(device / "class").startswith(_ETHERNET):
            driver = _driver(device)
            (ready if driver in _OF_DPDK else other).append(f"{device.name} ({driver or 'none'})")
    iommu = any(Path(sys, "kernel", "iommu_groups").glob("*"))
    text = ("the IOMMU is on" if iommu
            else "no IOMMU is on, so pci ports need hugepages and vfio's mode without it")
    if ready:
        report.ok("cards", f"for an appliance here: {', '.join(ready)}; {text}")
    else:
        kernels = f"the kernel has {', '.join(other)}" if other else "there is no network card"
        report.off("cards", f"{kernels}; an appliance with pci ports needs one bound to vfio-pci: "
                            f"dpdk-devbind.py -b vfio-pci ADDRESS; {text}")


def check_owner(report, peer, source, proc="/proc"):
    """Whose the appliance's address is: the kernel's own, which must not be, or that of a MAC."""
    if ipaddress.ip_address(peer.partition("%")[0]).is_loopback:
        return
    if peer == source:
        report.warn("owner", f"this machine's kernel has {peer} itself and answers for it: give "
                             "the appliance an address that no kernel has, or remove this one with "
                             "'ip address del'")
        return
    for line in _text(Path(proc, "net", "arp")).splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 6 and fields[0] == peer:
            _, _, flags, mac, _, interface = fields[:6]
            if int(flags, 16) & 2:  # ATF_COM: it has answered
                report.ok("owner", f"{peer} is {mac}, seen on {interface}; the appliance's is the "
                                   "mac of its configuration, or made from its address")
            else:
                report.warn("owner", f"nobody on {interface} answers for {peer}: is the cable in, "
                                     "the port up, and the VLAN the same?")
            return
