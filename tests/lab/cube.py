"""A BCube in network namespaces: one for each worker and each switch. A switch runs `sluiced`, or
in mode plain a Linux bridge.

`python3 -m sluice bcube plan` gives the addresses, interfaces and configurations. A worker's
interface at level l is `level<l>`. With `detours` the workers forward for each other, so that each
reaches the switches that stand in for lost ones. With `plain_network` the workers have one more
network, `mgmt0`, for PyTorch's own traffic. With `rate_mbps` the cube's links are shaped at both
ends, as lab.py's are.

    with CubeLab(2, 2) as cube:
        cube.start_appliances(build_dir)
        worker = cube.popen(3, [sys.executable, "train.py"], env={"SLUICE_ADDRESS": cube.url})
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import lab
import links

from sluice import bcube

_ordinals = itertools.count()


class CubeLab:
    """BCube(`ports`, `levels`). Everything is removed on exit. Not thread-safe."""

    def __init__(self, ports: int, levels: int, plain_network: bool = False,
                 detours: bool = False, mode: str = "aggregated", rate_mbps: int | None = None):
        self.cube = bcube.Cube(ports, levels)
        self.plain_network = plain_network
        self.detours = detours
        self.mode = mode
        self.rate_mbps = rate_mbps
        self.boxes: dict[tuple[int, int], subprocess.Popen] = {}  # by level and switch
        self._prefix = f"slc{os.getpid() % 100000}x{next(_ordinals)}"
        self._namespaces: list[str] = []
        self._processes: list[subprocess.Popen] = []
        self._stack = contextlib.ExitStack()
        self._signals = lab.ends_on_signals()
        self.directory = Path()

    @property
    def workers(self) -> int:
        return self.cube.servers

    @property
    def url(self) -> str:
        return (f"bcube://{self.cube.ports},{self.cube.levels}"
                f"?file={self.directory / 'cube.toml'}")

    def __enter__(self) -> "CubeLab":
        reason = lab.missing()
        if reason:
            raise lab.LabError(reason)
        self._signals.__enter__()
        try:
            self.directory = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-lab-")))
            bcube.write_plan(self.cube, self.mode, bcube.PATTERNS[self.mode], self.directory,
                             interface="w{server}")
            self._build()
            if self.rate_mbps is not None:
                self._stack.enter_context(links.one_timer_a_burst())
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_exc) -> None:
        with lab.ignored_signals():
            for process in reversed(self._processes):
                lab.stop(process)
            for namespace in self._namespaces:
                subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
            self._stack.close()
        self._signals.__exit__(None, None, None)

    def _namespace(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _in(self, name: str, command: str, check: bool = True) -> None:
        lab.run(f"ip netns exec {self._namespace(name)} {command}", check=check)

    def _add_namespace(self, name: str) -> None:
        self._namespaces.append(self._namespace(name))  # first: a signal may end us in between
        lab.run(f"ip netns add {self._namespace(name)}")
        self._in(name, "ip link set lo up")
        self._in(name, "sysctl -qw net.ipv6.conf.default.disable_ipv6=1", check=False)

    def _link(self, one: tuple[str, str], other: tuple[str, str]) -> None:
        lab.run(f"ip link add {one[1]} netns {self._namespace(one[0])} type veth "
                f"peer name {other[1]} netns {self._namespace(other[0])}")
        for name, device in (one, other):
            # The switch reads raw frames: checksums must be finished and frames unmerged.
            self._in(name, f"ethtool -K {device} tx off rx off gso off tso off gro off")
            self._in(name, f"ip link set {device} up")

    def _shape(self, name: str, device: str) -> None:
        if self.rate_mbps is not None:
            for command in links.shaper_commands(device, self.rate_mbps, mtu=1500):
                self._in(name, command)

    def _add_bridge(self, name: str) -> None:
        self._in(name, "ip link add br0 type bridge")
        self._in(name, "ip link set br0 up")

    def _build(self) -> None:
        for worker in range(self.workers):
            self._add_namespace(f"w{worker}")
        for level in range(self.cube.levels):
            for switch in range(self.cube.switches):
                name = f"s{level}-{switch}"
                self._add_namespace(name)
                if self.mode == "plain":
                    self._add_bridge(name)
                for digit, worker in enumerate(self.cube.servers_of(level, switch)):
                    self._link((f"w{worker}", f"level{level}"), (name, f"w{worker}"))
                    self._in(f"w{worker}",
                             f"ip addr add 10.{level}.{switch}.{digit + 10}/24 dev level{level}")
                    self._shape(f"w{worker}", f"level{level}")
                    if self.mode == "plain":
                        self._in(name, f"ip link set w{worker} master br0")
                        self._shape(name, f"w{worker}")
        if self.detours:
            self._add_routes()
        if not self.plain_network:
            return
        self._add_namespace("mgmt")
        self._add_bridge("mgmt")
        for worker in range(self.workers):
            self._link((f"w{worker}", "mgmt0"), ("mgmt", f"w{worker}"))
            self._in("mgmt", f"ip link set w{worker} master br0")
            self._in(f"w{worker}", f"ip addr add 10.99.0.{worker + 10}/24 dev mgmt0")

    def _add_routes(self) -> None:
        for worker in range(self.workers):
            self._in(f"w{worker}", "sysctl -qw net.ipv4.ip_forward=1")
            for level in range(self.cube.levels):
                other, neighbour, switch = self.cube.detour(worker, level)
                digit = self.cube.digits(neighbour)[other]
                gateway = f"10.{other}.{self.cube.switch_of(neighbour, other)}.{digit + 10}"
                self._in(f"w{worker}", f"ip route add 10.{level}.{switch}.0/24 via {gateway}")
            for level, neighbour, other, switch in (
                    self.cube.ways_back(worker) if self.mode == "plain" else ()):
                gateway = (f"10.{level}.{self.cube.switch_of(neighbour, level)}."
                           f"{self.cube.digits(neighbour)[level] + 10}")
                self._in(f"w{worker}",
                         f"ip route replace 10.{other}.{switch}.0/24 via {gateway}")

    def switch(self, level: int, switch: int, up: bool) -> None:
        """Mode plain: the switch forwards, or it does not."""
        self._in(f"s{level}-{switch}", f"ip link set br0 {'up' if up else 'down'}")

    def _popen(self, name: str, command: list[str], **kwargs) -> subprocess.Popen:
        process = subprocess.Popen(["ip", "netns", "exec", self._namespace(name), *command],
                                   start_new_session=True, **kwargs)
        self._processes.append(process)
        return process

    def popen(self, worker: int, command: list[str], env: dict[str, str] | None = None,
              **kwargs) -> subprocess.Popen:
        """Starts `command` in the worker's namespace. Stopped when the lab ends."""
        return self._popen(f"w{worker}", command, env={**os.environ, **(env or {})}, **kwargs)

    def start_appliances(self, build_dir: str | Path, timeout: float = 300) -> None:
        """Starts sluiced in every switch, with the plan's configuration, and waits for all."""
        places = list(itertools.product(range(self.cube.levels), range(self.cube.switches)))
        for level, switch in places:
            path = self.directory / f"switch-{level}-{switch}.toml"
            path.chmod(0o600)  # it holds a secret
            text = path.read_text().replace(
                "[appliance]\n", '[appliance]\nsecret = "lab"\nmemory_mib = 96\n')
            if self.rate_mbps is not None:
                text = text.replace("[[port]]\n", f"[[port]]\nrate_mbps = {self.rate_mbps}\n"
                                    f"queue_kib = {links.QUEUE_BYTES // 1024}\n")
            path.write_text(text)
        self.start_again(build_dir, *places, timeout=timeout)

    def start_again(self, build_dir: str | Path, *places: tuple[int, int],
                    timeout: float = 300) -> None:
        """Starts sluiced in these switches, each a level and a number, and waits for all."""
        logs = {}
        for level, switch in places:
            path = self.directory / f"switch-{level}-{switch}.toml"
            logs[level, switch] = path.with_suffix(".log")
            with logs[level, switch].open("wb") as output:
                self.boxes[level, switch] = self._popen(
                    f"s{level}-{switch}",
                    [str(Path(build_dir) / "dataplane" / "sluiced"), "--config", str(path)],
                    stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + timeout
        for place, log in logs.items():
            while lab.READY not in log.read_text(errors="replace"):
                if time.monotonic() > deadline or self.boxes[place].poll() is not None:
                    raise lab.LabError(f"switch {place} did not become ready in {timeout} s:\n"
                                       f"{log.read_text(errors='replace')}")
                time.sleep(0.05)

    def page(self, level: int, switch: int) -> str:
        """The switch's /metrics."""
        return lab.scrape(self._namespace(f"s{level}-{switch}"))

    def run_at_switch(self, level: int, switch: int, command: list[str]) -> str:
        """What `command` prints in the switch's namespace, where its metrics are at 127.0.0.1."""
        done = subprocess.run(["ip", "netns", "exec", self._namespace(f"s{level}-{switch}"),
                               *command], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise lab.LabError(f"{command}: status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def received_bytes(self, level: int, switch: int) -> int:
        """What the switch's ports have received so far, in bytes of frames."""
        return sum(map(int, self.run_at_switch(level, switch, [
            "cat", *(f"/sys/class/net/w{worker}/statistics/rx_bytes"
                     for worker in self.cube.servers_of(level, switch))]).split()))

    def contributions(self, level: int, switch: int) -> int:
        """That the switch has added into sums of gradients, of all its jobs, as it says."""
        return int(lab.metric(self.page(level, switch), "sluice_job_contributions_total"))
