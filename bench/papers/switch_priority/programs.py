"""What the parameter server and the workers do under each policy: two pure state machines.

The fluid model and the replay over TCP drive the same machines, so they differ in nothing but the
network. Time is an argument; layers and workers are indices; what is returned is to be transferred.

A step is one round of synchronous SGD in all policies: every worker computes on parameters that
contain the gradients of all workers of the step before. The policies are:

  fifo              the published baseline. The server sends the whole model to every worker once
                    all gradients of the step before are there (the barrier); a worker computes when
                    it has the whole model, and sends its gradients when it has computed all.
                    One class for all traffic.
  worker            the same programs; the traffic of one worker, in both directions, is more urgent
                    than that of the next. The order rotates by one each step.
  worker_rules      fifo, whose hosts mark nothing: rules in the switches give a worker's traffic
                    its urgency, by the worker's address. The order never changes.
  layer             barrier as before, but a worker computes a layer's forward pass when it has the
                    layer and the layers before it, and sends a layer's gradient when that is
                    computed. Early layers are more urgent, in both directions.
  layer_no_barrier  the same workers; the server sends a layer to all workers as soon as it has the
                    layer's gradients of all workers. No other layer is waited for.
  fifo_no_barrier   the control of that: the same programs, one class.
  multicast_pull    fifo, but the server sends each byte once and the switch copies it.
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    name: str
    by_rank: bool = False    # a worker's traffic has the urgency of the worker's turn
    by_address: bool = False  # a worker's traffic has the urgency that the switches' rules say
    by_layer: bool = False   # a layer's traffic has the urgency of the layer's band
    overlap: bool = False    # workers compute and send layer by layer
    barrier: bool = True     # the server waits for all layers before it sends any
    multicast: bool = False  # the server sends once for all workers


POLICIES = {policy.name: policy for policy in (
    Policy("fifo"),
    Policy("worker", by_rank=True),
    Policy("worker_rules", by_address=True),
    Policy("layer", by_layer=True, overlap=True),
    Policy("layer_no_barrier", by_layer=True, overlap=True, barrier=False),
    Policy("fifo_no_barrier", overlap=True, barrier=False),
    Policy("multicast_pull", multicast=True),
)}


def turn(worker, step, workers):
    """A worker's place in the order of a step: 0 is served first."""
    return (worker + step) % workers


class Server:
    """Counts gradients and says which layers to send, in order. Step 0 needs no gradients."""

    def __init__(self, policy, layer_count, workers, steps):
        self._policy, self._workers, self._steps = policy, workers, steps
        self._arrived = [0] * layer_count   # gradients of the layer's current step
        self._updates = [0] * layer_count   # steps of the layer that are complete
        self._behind = layer_count          # layers that the oldest open step still waits for
        self.finished_steps = 0

    def start(self):
        return list(range(len(self._arrived)))

    def gradient(self, layer):
        """A worker's gradient of a layer is complete; returns the layers to send to all workers."""
        self._arrived[layer] += 1
        if self._arrived[layer] < self._workers:
            return []
        self._arrived[layer] = 0
        self._updates[layer] += 1
        if self._updates[layer] == self.finished_steps + 1:
            self._behind -= 1
        finished = self._behind == 0
        if finished:
            self.finished_steps += 1
            self._behind = sum(count == self.finished_steps for count in self._updates)
        if self._policy.barrier:
            return self.start() if finished and self.finished_steps < self._steps else []
        return [layer] if self._updates[layer] < self._steps else []

    @property
    def done(self):
        return self.finished_steps == self._steps


class Worker:
    """Computes forward in order, backward in reverse; one task at a time, each as long as given."""

    def __init__(self, policy, forward_s, backward_s):
        self._overlap = policy.overlap
        layers = range(len(forward_s))
        self._tasks = ([(layer, forward_s[layer], False) for layer in layers]
                       + [(layer, backward_s[layer], True) for layer in reversed(layers)])
        self._received = [0] * len(forward_s)   # times that the layer's parameters came
        self._received_at = [0.0] * len(forward_s)
        self._position = 0
        self._free_at = 0.0       # when the last task ended
        self._busy_until = None   # of the task under way
        self._ready = []          # gradients that wait for the end of the pass
        self.step = 0             # steps whose computation is complete

    def parameters(self, layer, now):
        self._received[layer] += 1
        self._received_at[layer] = now

    @property
    def wake_at(self):
        """When advance() has something to do even if nothing arrives; None: never."""
        return self._busy_until

    def advance(self, now):
        """Computes up to `now`; returns the layers whose gradients may be sent, in order."""
        sends = []
        while True:
            if self._busy_until is not None:
                if self._busy_until > now:
                    return sends
                sends += self._complete()
            started_at = self._may_start_at()
            if started_at is None:
                return sends
            self._busy_until = max(self._free_at, started_at) + self._tasks[self._position][1]

    def _complete(self):
        layer, _, backward = self._tasks[self._position]
        self._free_at, self._busy_until = self._busy_until, None
        self._position += 1
        ended = self._position == len(self._tasks)
        if ended:
            self._position = 0
            self.step += 1
        if not backward:
            return []
        self._ready.append(layer)
        if not self._overlap and not ended:
            return []
        sends, self._ready = self._ready, []
        return sends

    def _may_start_at(self):
        """When the next task's parameters had come; None: they have not."""
        layer, _, backward = self._tasks[self._position]
        if backward:
            return self._free_at
        needed = [layer] if self._overlap else range(len(self._received))
        if any(self._received[index] <= self.step for index in needed):
            return None
        return max(self._received_at[index] for index in needed)
