#!/usr/bin/env python3
"""The namespace lab: n hosts around one box, on one machine.

Each host is a network namespace with one veth link to the box's namespace. In the box either
`sluiced` switches and sums (PMD af_packet or af_xdp), or the kernel's bridge switches (for
baselines such as Gloo). Links are shaped at both ends, with a queue of 2 MB, so that the queue's
length is stated and not an accident: by the kernel at the hosts and at the bridge (links.py), by
sluiced itself at its ports. Needs root. Everything that was made is removed on exit, by name and by
process id.

As a library (tests/e2e, bench):

    with Lab(hosts=4, rate_mbps=200) as lab:
        box = lab.start_appliance(build_dir)
        worker = lab.popen(0, [sys.executable, "train.py"], env={"SLUICE_ADDRESS": lab.url})

By hand:

    lab.py --hosts 2 --rate 200 --build build -- ping -c 3 10.77.0.1     # runs in host 0
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import links

BOX_ADDRESS = "10.77.0.1"
BOX_ADDRESS6 = "fd77::1"
STANDBY_ADDRESS = "10.78.0.1"
READY = "ready:"
_ordinals = itertools.count()  # one process may hold several labs


class LabError(RuntimeError):
    """The lab could not be built; the message says what is missing and how to get it."""


def missing() -> str | None:
    """Why the lab can't run on this machine, or None when it can."""
    if os.geteuid() != 0:
        return "the lab needs root for network namespaces (sudo ./run test)"
    for tool in ("ip", "tc", "ethtool"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (apt install iproute2 ethtool)"
    probe = f"sluice-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        return f"this machine allows no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return None


def scrape(namespace: str, port: int = 9464) -> str:
    """The /metrics page of the appliance in a namespace."""
    code = (f"import urllib.request as u; "
            f"print(u.urlopen('http://127.0.0.1:{port}/metrics', timeout=300).read().decode())")
    done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, "-c", code],
                          capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise LabError(f"no metrics: {done.stderr.strip()}")
    return done.stdout


def metric(page: str, name: str, **labels: str) -> float:
    """A metric's value on such a page, summed over its other labels; 0 where there is none."""
    from prometheus_client.parser import text_string_to_metric_families
    samples = (one for family in text_string_to_metric_families(page) for one in family.samples)
    return sum(one.value for one in samples
               if one.name == name and labels.items() <= one.labels.items())


