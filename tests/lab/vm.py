"""A virtual machine whose network cards QEMU emulates, in the place of a lab's box.

sluiced's `pci` ports need cards that DPDK's drivers take from the kernel. Here QEMU has some, each
tied to the link of a host of the lab. The machine boots Debian's kernel and sees this machine's
files by 9p, so that it runs the same sluiced; the workers stay in the lab's hosts. QEMU emulates
the processor too (TCG), so that no KVM is needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from lab import Lab, LabError, run

BUSYBOX = "/bin/busybox"
QEMU = "qemu-system-x86_64"
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "vfio_iommu_type1", "vfio-pci")
CPUS = 2
MEMORY_MIB = 1024
HUGEPAGES = 80  # of 2 MiB
BOOT_S = 600.0  # an emulated processor, on a machine that others use

# In the order of their places on the bus, from 0000:00:10.0. DMA of all goes through the IOMMU.
CARDS = {
    "virtio": "virtio-net-pci,disable-legacy=on,iommu_platform=on,mq=on,vectors=6",
    "e1000e": "e1000e",
    "e1000": "e1000",
    "vmxnet3": "vmxnet3",
}

# The kernel puts `share=` of its command line into the environment.
INIT = """#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
for module in $(busybox cat /modules); do busybox insmod "/$module"; done
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072,cache=loose,ro root /host
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=131072 share "/host$share"
busybox mount -t proc proc /host/proc
busybox mount -t sysfs sysfs /host/sys
busybox mount -t devtmpfs dev /host/dev
busybox mount -t tmpfs tmp /host/run
busybox mkdir -p /host/dev/shm /host/dev/hugepages
busybox mount -t hugetlbfs huge /host/dev/hugepages
exec busybox chroot /host /bin/sh "$share/serve.sh" "$share"
"""
# Commands come by the second serial port, a number before each; their output goes into a file.
SERVE = """
ip link set lo up
stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 >/dev/ttyS1
echo 0 0
while read -r number command; do
  (eval "$command") >"$1/output.$number" 2>&1 </dev/null
  echo "$number $?"
done
"""


def kernel_folder(build: Path) -> Path:
    """Where `./run test full` unpacks Debian's kernel."""
    return build / "kernel"


