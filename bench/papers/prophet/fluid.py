"""A fluid model: the theory's prediction, without packets, and Prophet's rule as published.

Push and pull have a direction of the link each, and results stream back: the pull costs only the
completion latency, and a layer's forward pass waits for its own tensors. Assumptions where the
publications leave room:

  - stop-and-wait sends units, each of which occupies the link for size / rate + latency;
  - Prophet's blocks are made of pieces of PIECE_BYTES, with E(i) = size / rate + latency; it leaves
    the link idle when nothing fits, and when gradient 0 has come it sends without stopping. The
    window of 8 pieces never closes: that is 32 MB, and no link here holds more than 1.25 MB.
"""
import heapq
import math

PIECE_BYTES = 4_000_000


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


def iteration_s(policy, tensors, rate_gbps, latency_ms):
    """Start of one backward pass to the next, in seconds. `policy`: a settings.Policy."""
    rate, latency_s = rate_gbps * 1e9 / 8, latency_ms / 1e3
    link = _Link(tensors, by_age=policy.schedule == "fifo")
    if policy.schedule == "fifo":
        _in_units(link, rate, latency_s, math.inf, 0.0)
    elif policy.schedule == "strict":
        _strict(link, rate, latency_s)
    elif policy.schedule == "prophet":
        _prophet(link, rate, latency_s, PIECE_BYTES)
    else:
        assert policy.credit == 1, "credit has no fluid model here"
        _in_units(link, rate, latency_s, policy.unit, latency_s)
    at_s = max(tensor.ready_s for tensor in tensors)
    for tensor, done_s in zip(tensors, link.done_s):
        at_s = max(at_s, done_s) + tensor.forward_s
    return at_s
