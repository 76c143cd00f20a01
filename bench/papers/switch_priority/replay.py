"""One host of the replay: the parameter server or a worker, driven by programs.py over TCP.

Runs inside the lab: `replay.py JSON`. The settings name the role, the policy, the layers and the
number of steps. At its end it prints one line of JSON: times by the machine's monotonic clock,
retransmitted segments, and the processor time that it took.
"""
import json
import os
import resource
import select
import sys
import time

if __package__ in (None, ""):  # started as a file inside the lab
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    __package__ = "papers.switch_priority"  # noqa: A001

from papers.switch_priority import multicast, streams  # noqa: E402
from papers.switch_priority.programs import POLICIES, Server, Worker, turn  # noqa: E402

# Class selectors, the most urgent first. CS7 is for pure acknowledgements: a class below the data
# of the other direction would slow a transfer down that is not its own.
BAND_PRECEDENCES = (6, 5, 4, 3, 2, 0, 1)
TURN_PRECEDENCES = (6, 4, 2)
IDLE_TIMEOUT_S = 120


def band_count(policy):
    return len(BAND_PRECEDENCES) if policy.by_layer else 1


def ordered(policy):
    return policy.by_rank or policy.by_layer


def precedence(policy, band, worker, step, workers):
    """Of a transfer's data."""
    if policy.by_rank:
        return TURN_PRECEDENCES[turn(worker, step, workers)]
    return BAND_PRECEDENCES[band] if policy.by_layer else 0


class Host:
    """What both roles share: settings, connections, the loop."""

    def __init__(self, settings):
        self.settings = settings
        self.policy = POLICIES[settings["policy"]]
        self.workers = settings["workers"]
        self.bands = settings["bands"] if self.policy.by_layer else [0] * len(settings["bytes"])
        self.bytes = settings["bytes"]
        self.streams = {}   # (worker, direction, band) -> Stream
        self.extra = []     # further things to select on

    def mark_acknowledgements(self, direction):
        """This end only acknowledges on the connections of that direction."""
        if ordered(self.policy):
            for (_, towards, _), stream in self.streams.items():
                if towards == direction:
                    stream.mark(streams.ACK_PRECEDENCE)

    def put(self, worker, direction, layer):
        self.streams[worker, direction, self.bands[layer]].put(layer, self.bytes[layer])

    def wait(self, until):
        """Sends and waits for input, until then at most; yields (key, layer) that are complete."""
        for stream in self.streams.values():
            if stream.waiting:
                stream.flush()
        timeout = IDLE_TIMEOUT_S if until is None else max(0.0, until - time.monotonic())
        everything = list(self.streams.values()) + self.extra
        writers = [stream for stream in self.streams.values() if stream.waiting]
        readable, writable, _ = select.select(everything, writers, [], timeout)
        if until is None and not readable and not writable:
            sys.exit(f"{self.settings['role']}: nothing moved for {IDLE_TIMEOUT_S} s")
        ready = set(map(id, readable))
        for key, stream in self.streams.items():
            if id(stream) in ready:
                for layer in stream.receive():
                    yield key, layer

    def finish(self, **figures):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        figures["cpu_s"] = round(usage.ru_utime + usage.ru_stime, 3)
        figures["retransmits"] = sum(stream.retransmits() for stream in self.streams.values())
        print(json.dumps(figures, separators=(",", ":")), flush=True)


