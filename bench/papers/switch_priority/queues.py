"""The places of the queues: samples of the switches' metrics and of the hosts' shapers."""
import ctypes
import re
import subprocess
import threading
import urllib.request

from . import topology

PERIOD_S = 0.5
METRICS = "http://127.0.0.1:9464/metrics"
_QUEUE = re.compile(r'^sluice_port_queue_bytes\{[^}]*port="([^"]*)"[^}]*\} (\d+)', re.M)
_DROPS = re.compile(r'^sluice_port_dropped_packets_total\{([^}]*)\} (\d+)', re.M)
_BACKLOG = re.compile(r"bfifo.*?backlog (\d+)(K|M)?b", re.S)
_CLONE_NEWNET = 0x40000000


def _enter(namespace):
    """Moves the calling thread into a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class QueueWatch:
    """A context; samples until it ends."""

    def __init__(self, lab):
        self._lab = lab
        self._end = threading.Event()
        self._samples, self._drops = {}, {}   # place -> bytes seen; place and reason -> packets
        self._threads = [threading.Thread(target=self._watch, args=(name,), daemon=True)
                         for name in topology.SWITCHES + (topology.SERVER,) + topology.WORKERS]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc):
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, name):
        _enter(self._lab.namespace(name))
        switch = name in topology.SWITCHES
        while not self._end.wait(PERIOD_S):
            for place, count in (self._switch(name) if switch else self._host(name)):
                self._samples.setdefault(place, []).append(count)
        if switch:
            self._switch(name)

    def _switch(self, name):
        try:
            text = urllib.request.urlopen(METRICS, timeout=5).read().decode()
        except OSError:
            return []
        for labels, count in _DROPS.findall(text):
            reason = re.search(r'reason="([^"]*)"', labels).group(1)
            port = re.search(r'port="([^"]*)"', labels).group(1)
            if int(count):
                self._drops[f"{name}.{port}.{reason}"] = int(count)
        return [(f"{name}.{port}", int(count)) for port, count in _QUEUE.findall(text)]

    @staticmethod
    def _host(name):
        text = subprocess.run(["tc", "-s", "qdisc", "show", "dev", "eth0"], capture_output=True,
                              text=True, check=False).stdout
        match = _BACKLOG.search(text)
        if not match:
            return []
        return [(name, int(match.group(1)) * {None: 1, "K": 1000, "M": 10**6}[match.group(2)])]

    def result(self):
        """({place: [mean, most] of bytes}, {place.reason: packets dropped})."""
        return ({place: [round(sum(values) / len(values)), max(values)]
                 for place, values in sorted(self._samples.items()) if max(values) > 0},
                self._drops)
