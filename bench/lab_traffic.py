"""TCP streams and pings between hosts of a lab (tests/lab), for benches."""
import contextlib
import json
import re

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
