"""Processes that serve a vhost-user socket while a bench measures: `sluiced`, an echo, testpmd."""
import os
import signal
import subprocess
import time

import report

BOX_MAC = "02:51:0a:4d:00:01"
START_TIMEOUT_S = 30


def wait_for(process, log, word, name):
    """Until `word` stands in the log; a process that ends or is silent fails the bench by name."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with open(log, encoding="utf-8", errors="replace") as lines:
            text = lines.read()
        if word in text:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise report.BenchError(f"{name} did not become ready:\n{text}")
        time.sleep(0.02)


class Served:
    """A process from ready until the end of the block; its standard input stays open and empty."""

    def __init__(self, name, argv, log, word):
        self.name, self.argv, self.log, self.word = name, argv, log, word

    def __enter__(self):
        with open(self.log, "wb") as output:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.PIPE, stdout=output,
                                            stderr=subprocess.STDOUT)
        try:
            wait_for(self.process, self.log, self.word, self.name)
        except BaseException:
            self.__exit__()
            raise
        return self.process

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # it may be a stopped one
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()


def appliance(folder, ports=("appliance",), polling="busy", name="appliance"):
    """`sluiced` with a vhost-user port PORT.sock in the folder for each name."""
    config = os.path.join(folder, f"{name}.toml")
    with open(config, "w", encoding="ascii") as file:
        file.write(f'[appliance]\naddress = "10.77.0.1/24"\nmac = "{BOX_MAC}"\n'
                   f'polling = "{polling}"\nmemory_mib = 256\n[metrics]\naddress = ""\n')
        for port in ports:
            file.write(f'[[port]]\nname = "{port}"\ntype = "vhost-user"\n'
                       f'path = "{folder}/{port}.sock"\n')
    argv = [report.program("dataplane/sluiced"), "--config", config]
    return Served("sluiced", argv, os.path.join(folder, f"{name}.log"), "ready:")


def plugin_environment():
    """Where generators find the client's DPDK plug-in."""
    environment = dict(os.environ)
    environment.setdefault("SLUICE_PLUGIN_DIR", os.path.join(report.build_dir(), "client"))
    return environment


def percentile(samples, share):
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
