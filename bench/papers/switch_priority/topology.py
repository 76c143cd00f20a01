"""The publication's network on one machine: PS - sw0 - sw1 - three workers, in network namespaces.

sw0 and sw1 are two `sluiced` with af_packet ports; every link is a veth pair. A switch's port is
shaped by the switch itself (rate_mbps), a host's interface by htb with the same bytes of overhead,
so both ends of a link have its rate and queues stand in the switches. Needs root. What was made is
removed on exit.
"""
import contextlib
import itertools
import os
import subprocess
import tempfile
import threading
import time

import cores
import lab
import report

from . import models

SWITCHES = ("sw0", "sw1")
SERVER = "ps"
WORKERS = tuple(f"w{i}" for i in range(models.WORKERS))
AGGREGATOR = "10.77.0.1"   # sw1's own address; sw0's is .2
TRUNK = "trunk"             # the shared link's interface on both switches
EXAMPLE = os.path.join(report.ROOT, "config", "examples", "parameter_server.toml")
MTU = 1500
FRAME_OVERHEAD_BYTES = 24  # preamble, checksum and gap, which the switch's shaper counts as well
HOST_QUEUE_BYTES = 2_000_000
# 18,432 packet buffers; all windows of TCP together take a tenth of them.
MEMORY_MIB = 96
# A switch has its own cores; here it shares them. A shaper that wakes up more than the 5 ms of its
# burst late has lost link time.
SWITCH_NICENESS = -10
SYSCTLS = ("net.ipv6.conf.default.disable_ipv6=1", "net.ipv4.tcp_slow_start_after_idle=0",
           "net.ipv4.tcp_no_metrics_save=1")
START_TIMEOUT_S = 30
_ordinals = itertools.count()
_probe = threading.Lock()  # lab.missing() makes a namespace that is named by the process


def address(host):
    """Of the server or of a worker."""
    return "10.77.0.9" if host == SERVER else f"10.77.0.{10 + WORKERS.index(host)}"


def example_rules():
    """The [[rule]] tables of the parameter server's example, a class for each worker's address."""
    with open(EXAMPLE, encoding="ascii") as file:
        text = file.read()
    return text[text.index("[[rule]]"):]


class Topology:
    """A context; `scale` divides the published rates, `rules` ends both switches' TOML."""

    def __init__(self, scale, rules=""):
        self._rules = rules
        self.link_mbps = round(models.LINK_BPS / scale / 1e6)
        self.server_mbps = round(models.SERVER_BPS / scale / 1e6)
        self._prefix = f"slp{os.getpid() % 100000}x{next(_ordinals)}"
        self._processes, self._namespaces, self._switches = [], [], []
        self._stack = contextlib.ExitStack()
        self.directory = None

    def __enter__(self):
        with _probe:
            reason = lab.missing()
        if reason:
            raise report.BenchError(reason)
        self.directory = self._stack.enter_context(
            tempfile.TemporaryDirectory(prefix="sluice-lab-"))
        try:
            self._build()
            for switch in SWITCHES:
                self._start_switch(switch)
        except lab.LabError as error:
            self.__exit__(None, None, None)
            raise report.BenchError(str(error)) from None
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_exc):
        for process in reversed(self._processes):
            lab.stop(process)
        for namespace in self._namespaces:
            lab.run(f"ip netns del {namespace}", check=False)
        self._namespaces = []
        self._stack.close()

    def namespace(self, name):
        return f"{self._prefix}-{name}"

    def _in(self, name, command):
        lab.run(f"ip netns exec {self.namespace(name)} {command}")

    def _build(self):
        for name in SWITCHES + (SERVER,) + WORKERS:
            lab.run(f"ip netns add {self.namespace(name)}")
            self._namespaces.append(self.namespace(name))
            self._in(name, "ip link set lo up")
            self._in(name, "sysctl -qw " + " ".join(SYSCTLS))
        self._link(("sw0", TRUNK), ("sw1", TRUNK))
        self._link((SERVER, "eth0"), ("sw0", SERVER))
        for worker in WORKERS:
            self._link((worker, "eth0"), ("sw1", worker))
        for host in (SERVER,) + WORKERS:
            self._in(host, f"ip addr add {address(host)}/24 dev eth0")
            self._in(host, "ip route add 239.77.0.0/16 dev eth0")
            self._shape(host, self.server_mbps if host == SERVER else self.link_mbps)

    def _link(self, one, other):
        lab.run(f"ip link add {one[1]} netns {self.namespace(one[0])} mtu {MTU} type veth "
                f"peer name {other[1]} netns {self.namespace(other[0])} mtu {MTU}")
        for name, device in (one, other):
            # The switch reads raw frames: checksums must be finished and frames unmerged.
            self._in(name, f"ethtool -K {device} tx off rx off gso off tso off gro off")
            self._in(name, f"ip link set {device} up")

    def _shape(self, host, rate_mbps):
        self._in(host, "tc qdisc add dev eth0 root handle 1: htb default 1 r2q 1000")
        self._in(host, "tc class add dev eth0 parent 1: classid 1:1 htb "
                       f"rate {rate_mbps}mbit burst 16k overhead {FRAME_OVERHEAD_BYTES}")
        self._in(host, f"tc qdisc add dev eth0 parent 1:1 bfifo limit {HOST_QUEUE_BYTES}")

    def config(self, switch):
        """The switch's TOML."""
        ports = {TRUNK: self.link_mbps}
        if switch == "sw0":
            ports[SERVER] = self.server_mbps
        else:
            ports.update((worker, self.link_mbps) for worker in WORKERS)
        own = AGGREGATOR if switch == "sw1" else "10.77.0.2"
        lines = ["[appliance]", f'address = "{own}/24"', 'secret = "lab"',
                 f"memory_mib = {MEMORY_MIB}"]
        for device, rate_mbps in ports.items():
            lines += ["", "[[port]]", f'name = "{device}"', 'type = "af_packet"',
                      f'interface = "{device}"', f"mtu = {MTU}", f"rate_mbps = {rate_mbps}"]
        return "\n".join(lines) + "\n\n" + self._rules

    def _start_switch(self, switch):
        path = os.path.join(self.directory, switch + ".toml")
        with open(path, "w", encoding="ascii") as file:
            os.chmod(path, 0o600)  # it holds the secret
            file.write(self.config(switch))
        log = os.path.join(self.directory, switch + ".log")
        with open(log, "wb") as output:
            process = self.popen(switch, ["nice", "-n", str(SWITCH_NICENESS),
                                          report.program("dataplane/sluiced"), "--config", path],
                                 stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT)
        self._switches.append(process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            with open(log, encoding="utf-8", errors="replace") as file:
                if lab.READY in file.read():
                    return
            time.sleep(0.05)
        with open(log, encoding="utf-8", errors="replace") as file:
            raise report.BenchError(f"{switch} did not become ready:\n{file.read()}")

    def popen(self, name, command, env=None, **kwargs):
        """Starts a program on a host or switch; it is ended with the topology."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace(name), *command],
            env={**os.environ, **(env or {})}, start_new_session=True, **kwargs)
        self._processes.append(process)
        return process

    def switch_cpu_s(self):
        """Processor time of both switches so far."""
        return sum(cores.process_cpu_s(process.pid) for process in self._switches)