def missing(build: Path) -> str | None:
    """Why no machine can be started here, or None."""
    for tool, package in ((QEMU, "qemu-system-x86"), (BUSYBOX, "busybox-static"),
                          ("depmod", "kmod")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (apt install {package})"
    if not Path("/dev/net/tun").exists():
        return "this machine has no /dev/net/tun"
    if not list(kernel_folder(build).glob("boot/vmlinuz-*")):
        return f"no kernel in {kernel_folder(build)} (./run test full fetches it)"
    return None


def initramfs(kernel: Path, version: str, folder: Path) -> Path:
    """The first file system: busybox, what the kernel needs to reach ours, `INIT`."""
    tree = folder / "initramfs"
    for name in ("bin", "proc", "sys", "host", "dev"):
        (tree / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, tree / "bin" / "busybox")
    subprocess.run(["depmod", "-b", str(kernel), version], check=True)
    names = []
    for module in MODULES:
        listed = subprocess.run(
            ["modprobe", "-d", str(kernel), "-S", version, "--show-depends", module],
            capture_output=True, text=True, check=True)
        for path in (line.split()[1] for line in listed.stdout.splitlines()
                     if line.startswith("insmod")):
            if Path(path).name not in names:
                names.append(Path(path).name)
                shutil.copy(path, tree)
    (tree / "modules").write_text("\n".join(names))
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    image = folder / "initramfs.cpio"
    with image.open("wb") as out:
        files = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        subprocess.run([BUSYBOX, "cpio", "-o", "-H", "newc"], input=files.encode(), cwd=tree,
                       stdout=out, stderr=subprocess.DEVNULL, check=True)
    return image


class CardVm:
    """`with CardVm(lab, build, "e1000e") as vm:` a machine with a card of the kind for each host.

    The cards are bound to vfio-pci. Stopped with the lab at the latest.
    """

    def __init__(self, lab: Lab, build: Path, card: str, queues: int = 1):
        self.lab, self.build, self.card, self.queues = lab, build.resolve(), card, queues
        self.addresses = [f"0000:00:{0x10 + host:02x}.0" for host in range(lab.hosts)]
        self._number = 0

    def __enter__(self) -> "CardVm":
        kernel = kernel_folder(self.build)
        image = next(kernel.glob("boot/vmlinuz-*"))
        version = image.name.removeprefix("vmlinuz-")
        share = self.lab.directory
        (share / "serve.sh").write_text(SERVE)
        for host in range(self.lab.hosts):
            self._tie(host)
        command = [
            QEMU, "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", str(CPUS),
            "-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-device", "intel-iommu,intremap=on,aw-bits=48",
            "-kernel", str(image), "-initrd", str(initramfs(kernel, version, share)),
            "-append", f"console=ttyS0 no_timer_check intel_iommu=on panic=-1 quiet "
                       f"hugepages={HUGEPAGES} share={share}",
            "-serial", f"file:{share}/console.log",
            "-serial", f"unix:{share}/serial,server=on,wait=off",
            "-monitor", f"unix:{share}/monitor,server=on,wait=off",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", f"local,id=share,path={share},security_model=none",
            "-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
        ]
        for host in range(self.lab.hosts):
            taps = f"tap,id=link{host},ifname=card{host},script=no,downscript=no"
            if self.queues > 1:
                taps += f",queues={self.queues}"
            mtu = f",host_mtu={self.lab.mtu}" if self.card == "virtio" else ""
            command += ["-netdev", taps, "-device",
                        f"{CARDS[self.card]},netdev=link{host},id=card{host},"
                        f"mac=52:54:00:00:00:{host + 1:02x},addr={0x10 + host:#x}{mtu}"]
        self._qemu = self.lab.popen(None, command,
                                    stdout=(share / "qemu.log").open("wb"),
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self._serial = self._connect(share / "serial")
        self._await(0, BOOT_S)
        for address in self.addresses:
            device = f"/sys/bus/pci/devices/{address}"
            self.run(f"test ! -e {device}/driver || echo {address} > {device}/driver/unbind; "
                     f"echo vfio-pci > {device}/driver_override && "
                     f"echo {address} > /sys/bus/pci/drivers_probe")
        return self

    def __exit__(self, *_exc) -> None:
        with contextlib.suppress(OSError):
            self._serial.close()
        self._qemu.kill()
        self._qemu.wait()

    def _tie(self, host: int) -> None:
        """The host's link and the card's, in the lab's box."""
        queues = " multi_queue" if self.queues > 1 else ""
        for command in (f"ip tuntap add card{host} mode tap{queues}",
                        f"ip link set card{host} mtu {self.lab.mtu}",
                        f"ip link add wire{host} type bridge",
                        f"ip link set card{host} master wire{host}",
                        f"ip link set s{host} master wire{host}",
                        f"ip link set card{host} up", f"ip link set wire{host} up"):
            self.lab.in_box(command)

    def _connect(self, path: Path) -> socket.socket:
        deadline = time.monotonic() + 60
        while True:
            client = socket.socket(socket.AF_UNIX)
            try:
                client.connect(str(path))
                return client
            except OSError:
                client.close()
                if self._qemu.poll() is not None or time.monotonic() > deadline:
                    log = (self.lab.directory / "qemu.log").read_text()
                    raise LabError(f"QEMU did not start: {log}") from None
                time.sleep(0.05)

    def _await(self, number: int, timeout: float) -> int:
        """The status of the command with this number."""
        deadline, line = time.monotonic() + timeout, b""
        while not line.endswith(b"\n"):
            self._serial.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                byte = self._serial.recv(1)
            except TimeoutError:
                byte = b""
            if not byte:
                console = (self.lab.directory / "console.log").read_text(errors="replace")
                raise LabError(f"the machine did not answer:\n{console}")
            line += byte
        told, status = map(int, line.split())
        assert told == number, line
        return status

    def run(self, command: str, timeout: float = 120.0) -> str:
        """Runs a shell's line in the machine; what it says. Its failure is an error."""
        self._number += 1
        self._serial.sendall(f"{self._number} {command}\n".encode())
        status = self._await(self._number, timeout)
        output = (self.lab.directory / f"output.{self._number}").read_text(errors="replace")
        if status != 0:
            raise LabError(f"{command}: status {status}: {output}")
        return output

    def monitor(self, command: str) -> None:
        """A command for QEMU's monitor."""
        with self._connect(self.lab.directory / "monitor") as monitor:
            monitor.settimeout(60)
            reply = b""
            while not reply.endswith(b"(qemu) "):
                reply += monitor.recv(4096)
            monitor.sendall(command.encode() + b"\n")
            reply = b""
            while not reply.endswith(b"(qemu) "):
                reply += monitor.recv(4096)

    def set_link(self, host: int, up: bool) -> None:
        """The link of the host's card, as the card tells it."""
        self.monitor(f"set_link card{host} {'on' if up else 'off'}")
