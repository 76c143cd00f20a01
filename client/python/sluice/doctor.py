"""`python3 -m sluice doctor`: what works on this machine, and why not.

One line a check: 'ok', 'warn' (works, could be better), 'no' (does not work; the line says what to
do) or 'off' (not there and not needed). Ends with status 0 unless something needed is missing.
"""

import ctypes
import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from sluice import _abi, _library, _settings, errors
from sluice._doctor_host import check_cards, check_hugepages, check_interfaces, check_owner

_WANTED_RMEM_BYTES = 8 << 20  # holds one large model's results of a 10 Gb/s link for some ms
_DATAGRAM_TRUESIZE_BYTES = 2304  # what one datagram of 1,500 bytes costs in a socket buffer
_IP_MTU = 14  # linux/in.h
_UDP_OFFLOADS = {"UDP_SEGMENT": 103, "UDP_GRO": 104}  # linux/udp.h
_TRIED_ELEMENTS = 1 << 14  # some dozens of packets, enough for a train
_PLUGIN = "libsluice_dpdk.so"


class Report:
    """Prints the lines and remembers whether something needed is missing."""

    def __init__(self, stream=None):
        self.failed = False
        self._stream = stream or sys.stdout

    def _line(self, word, name, text):
        first, *rest = str(text).split("\n")
        print(f"{word:<4} {name:<12} {first}", file=self._stream)
        for line in rest:
            print(f"{'':<18}{line}", file=self._stream)

    def ok(self, name, text):
        self._line("ok", name, text)

    def warn(self, name, text):
        self._line("warn", name, text)

    def off(self, name, text):
        self._line("off", name, text)

    def no(self, name, text, needed=True):
        self.failed = self.failed or needed
        self._line("no", name, text)


def check_python(report):
    text = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < (3, 9):
        report.no("python", f"{text}: 3.9 or newer is needed")
    else:
        report.ok("python", text)


def check_library(report):
    try:
        library = _library.load()
    except errors.Error as error:
        report.no("library", error)
        return None
    report.ok("library", f"libsluice {library.sluice_version().decode()} at {library.path}")
    return library


def check_torch(report):
    try:
        import torch
    except ImportError as error:
        report.no("torch", f"not importable ({error}): apt install python3-torch, or pip install "
                           "torch; without it only sluice.Job can be used", needed=False)
        return
    import torch.distributed as dist
    version = f"torch {torch.__version__}"
    if not dist.is_available():
        report.no("torch", f"{version} was built without torch.distributed")
        return
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    hooks = hasattr(dist, "GradBucket") and hasattr(
        torch.nn.parallel.DistributedDataParallel, "register_comm_hook")
    if not hooks or (major, minor) < (1, 13):
        report.no("torch", f"{version} has no usable DDP communication hooks: 1.13 or newer is "
                           "needed")
        return
    gloo = "Gloo available" if dist.is_gloo_available() else "without Gloo"
    report.ok("torch", f"{version}, DDP communication hooks, {gloo}")


def check_receive_buffer(report):
    try:
        limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    except (OSError, ValueError) as error:
        report.warn("udp buffers", f"net.core.rmem_max is not readable ({error})")
        return
    packets = 2 * limit // _DATAGRAM_TRUESIZE_BYTES  # the kernel doubles what is asked for
    text = f"net.core.rmem_max = {limit}: a worker can take about {packets} results at once"
    if limit < _WANTED_RMEM_BYTES:
        report.warn("udp buffers", f"{text}; more is faster over udp: "
                                   f"sysctl -w net.core.rmem_max={_WANTED_RMEM_BYTES}")
    else:
        report.ok("udp buffers", text)


def check_udp_offload(report, library):
    """Whether the kernel has trains of datagrams, and whether two ranks here get any."""
    missing = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name, option in _UDP_OFFLOADS.items():
            try:
                probe.getsockopt(socket.IPPROTO_UDP, option)
            except OSError:
                missing.append(name)
    if missing:
        report.warn("udp offload", f"the kernel has no {' and no '.join(missing)}: packets go one "
                                   "by one, which costs more of the processor; Linux 5.0 has both")
        return
    if library is None:
        report.off("udp offload", "the kernel has UDP_SEGMENT and UDP_GRO; not tried: there is no "
                                  "library")
        return
    try:
        stats = _sum_over_loopback()
    except (errors.Error, OSError) as error:
        report.warn("udp offload", "the kernel has UDP_SEGMENT and UDP_GRO; not tried, as two "
                                   f"ranks could not sum over the loopback interface: {error}")
        return
    in_use = stats["segmented_packets"] and stats["coalesced_packets"]
    (report.ok if in_use else report.warn)(
        "udp offload", f"tried over the loopback interface: {_trains(stats)}" +
        ("" if in_use else "; packets that go one by one cost more of the processor"))


