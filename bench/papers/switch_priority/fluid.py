"""The prediction: the same programs over links that carry fluid. Pure and exact.

The shared link is the only one that limits: the workers' links are as fast and the server's ten
times faster. So each direction is one resource; the most urgent class that waits has all of it but
a guaranteed share of the least urgent one, and the connections of one class share it equally. No
latency, no windows, no packets.
"""
from collections import deque

from . import models
from .programs import Server, Worker, turn

STEPS = 9        # simulated
STEADY_STEPS = 6  # the last of them count: twice a whole rotation of the workers


class _Connection:
    """Layers on their way to or from one worker, sent one after the other."""

    def __init__(self, egress_class, worker):
        self.egress_class, self.worker = egress_class, worker
        self.queue = deque()  # [layer, seconds of the whole link that are left]


class _Direction:
    """One resource and its connections; the least urgent class that waits has its own share."""

    def __init__(self, least_urgent_share):
        self.connections = []
        self._least_urgent_share = least_urgent_share

    def _rates(self):
        """(connection, its part of the link) of those that send now."""
        waiting = [connection for connection in self.connections if connection.queue]
        if not waiting:
            return []
        classes = {connection.egress_class for connection in waiting}
        shares = {min(classes): 1.0}
        if len(classes) > 1 and self._least_urgent_share:
            shares = {min(classes): 1 - self._least_urgent_share,
                      max(classes): self._least_urgent_share}
        counts = {each: sum(connection.egress_class == each for connection in waiting)
                  for each in shares}
        return [(connection, shares[connection.egress_class] / counts[connection.egress_class])
                for connection in waiting if connection.egress_class in shares]

    def next_s(self):
        """Until a layer is through; None when nothing is on its way."""
        return min((connection.queue[0][1] / rate for connection, rate in self._rates()),
                   default=None)

    def run(self, elapsed_s):
        """Sends for so long; yields what is through as (worker, layer)."""
        for connection, rate in self._rates():
            connection.queue[0][1] -= elapsed_s * rate
            if connection.queue[0][1] <= 1e-12:
                yield connection.worker, connection.queue.popleft()[0]


class Fluid:
    """One unscaled model under one policy. `headers`: wire bytes for a byte of payload."""

    def __init__(self, model, policy, band_count, headers=1.0, least_urgent_share=0.0):
        self.policy, self.workers = policy, models.WORKERS
        self._seconds = [layer.bytes * headers * 8 / models.LINK_BPS for layer in model.layers]
        self._bands = models.bands(model.layers, band_count)
        self._server = Server(policy, len(model.layers), self.workers, STEPS)
        self._machines = [Worker(policy, [layer.forward_s for layer in model.layers],
                                 [layer.backward_s for layer in model.layers])
                          for _ in range(self.workers)]
        self._down, self._up = _Direction(least_urgent_share), _Direction(least_urgent_share)
        self._known = {}

    def _class_of(self, worker, layer, step):
        if self.policy.by_rank:
            return turn(worker, step, self.workers)
        if self.policy.by_address:
            return worker
        return self._bands[layer] if self.policy.by_layer else 0

    def _send(self, direction, worker, layer, step):
        egress_class = self._class_of(worker, layer, step)
        key = (id(direction), worker, egress_class)
        if key not in self._known:
            self._known[key] = _Connection(egress_class, worker)
            direction.connections.append(self._known[key])
        self._known[key].queue.append([layer, self._seconds[layer]])

    def _pull(self, layers):
        for layer in layers:
            receivers = [None] if self.policy.multicast else range(self.workers)
            for worker in receivers:
                self._send(self._down, worker, layer, self._server.finished_steps)

    def step_s(self):
        """Seconds of a step in the steady state."""
        now, ends = 0.0, []
        self._pull(self._server.start())
        while not self._server.done:
            waits = [direction.next_s() for direction in (self._down, self._up)]
            waits += [machine.wake_at - now for machine in self._machines
                      if machine.wake_at is not None]
            elapsed_s = max(0.0, min(wait for wait in waits if wait is not None))
            now += elapsed_s
            arrived_down = list(self._down.run(elapsed_s))
            arrived_up = list(self._up.run(elapsed_s))
            for worker, layer in arrived_down:
                receivers = range(self.workers) if worker is None else [worker]
                for receiver in receivers:
                    self._machines[receiver].parameters(layer, now)
            for _, layer in arrived_up:
                before = self._server.finished_steps
                self._pull(self._server.gradient(layer))
                ends += [now] * (self._server.finished_steps - before)
            for worker, machine in enumerate(self._machines):
                for layer in machine.advance(now):
                    self._send(self._up, worker, layer, machine.step - 1)
        return (ends[-1] - ends[-1 - STEADY_STEPS]) / STEADY_STEPS


def aggregation_s(model, streamed, headers=1.0):
    """A step whose gradients the switch sums: each link carries the model once in each direction.

    Streamed: sums come back while gradients go up. Stored: the sum goes to the server, and the
    parameters come back as one multicast afterwards.
    """
    transfers = 1 if streamed else 2
    return transfers * model.transfer_s * headers + model.compute_s