class ServerHost(Host):
    def __init__(self, settings):
        super().__init__(settings)
        self.program = Server(self.policy, len(self.bytes), self.workers, settings["steps"])
        self.caster = None
        if self.policy.multicast:
            self.caster = multicast.Caster(settings["address"])
        listener = streams.listen()
        print("listening", flush=True)
        for _ in range(2 * self.workers * band_count(self.policy)):
            worker, direction, band, stream = streams.accept(listener)
            self.streams[worker, direction, band] = stream
        self.mark_acknowledgements(streams.UP)
        if self.caster:
            self.caster.accept(self.workers)
            self.extra = self.caster.sockets

    def pull(self, layers):
        step = self.program.finished_steps
        if self.caster:
            if layers:
                self.caster.begin(step, sum(self.bytes), time.monotonic())
            return
        if layers and self.policy.barrier and ordered(self.policy):
            for (worker, direction, band), stream in self.streams.items():
                if direction == streams.DOWN:
                    stream.mark(precedence(self.policy, band, worker, step, self.workers))
        for layer in layers:
            for worker in range(self.workers):
                self.put(worker, streams.DOWN, layer)

    def run(self):
        ends, pushed = [], [[] for _ in range(self.workers)]
        counts = [0] * self.workers
        if not self.policy.barrier and ordered(self.policy):
            for (worker, direction, band), stream in self.streams.items():
                if direction == streams.DOWN:
                    stream.mark(precedence(self.policy, band, worker, 0, self.workers))
        start = time.monotonic()
        self.pull(self.program.start())
        while not self.program.done:
            until = self.caster.wake_at if self.caster else None
            for (worker, direction, _), layer in self.wait(until):
                if direction == streams.DOWN:
                    continue
                counts[worker] += 1
                if counts[worker] % len(self.bytes) == 0:
                    pushed[worker].append(round(time.monotonic(), 4))
                before = self.program.finished_steps
                self.pull(self.program.gradient(layer))
                if self.program.finished_steps > before:
                    ends.append(round(time.monotonic(), 4))
            if self.caster:
                self.caster.work(time.monotonic())
        self.finish(start=round(start, 4), ends=ends, pushed=pushed,
                    resent=self.caster.resent if self.caster else 0)


class WorkerHost(Host):
    def __init__(self, settings):
        super().__init__(settings)
        self.rank = settings["rank"]
        for direction in (streams.DOWN, streams.UP):
            for band in range(band_count(self.policy)):
                self.streams[self.rank, direction, band] = streams.connect(
                    settings["server"], self.rank, direction, band)
        self.mark_acknowledgements(streams.DOWN)
        self.program = Worker(self.policy, settings["forward_s"], settings["backward_s"])
        self.received = self.pushed = 0      # layers
        self.pulled, self.pushing = [], []   # when the last layer of a step came, the first went
        self.receiver = None
        if self.policy.multicast:
            self.receiver = multicast.Receiver(settings["server"], settings["address"], self.rank,
                                               sum(self.bytes))
            self.extra = [self.receiver.socket]

    def push(self, layers):
        step = self.program.step - (0 if self.policy.overlap else 1)
        for layer in layers:
            if self.pushed % len(self.bytes) == 0:
                self.pushing.append(round(time.monotonic(), 4))
            self.pushed += 1
            band = self.bands[layer]
            if ordered(self.policy):
                self.streams[self.rank, streams.UP, band].mark(
                    precedence(self.policy, band, self.rank, step, self.workers))
            self.put(self.rank, streams.UP, layer)

    def pull(self, layer):
        now = time.monotonic()
        self.program.parameters(layer, now)
        self.received += 1
        if self.received % len(self.bytes) == 0:
            self.pulled.append(round(now, 4))

    def run(self):
        while not any(stream.closed for stream in self.streams.values()):
            for (_, direction, _), layer in self.wait(self.program.wake_at):
                if direction == streams.DOWN:
                    self.pull(layer)
            for _ in range(self.receiver.work() if self.receiver else 0):
                for layer in range(len(self.bytes)):
                    self.pull(layer)
            self.push(self.program.advance(time.monotonic()))
        self.finish(pulled=self.pulled, pushing=self.pushing)


def main():
    settings = json.loads(sys.argv[1])
    host = (ServerHost if settings["role"] == "server" else WorkerHost)(settings)
    host.run()


if __name__ == "__main__":
    main()