def _trains(stats):
    return (f"{stats['segmented_packets']} of {stats['packets_sent']} packets left in trains "
            f"(UDP_SEGMENT), {stats['coalesced_packets']} of {stats['packets_received']} came in "
            "trains (UDP_GRO)")


def _sum_over_loopback():
    """Two ranks of this process sum for each other by UDP; the counters of the first."""
    from sluice import bcube
    from sluice.job import Job
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] & ~1  # a rank serves this one and the next
    with tempfile.TemporaryDirectory() as folder:
        bcube.write_plan(bcube.Cube(2, 1), "plain", f"udp://127.77.0.{{host}}:{port}", Path(folder))
        options = {"world_size": 2, "job": "doctor", "secret": secrets.token_hex(8),
                   "run_id": secrets.randbits(63) + 1, "mtu": 1500, "join_timeout": 10.0}

        def work(rank):
            values = (ctypes.c_float * _TRIED_ELEMENTS)(*[3.0] * _TRIED_ELEMENTS)
            with Job([("doctor", _TRIED_ELEMENTS, "float32")],
                     f"bcube://2,1?file={folder}/cube.toml", rank=rank, **options) as job:
                job.submit(0, ctypes.addressof(values))
                job.wait_step(timeout=10.0)
                return job.stats()

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(work, range(2)))[0]


def check_plugin(report, library):
    if library is None:
        report.off("vhost", "not checked: there is no library")
        return
    asked = os.environ.get("SLUICE_PLUGIN_DIR")
    beside = Path(library.path).resolve().parent
    folders = [Path(asked)] if asked else [beside, beside / "sluice"]
    path = next((folder / _PLUGIN for folder in folders if (folder / _PLUGIN).exists()), None)
    if path is None:
        report.off("vhost", f"there is no plug-in {_PLUGIN} in {', '.join(map(str, folders))}: "
                            "vhost:// addresses and --local-box do not work, udp:// does. A wheel "
                            "has none; with the Debian package libsluice0.3, set SLUICE_PLUGIN_DIR="
                            f"/usr/lib/{platform.machine()}-linux-gnu/sluice")
        return
    # In a process of its own: loading it starts nothing, but its DPDK libraries would stay.
    code = f"import ctypes, os; ctypes.CDLL({str(path)!r}, os.RTLD_NOW | os.RTLD_LOCAL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30,
                          check=False)
    if done.returncode == 0:
        report.ok("vhost", f"plug-in {path}")
    else:
        why = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        report.warn("vhost", f"plug-in {path} does not load: {why}")


