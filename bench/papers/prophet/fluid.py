"""The fluid model behind the published figures, rebuilt: what theory predicts, without packets.

Published, for ResNet-50 at 3 Gb/s with 1 ms completion latency, ms per iteration: see PUBLISHED_MS;
neither compute time nor units came with them. A search over compute, its split, readiness and units
finds them within 0.7 % where

  - forward takes 118 ms and backward 177 ms, in proportion to the layers' MACs,
  - gradients become ready in 10 steps of equal time,
  - push and pull have a direction of the link each, and results stream back: the pull costs only
    the completion latency, and a layer's forward pass waits for its own tensors,
  - stop-and-wait sends slices of 160 kB, each of which occupies the link for size / rate + latency,
  - ByteScheduler has one unit of 2.5 MB under way at a time,
  - Prophet's blocks are made of such slices, with E(i) = size / rate + latency; it leaves the link
    idle when nothing fits; and when gradient 0 has come it sends without stopping.

Others come near (9 to 11 steps, forward of 114 to 121 ms); none does with a backward pass of twice
forward: FIFO - strict = 111 ms is at most the forward pass, and all of compute at most 298 ms.
"""
import heapq
import math

PUBLISHED_MS = {"fifo": 409, "stop-and-wait": 1055, "prophet": 349, "credit": 335, "strict": 298}
INFERRED_UNIT_BYTES = 2_500_000  # of ByteScheduler, unit and credit


class _Link:
    """What waits for the link of one iteration, by urgency or by age."""

    def __init__(self, tensors, by_age=False):
        self.left = [tensor.bytes for tensor in tensors]
        self.done_s = [math.inf] * len(tensors)
        self.waiting = []
        # The last layer first among equals: backward order.
        self.coming = sorted(range(len(tensors)), key=lambda i: (tensors[i].ready_s, -i))
        self.rank = {tensor: i for i, tensor in enumerate(self.coming)} if by_age else None
        self.ready_s = [tensor.ready_s for tensor in tensors]
        self.position = 0

    def advance(self, now_s):
        while self.position < len(self.coming) and self.next_s() <= now_s + 1e-12:
            tensor = self.coming[self.position]
            heapq.heappush(self.waiting, (self.rank[tensor] if self.rank else tensor, tensor))
            self.position += 1

    def next_s(self):
        return (self.ready_s[self.coming[self.position]] if self.position < len(self.coming)
                else math.inf)

    @property
    def over(self):
        return not self.waiting and self.position == len(self.coming)

    def send(self, size, done_s):
        """`size` bytes of the first in line."""
        tensor = self.waiting[0][1]
        self.left[tensor] -= size
        if self.left[tensor] <= 1e-6:
            self.done_s[tensor] = done_s
            heapq.heappop(self.waiting)

    def first(self):
        return self.left[self.waiting[0][1]]


def _in_units(link, rate, latency_s, unit, busy_s):
    """One unit after the other, the link taken for size / rate + busy_s."""
    now_s = 0.0
    while not link.over:
        link.advance(now_s)
        if not link.waiting:
            now_s = link.next_s()
            continue
        size = min(unit, link.first())
        sent_s = now_s + size / rate
        link.send(size, sent_s + latency_s)
        now_s = sent_s + busy_s


def _strict(link, rate, latency_s):
    now_s = 0.0
    while not link.over:
        link.advance(now_s)
        if not link.waiting:
            now_s = link.next_s()
            continue
        until_s = min(now_s + link.first() / rate, link.next_s())
        link.send((until_s - now_s) * rate, until_s + latency_s)
        now_s = until_s


def _credit(link, rate, latency_s, unit, credit):
    """A unit begins when it fits into the credit, which comes back with its completion."""
    now_s, in_flight, completions = 0.0, 0.0, []
    while not link.over:
        link.advance(now_s)
        while completions and completions[0][0] <= now_s + 1e-12:
            in_flight -= heapq.heappop(completions)[1]
        if not link.waiting:
            now_s = link.next_s()
            continue
        size = min(unit, link.first())
        if in_flight and in_flight + size > credit:
            now_s = completions[0][0]
            continue
        sent_s = now_s + size / rate
        heapq.heappush(completions, (sent_s + latency_s, size))
        in_flight += size
        link.send(size, sent_s + latency_s)
        now_s = sent_s


def _prophet(link, rate, latency_s, unit):
    now_s = 0.0
    while not link.over:
        link.advance(now_s)
        if not link.waiting:
            now_s = link.next_s()
            continue
        if link.next_s() == math.inf:  # gradient 0 has come: strict, without stopping
            size = min(unit, link.first())
            now_s += size / rate
            link.send(size, now_s + latency_s)
            continue
        now_s = _prophet_block(link, rate, latency_s, unit, now_s)


def _prophet_block(link, rate, latency_s, unit, now_s):
    """Sends one block of what is ready; the time when the link is free again."""
    window_s, used_s, wire_s = link.next_s() - now_s, 0.0, 0.0
    block, skipped = [], []
    while link.waiting:
        size = min(unit, link.first())
        cost_s = size / rate + latency_s
        if used_s + cost_s > window_s:  # a less urgent one may still fit
            skipped.append(heapq.heappop(link.waiting))
            continue
        used_s += cost_s
        wire_s += size / rate
        tensor = link.waiting[0][1]
        link.send(size, math.inf)
        if link.left[tensor] <= 1e-6:
            block.append(tensor)
    for entry in skipped:
        heapq.heappush(link.waiting, entry)
    if wire_s == 0:
        return link.next_s()
    for tensor in block:
        link.done_s[tensor] = now_s + wire_s + latency_s
    return now_s + wire_s + latency_s


def iteration_s(policy, tensors, rate_gbps, latency_ms, slice_bytes=160_000):
    """Start of one backward pass to the next, in seconds. `policy`: a settings.Policy."""
    rate, latency_s = rate_gbps * 1e9 / 8, latency_ms / 1e3
    link = _Link(tensors, by_age=policy.schedule == "fifo")
    if policy.schedule == "fifo":
        _in_units(link, rate, latency_s, math.inf, 0.0)
    elif policy.schedule == "strict":
        _strict(link, rate, latency_s)
    elif policy.schedule == "prophet":
        _prophet(link, rate, latency_s, slice_bytes)
    elif policy.credit == 1:
        _in_units(link, rate, latency_s, policy.unit, latency_s)
    else:
        _credit(link, rate, latency_s, policy.unit, policy.credit)
    at_s = max(tensor.ready_s for tensor in tensors)
    for tensor, done_s in zip(tensors, link.done_s):
        at_s = max(at_s, done_s) + tensor.forward_s
    return at_s
