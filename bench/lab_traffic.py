"""TCP streams and pings between hosts of a lab (tests/lab), for benches."""
import contextlib
import json
import os
import re
import time

import report


@contextlib.contextmanager
def tcp_stream(lab, sender, receiver, seconds, options=()):
    """iperf3 from one host to another while the block runs; yields a function that waits for its
    end and returns the bits per second that the receiver's application got."""
    server = lab.popen(receiver, ["iperf3", "-s", "-1", "--forceflush"], stdout=-1, text=True)
    while "listening" not in (line := server.stdout.readline()):
        if not line:
            raise report.BenchError("iperf3's server ended")
    client = lab.popen(sender, ["iperf3", "-c", lab.address(receiver), "-J", "-t", str(seconds),
                                *options], stdout=-1, text=True)

    def received_bps():
        document = json.loads(client.communicate(timeout=seconds + 60)[0])
        if "error" in document:
            raise report.BenchError(f"iperf3: {document['error']}")
        return document["end"]["sum_received"]["bits_per_second"]

    try:
        yield received_bps
    finally:
        # The server ends by itself after its one client.
        if client.poll() is None:
            client.terminate()
            client.communicate(timeout=30)
            server.terminate()
        server.communicate(timeout=30)


def ping_us(lab, host, address, count, interval, tos=0):
    """The sorted round trips in microseconds of `count` pings from a host, none of them lost."""
    process = lab.popen(host, ["ping", "-n", "-Q", str(tos), "-c", str(count), "-i", str(interval),
                               "-W", "5", address], stdout=-1, text=True)
    text = process.communicate(timeout=120)[0]
    times_us = sorted(float(ms) * 1000 for ms in re.findall(r"time=([0-9.]+) ms", text))
    if process.returncode != 0 or len(times_us) < count:
        raise report.BenchError(f"{count - len(times_us)} of {count} pings lost: {text[-300:]}")
    return times_us


def shaping_share(rate_mbps, mtu, repetitions=5):
    """What one shaper of the kernel takes of all cores at most, in percent, while its link is full.

    A shaper costs timers. They are counted while a bare sender fills a host's uplink and a bridge's
    port, less those of as long without it, alternating; medians. Each is charged what this process
    pays for being woken by one, two switches of context included.
    """
    import links
    from lab import Lab
    idle, full = report.Samples(), report.Samples()
    with Lab(2, rate_mbps, "bridge", mtu) as lab:
        for _ in range(repetitions):
            idle.add(_timers_in(0.5))
            links.carried_mbps(lab, 0, 1, 0.5, during=lambda s: full.add(_timers_in(s)))
    timers_a_second = max(0.0, full.median - idle.median) / 0.5 / 2
    return 100 * timers_a_second * _timer_cost_s() / len(os.sched_getaffinity(0))


def _timers_in(seconds):
    """Timer interrupts of all cores while this process sleeps."""
    def count():
        with open("/proc/interrupts", encoding="ascii") as interrupts:
            line = next(line for line in interrupts if line.lstrip().startswith("LOC:"))
        return sum(int(word) for word in line.split() if word.isdigit())
    before = count()
    time.sleep(seconds)
    return count() - before


def _timer_cost_s(count=5000):
    began = time.process_time()
    for _ in range(count):
        time.sleep(50e-6)
    return (time.process_time() - began) / count