def check_gpu(report, library):
    """What each way out of a device's memory says about itself, in a process of its own: it may
    start a driver."""
    if library is None:
        report.off("gpu", "not checked: there is no library")
        return
    code = ("import ctypes; from sluice import _library; text = ctypes.create_string_buffer(4096); "
            "_library.load().sluice_describe_memory(0, text, len(text)); "
            "print(text.value.decode())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=False)
    ways = [line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line]
    works = [f"{way} {text}" for way, text in ways if text.startswith("works, ")]
    missing = {}
    for way, text in ways:
        if not text.startswith("works"):
            missing.setdefault(text, []).append(way)
    why = ("; ".join(f"not {', '.join(names)}: {text}" for text, names in missing.items())
           or done.stderr.strip())
    if works:
        report.ok("gpu", "; ".join([*works, why]))
    else:
        report.off("gpu", f"gradients are summed from host memory only; {why}")


def _route(host, port):
    """(resolved address, source address, MTU) of the kernel's route to host."""
    family, kind, protocol, _, peer = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(peer)
        level, option = ((socket.IPPROTO_IP, _IP_MTU) if family == socket.AF_INET
                         else (socket.IPPROTO_IPV6, 24))
        return peer[0], probe.getsockname()[0], probe.getsockopt(level, option)


def check_route(report, address, wanted_mtu):
    """Says how the kernel reaches the address; returns it and this machine's, or None."""
    if address.startswith("udp://") and "," in address:
        for place in address.removeprefix("udp://").split(","):
            check_route(report, f"udp://{place}", wanted_mtu)
        return None
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or 7700
    except ValueError as error:
        report.no("address", f"{address}: {error}")
        return None
    if parts.scheme == "vhost":
        if os.path.exists(parts.path):
            access = os.access(parts.path, os.R_OK | os.W_OK)
            (report.ok if access else report.no)(
                "address", f"{address}: the socket exists" +
                ("" if access else ", but this user may not open it: run as its owner or change "
                                   "its mode"))
        else:
            report.no("address", f"{address}: there is no socket {parts.path}: is sluiced running, "
                                 "with that path in its configuration?")
        return None
    if parts.scheme != "udp" or not host:
        report.ok("address", address)
        return None
    try:
        peer, source, mtu = _route(host, port)
    except OSError as error:
        report.no("address", f"{address}: no route ({error.strerror or error}): check the host "
                             "name, and 'ip route'")
        return None
    text = f"{address}: {peer} from {source}, path MTU {mtu}"
    if wanted_mtu is not None and mtu < wanted_mtu:
        report.no("address", f"{text}: does not carry packets of {wanted_mtu} bytes: give --mtu "
                             f"{mtu}, or raise the MTU of the interfaces along the path")
    elif wanted_mtu is None and mtu < 1500:
        report.warn("address", f"{text}: below 1500, so give --mtu {mtu} here and "
                               f"attach(..., mtu={mtu})")
    elif wanted_mtu is None and mtu > 1500:
        report.ok("address", f"{text}: --mtu {min(mtu, 9000)} tries bigger packets")
    else:
        report.ok("address", text)
    return peer, source


def check_appliance(report, address, options):
    """Joins a job of one rank with packets as big as the path's, sums once and leaves."""
    from sluice.job import Job
    values = (ctypes.c_float * _TRIED_ELEMENTS)(*[3.0] * _TRIED_ELEMENTS)
    start = time.monotonic()
    try:
        with Job([("doctor", _TRIED_ELEMENTS, "float32")], address, rank=0, world_size=1,
                 job=f"doctor-{secrets.token_hex(4)}", secret=options.secret,
                 run_id=secrets.randbits(63) + 1, mtu=options.mtu or 1500, connect_timeout=3.0,
                 join_timeout=5.0) as job:
            joined = time.monotonic()
            where = ctypes.addressof(values)
            job.submit(0, where)
            job.wait_step(timeout=5.0)
            summed = time.monotonic()
            stats = job.stats()
            shards = stats["shards"]
    except errors.Error as error:
        report.no("appliance", error)
        return
    wrong = next((value for value in values if value != 3.0), None)
    if wrong is not None:
        report.no("appliance", f"{address}: the sum of one rank's 3 came back as {wrong}")
        return
    report.ok("appliance", f"{address}: joined in {(joined - start) * 1e3:.1f} ms, one sum in "
                           f"{(summed - joined) * 1e3:.2f} ms, {shards} "
                           f"shard{'s' * (shards != 1)}, chunks of {stats['chunk_bytes']} bytes, "
                           f"{_trains(stats)}")


def add_arguments(parser):
    parser.add_argument("--address", help="appliance to try (default SLUICE_ADDRESS)")
    parser.add_argument("--secret", help="of the appliance (default SLUICE_SECRET)")
    parser.add_argument("--mtu", type=int, help="of the path to it, bytes of an IP packet: tries "
                                                "packets of that size (default 1500)")


def run(options):
    report = Report()
    print(f"sluice {_abi.VERSION}")
    check_python(report)
    library = check_library(report)
    check_torch(report)
    check_plugin(report, library)
    check_receive_buffer(report)
    check_udp_offload(report, library)
    check_interfaces(report)
    check_hugepages(report)
    check_cards(report)
    check_gpu(report, library)
    address = options.address or os.environ.get("SLUICE_ADDRESS")
    if not address:
        report.off("appliance", "not tried: give --address or set SLUICE_ADDRESS")
    else:
        address = _settings.expand(address, 0)
        reached = check_route(report, address, options.mtu)
        if library is not None:
            check_appliance(report, address, options)
        if reached:
            check_owner(report, *reached)  # the join has asked who has the address
    return 1 if report.failed else 0