class Lab:
    """`hosts` namespaces around a box; `pmd` af_packet, af_xdp or bridge; no `rate_mbps`: unshaped.

    `offloads`: packets of up to 64 KB are cut behind the shapers and merged where a kernel receives
    them, at the bridge too; without, every stack makes and takes single frames. `cabled`: frames
    cross the links only while cables.py carries them, and no kernel shapes. Host i has the
    address 10.77.0.(i + 10); the appliance 10.77.0.1. With `ipv6` also fd77::(i + 10 in
    hexadecimal) and fd77::1. `standby`: a second box, on a network of its own, where host i is
    eth1, 10.78.0.(i + 10), and the appliance 10.78.0.1. Not thread-safe. Blocking calls are bounded
    by `timeout` arguments.
    """

    def __init__(
        self,
        hosts: int,
        rate_mbps: float | None = None,
        pmd: str = "af_packet",
        mtu: int = 1500,
        ipv6: bool = False,
        offloads: bool = True,
        cabled: bool = False,
        standby: bool = False,
    ):
        if pmd not in ("af_packet", "af_xdp", "bridge"):
            raise LabError(f"pmd {pmd!r} is unknown: af_packet, af_xdp or bridge")
        if not 1 <= hosts <= 64:
            raise LabError(f"{hosts} hosts: 1 to 64 are possible")
        if pmd != "bridge" and rate_mbps is not None and rate_mbps != int(rate_mbps):
            raise LabError(f"{rate_mbps} Mb/s: sluiced's shaper takes whole Mb/s")
        self.hosts, self.rate_mbps, self.pmd, self.mtu = hosts, rate_mbps, pmd, mtu
        self._prefix = f"sl{os.getpid() % 100000}x{next(_ordinals)}"
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen] = []
        self._stack = contextlib.ExitStack()
        self._signals = ends_on_signals()
        self.directory = Path()
        self.ipv6, self.offloads, self.cabled = ipv6, offloads, cabled
        self.standby = standby
        self.url = f"udp://{BOX_ADDRESS}:7700"
        if standby:
            self.url += f",{STANDBY_ADDRESS}:7700"
        self.url6 = f"udp://[{BOX_ADDRESS6}]:7700"

    # ---- set-up and clean-up ----

    def __enter__(self) -> "Lab":
        reason = missing()
        if reason:
            raise LabError(reason)
        self._signals.__enter__()
        try:
            made = tempfile.TemporaryDirectory(prefix="sluice-lab-")
            self.directory = Path(self._stack.enter_context(made))
            self._build()
            if self.rate_mbps is not None:
                self._stack.enter_context(links.one_timer_a_burst())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_exc) -> None:
        with ignored_signals():
            for process in reversed(self._processes):
                stop(process)
            for namespace in self._namespaces:
                subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
            self._stack.close()
        self._signals.__exit__(None, None, None)

    def _build(self) -> None:
        hosts = [f"h{i}" for i in range(self.hosts)]
        for name in ["box", *hosts, *["cables"] * self.cabled, *["standby"] * self.standby]:
            namespace = f"{self._prefix}-{name}"
            self._namespaces.append(namespace)  # first: a signal may end us in between
            run(f"ip netns add {namespace}")
            self._in(namespace, "ip link set lo up")
            self._in(namespace, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1", check=False)
        box = self._namespaces[0]
        for i in range(self.hosts):
            host = self._namespaces[i + 1]
            middle = self._namespaces[self.hosts + 1] if self.cabled else None
            for command in links.tie_commands(i, box, host, self.mtu, middle):
                run(command, check="vlan" not in command)
            self._in(host, f"ip addr add {self.address(i)}/24 dev eth0")
            if self.ipv6:
                self._in(host, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=0")
                self._in(host, f"ip addr add {self.address6(i)}/64 dev eth0 nodad")
            self._set_up_link(host, "eth0", kernel_takes_frames=True)
            self._set_up_link(box, f"s{i}", kernel_takes_frames=self.pmd == "bridge")
            if self.standby:
                run(f"ip link add eth1 netns {host} mtu {self.mtu} type veth peer name s{i} "
                    f"netns {self._namespaces[-1]} mtu {self.mtu}")
                self._in(host, f"ip addr add 10.78.0.{i + 10}/24 dev eth1")
                self._set_up_link(host, "eth1", kernel_takes_frames=True)
                self._set_up_link(self._namespaces[-1], f"s{i}", kernel_takes_frames=False)
        if self.pmd == "bridge":
            self._in(box, "ip link add br0 type bridge")
            self._in(box, "ip link set br0 up")
            for i in range(self.hosts):
                self._in(box, f"ip link set s{i} master br0")

    def _set_up_link(self, namespace: str, device: str, kernel_takes_frames: bool) -> None:
        offloads = self.offloads and kernel_takes_frames
        commands = links.offload_commands(device, software=offloads, merge=offloads)
        if self.rate_mbps is not None and kernel_takes_frames and not self.cabled:
            commands += links.shaper_commands(device, self.rate_mbps, self.mtu)
        for command in [*commands, f"ip link set {device} up"]:
            self._in(namespace, command, check="vlan" not in command)

    def _in(self, namespace: str, command: str, check: bool = True) -> None:
        run(f"ip netns exec {namespace} {command}", check=check)

    # ---- what tests use ----

    def in_host(self, host: int, command: str) -> None:
        """Runs a short set-up command (words separated by spaces) in the host's namespace."""
        self._in(self._namespaces[host + 1], command)

    def in_box(self, command: str) -> None:
        """Runs a short set-up command (words separated by spaces) in the box's namespace."""
        self._in(self._namespaces[0], command)

    def congestion(self, name: str) -> None:
        """Sets TCP's congestion control of all hosts, by route: a namespace's sysctl refuses most.
        """
        for i in range(self.hosts):
            self.in_host(i, f"ip route replace 10.77.0.0/24 dev eth0 congctl {name} "
                            f"src {self.address(i)}")

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 10}"

    def address6(self, host: int) -> str:
        return f"fd77::{host + 10:x}"

    def popen(self, host: int | None, command: list[str], env: dict[str, str] | None = None,
              **kwargs) -> subprocess.Popen:
        """Starts `command` in host's namespace (None: the box's; `hosts`: the cables', or the
        standby's where there are none). Stopped when the lab ends."""
        namespace = self._namespaces[0 if host is None else host + 1]
        process = subprocess.Popen(["ip", "netns", "exec", namespace, *command],
                                   env={**os.environ, **(env or {})}, start_new_session=True,
                                   **kwargs)
        self._processes.append(process)
        return process

    def config(
        self,
        fault: dict[str, float] | None = None,
        extra: str = "",
        member_timeout_s: int = 10,
        polling: str = "adaptive",
        secret: str = "lab",
        port_mtu: int | None = None,
        metrics: str | None = "127.0.0.1:9464",
        limits: str = "",
        address: str = BOX_ADDRESS,
    ) -> str:
        """The appliance's TOML for this lab. `fault`: keys of [port.fault], for every port."""
        lines = [
            "[appliance]",
            f'address = "{address}/24"',
            f'address6 = "{BOX_ADDRESS6}/64"' if self.ipv6 else "",
            f'polling = "{polling}"',
            f'secret = "{secret}"',
            "memory_mib = 256",
            "",
            "[limits]",
            f"member_timeout_s = {member_timeout_s}",
            limits,
        ]
        if metrics:
            lines += ["", "[metrics]", f'address = "{metrics}"']
        lines += [extra]
        for i in range(self.hosts):
            lines += ["", "[[port]]", f'name = "host{i}"', f'type = "{self.pmd}"',
                      f'interface = "s{i}"', f"mtu = {port_mtu or self.mtu}"]
            if self.rate_mbps is not None:
                lines += [f"rate_mbps = {int(self.rate_mbps)}"]
                lines += [f"queue_kib = {links.QUEUE_BYTES // 1024}"]
            if fault:
                lines += ["[port.fault]", f"seed = {int(fault.get('seed', 1)) + i}"]
                lines += [f"{key} = {value}" for key, value in fault.items() if key != "seed"]
        return "\n".join(lines) + "\n"

    def start_appliance(
        self, build_dir: str | Path, config: str | None = None, timeout: float = 300,
        standby: bool = False,
    ) -> subprocess.Popen:
        """Starts sluiced in the box, waits for its ready line. Log: `<directory>/sluiced.log`; of
        the standby `standby.log`."""
        name = "standby" if standby else "sluiced"
        path = self.directory / ("standby.toml" if standby else "appliance.toml")
        path.touch(mode=0o600)  # it may hold a secret
        if config is None:
            config = self.config(address=STANDBY_ADDRESS if standby else BOX_ADDRESS)
        path.write_text(config)
        log = self.directory / f"{name}.log"
        binary = Path(build_dir) / "dataplane" / "sluiced"
        with log.open("wb") as output:
            process = self.popen(self.hosts if standby else None,
                                 [str(binary), "--config", str(path)], stdout=output,
                                 stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if READY in log.read_text(errors="replace"):
                return process
            if process.poll() is not None:
                break
            time.sleep(0.05)
        raise LabError(f"sluiced did not become ready in {timeout} s:\n"
                       f"{log.read_text(errors='replace')}")

    def scrape(self, port: int = 9464, standby: bool = False) -> str:
        """The /metrics page of the appliance, or of the standby, fetched inside the box."""
        return scrape(self._namespaces[-1 if standby else 0], port)

    def link_bytes(self, host: int) -> tuple[int, int]:
        """Bytes that the host's link carried so far: (from the host, to it), frames without FCS."""
        return self._counted(host, "bytes")

    def link_frames(self, host: int) -> tuple[int, int]:
        """As link_bytes(), in frames."""
        return self._counted(host, "packets")

    def _counted(self, host: int, unit: str) -> tuple[int, int]:
        files = [f"/sys/class/net/eth0/statistics/{way}_{unit}" for way in ("tx", "rx")]
        command = ["ip", "netns", "exec", self._namespaces[host + 1], "cat", *files]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sent, received = map(int, done.stdout.split())
        return sent, received


ENDING = (signal.SIGTERM, signal.SIGHUP)


def _handled(handler, numbers):
    """Sets `handler` for the signals; returns those of before, to be set again."""
    if threading.current_thread() is not threading.main_thread():
        return {}  # only the main thread may, and it is the one that signals end
    return {number: signal.signal(number, handler) for number in numbers}


@contextlib.contextmanager
def ends_on_signals():
    """Inside, signals that would end the process at once unwind it, so that labs are removed."""

    def end(number, _frame):
        sys.exit(128 + number)

    before = _handled(end, [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL])
    try:
        yield
    finally:
        _restore(before)


@contextlib.contextmanager
def ignored_signals():
    """Inside, nobody interrupts: for cleaning up, which is bounded by stop()."""
    before = _handled(signal.SIG_IGN, (*ENDING, signal.SIGINT))
    try:
        yield
    finally:
        _restore(before)


def _restore(before) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def run(command: str, check: bool = True) -> None:
    """Runs a command, given as words separated by spaces."""
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if check and done.returncode != 0:
        raise LabError(f"{command}: {done.stderr.strip() or done.stdout.strip()}")


def stop(process: subprocess.Popen, timeout: float = 5.0) -> None:
    """Ends one process group that this lab started: TERM, then KILL."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout)
            return
        except subprocess.TimeoutExpired:
            continue


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command in host 0 of a namespace lab.")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", type=float,
                        help="Mb/s of every link, both ways; unshaped without")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--pmd", default="af_packet", choices=["af_packet", "af_xdp", "bridge"])
    parser.add_argument("--build", default="build",
                        help="build directory that holds dataplane/sluiced")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        with Lab(options.hosts, options.rate, options.pmd, options.mtu) as lab:
            if options.pmd != "bridge":
                lab.start_appliance(options.build)
            return lab.popen(0, options.command).wait()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
