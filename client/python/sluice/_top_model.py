"""What `top` shows, worked out from two scrapes of a page. Pure: no network, no terminal.

An appliance's page tells of jobs, ports and drops, a worker's of its own jobs. A rate is the
difference of a counter over the time between the scrapes; None when the counter is new or has
started again. Names of the metrics: dataplane/ops/README.md.
"""

import statistics
from collections import defaultdict
from typing import NamedTuple, Optional

from sluice.bcube import Leg as LegName

_PINGED_AFTER_S = 1.0  # of silence, a member is pinged
_WAITS_S = 1.0  # so long that something is wrong


class Rank(NamedTuple):
    rank: int
    gradient_s: Optional[float]  # D_i, the time that its newest gradient took
    behind_s: Optional[float]    # how much later than the middle of the ranks
    steps_back: Optional[int]    # steps that are closed and that it has not finished
    lag_s: Optional[float]       # p50 behind the first finisher
    included: Optional[float]    # share of the chunks that it has a part in
    late_rate: Optional[float]
    requeued_rate: Optional[float]
    late: float
    requeued: float
    silent_s: float
    missing: bool
    suspended: Optional[float] = None  # of a store's worker: share of the time that it waits
    oldest_request: Optional[int] = None  # likewise: iterations behind, of what it has yet to send

    @property
    def silent(self):
        return self.silent_s > _PINGED_AFTER_S


class Store(NamedTuple):
    least: Optional[int]  # clocks of its members
    greatest: Optional[int]
    parked: int  # pulls of a block that wait for pushes of others
    layers: list  # (layer, of these), the most first
    oldest_s: float
    wait_s: Optional[float]  # p50 of those that have waited
    staleness: Optional[tuple]  # p50, p99: iterations at read


class Job(NamedTuple):
    name: str
    state: str  # forming, running, ended
    members: int
    world_size: int
    absent: list  # ranks that have not joined, or are gone or finished
    step: int
    step_rate: Optional[float]
    step_s: Optional[float]  # p50
    k: Optional[int]
    policy: str
    late: str
    noise_scale: Optional[float]  # None: not known
    signs_flipped: Optional[float]
    ranks: list  # the latest first
    store: Optional[Store] = None  # of a parameter store

    @property
    def missing(self):
        return sorted(rank.rank for rank in self.ranks if rank.missing)


class Leg(NamedTuple):
    """A job of a BCube's: what one thread adds up at one stage, or hands back."""
    thread: int
    stage: int
    way: str  # up, turn, down
    job: Job

    @property
    def order(self):
        """As a gradient passes them."""
        return self.thread, self.way == "down", -self.stage if self.way == "down" else self.stage


class Cube(NamedTuple):
    """A BCube's job, as far as it passes this appliance; its ranks are places at the switch."""
    name: str
    levels: Optional[int]  # None: no leg tells
    legs: list
    meeting: Job
    spare: Optional[Job]  # where this switch stands in for another one of its level
    stands_in_for: Optional[int]  # that one

    @property
    def level(self):
        return self.levels and (self.legs[0].thread + self.legs[0].stage) % self.levels


class Port(NamedTuple):
    name: str
    up: bool
    rx_bits: Optional[float]
    tx_bits: Optional[float]
    rx_packets: Optional[float]
    tx_packets: Optional[float]
    queue_packets: float
    drop_rate: Optional[float]


class Drop(NamedTuple):
    where: str
    reason: str
    count: float
    rate: Optional[float]


class Traffic(NamedTuple):
    """A worker's; over a BCube that of a thread at a level."""
    thread: int
    level: int
    sent_bits: Optional[float]  # a second, as below
    received_bits: Optional[float]
    sent_bytes: float
    again: float  # packets
    again_rate: Optional[float]
    detoured: int  # lanes


class Worker(NamedTuple):
    """One job of a worker."""
    job: str
    rank: int
    world_size: int
    running: bool
    step: int
    step_rate: Optional[float]
    whole: Traffic  # without thread and level
    parts: list
    stalled_s: float
    missing: list  # ranks that it waits for

    @property
    def waits(self):
        return self.running and self.stalled_s >= _WAITS_S


class View(NamedTuple):
    jobs: list
    cubes: list  # of what else would be jobs
    ports: list
    drops: list  # those that are not zero
    busy: list  # (lcore, share)
    buffers: Optional[tuple]  # in use, capacity
    workers: Optional[list]  # None: the page is an appliance's
    span_s: float


class Page(NamedTuple):
    """An appliance, or a worker."""
    name: str
    view: Optional[View]  # None: it has not answered yet
    problem: str  # why it does not answer now; empty: it does
    age_s: float  # of the view, or how long it has been asked


def _included(span, name):
    """Share of the chunks that each rank has a part in since the scrape before, by rank label.

    The chunks are those of the steps that closed between the scrapes, give or take the open one: a
    scrape falls somewhere within a step, so the rank that had a part in most of them tells how many
    there were, within one step. All chunks of the job when no step has closed between the scrapes.
    """
    chunks = span.value("sluice_job_chunks", 0, job=name)
    counts, old_counts = (
        {rank: count for (job, rank), count in
         scrape.rows("sluice_job_included_chunks_total", "job", "rank").items() if job == name}
        for scrape in (span.now, span.before))
    step, old_step = (scrape.value("sluice_job_step", 0, job=name)
                      for scrape in (span.now, span.before))
    steps = step - old_step
    if steps <= 0 or any(counts[rank] < old for rank, old in old_counts.items() if rank in counts):
        old_counts, steps = {}, step - 1
    counts = {rank: count - old_counts.get(rank, 0) for rank, count in counts.items()}
    most = max(counts.values(), default=0)
    total = min(max(most, (steps - 1) * chunks), (steps + 1) * chunks)
    if total <= 0:
        return {}
    return {rank: min(1.0, count / total) for rank, count in counts.items()}


def _store(span, name):
    oldest_s = span.value("sluice_job_oldest_pull_seconds", job=name)
    if oldest_s is None:
        return None
    staleness = [span.recent("sluice_job_staleness_iterations", share, whole=True, job=name)
                 for share in (0.5, 0.99)]

    layers = [(int(layer), int(count)) for (job, layer), count in
              span.rows("sluice_job_parked_pulls", "job", "layer").items() if job == name and count]
    clocks = (span.value(metric, job=name)
              for metric in ("sluice_job_least_clock", "sluice_job_greatest_clock"))
    return Store(
        *(None if clock is None else int(clock) for clock in clocks),
        parked=sum(count for _, count in layers),
        layers=sorted(layers, key=lambda layer: (-layer[1], layer[0])), oldest_s=oldest_s,
        wait_s=span.recent("sluice_job_pull_wait_seconds", 0.5, job=name),
        staleness=None if staleness[0] is None else tuple(staleness))


def _ranks(span, name):
    keys = [key for key in span.rows("sluice_job_member_silent_seconds", "job", "rank")
            if key[0] == name]
    durations = span.rows("sluice_job_gradient_seconds", "job", "rank")
    known = [durations[key] for key in keys if key in durations]
    middle = statistics.median(known) if known else None
    open_step = span.value("sluice_job_step", 0, job=name)
    steps = span.rows("sluice_job_gradient_step", "job", "rank")
    greatest = span.value("sluice_job_greatest_clock", job=name)
    if greatest is not None:  # a store's worker is at the iteration after its clock
        open_step = int(greatest) + 1
        steps = span.rows("sluice_job_clock", "job", "rank")
    included = _included(span, name)
    found = []
    for key in keys:
        of = {"job": name, "rank": key[1]}
        duration = durations.get(key)
        lag = span.recent("sluice_job_arrival_lag_seconds", 0.5, **of)
        found.append(Rank(
            rank=int(key[1]), gradient_s=duration,
            behind_s=lag if duration is None else max(0.0, duration - middle),
            steps_back=int(max(0, open_step - 1 - steps[key])) if key in steps else None,
            lag_s=lag,
            included=included.get(key[1]),
            late_rate=span.rate("sluice_job_late_chunks_total", **of),
            requeued_rate=span.rate("sluice_job_requeued_chunks_total", **of),
            late=span.value("sluice_job_late_chunks_total", 0, **of),
            requeued=span.value("sluice_job_requeued_chunks_total", 0, **of),
            silent_s=span.value("sluice_job_member_silent_seconds", **of),
            missing=span.value("sluice_job_missing", **of) == 1,
            suspended=span.rate("sluice_job_suspended_seconds_total", **of),
            oldest_request=span.value("sluice_job_oldest_request_iterations", **of)))
    return sorted(found, key=lambda rank: (
        not rank.missing, not rank.silent, -(rank.steps_back or 0), -(rank.behind_s or 0),
        rank.rank))


def _job(span, name):
    def value(metric, default=None):
        return span.value(f"sluice_job_{metric}", default, job=name)

    step, world_size, k = int(value("step", 0)), int(value("world_size", 0)), value("k")
    policy = next((key[1:] for key in span.rows("sluice_job_policy_info", "job", "policy", "late")
                   if key[0] == name), ("", ""))
    ranks = _ranks(span, name)
    present = {rank.rank for rank in ranks}
    return Job(
        name=name,
        state="running" if value("running") == 1 else "forming" if step == 0 else "ended",
        members=int(value("members", 0)), world_size=world_size,
        absent=[rank for rank in range(world_size) if rank not in present], step=step,
        step_rate=span.rate("sluice_job_step", job=name),
        step_s=span.recent("sluice_job_step_duration_seconds", 0.5, job=name),
        k=int(k) if k else None, policy=policy[0], late=policy[1],
        noise_scale=value("noise_scale") if value("noise_scale_valid") == 1 else None,
        signs_flipped=value("signs_flipped_ratio"), ranks=ranks, store=_store(span, name))


def _cubes(jobs):
    """(the BCubes among them, the others)."""
    named = defaultdict(list)
    for job in jobs:
        leg = LegName.of(job.name)
        if leg is not None:
            named[leg.job].append((leg, job))
    taken, cubes = set(), []
    for name, found in sorted(named.items()):
        others = {leg.role: (leg.switch, job) for leg, job in found if leg.thread is None}
        _, meeting = others.get("meeting", (None, None))
        legs = sorted((Leg(leg.thread, leg.stage, leg.role, job) for leg, job in found
                       if leg.thread is not None and (meeting or job.state == "ended")),
                      key=lambda leg: leg.order)  # one that has ended outlives the meeting
        if not legs:
            continue
        # A thread turns at its last stage, and at each switch one thread does.
        levels = next((leg.stage + 1 for leg in legs if leg.way == "turn"), None)
        cubes.append(Cube(name, levels, legs, meeting or legs[0].job,
                          others.get("spare", (None, None))[1],
                          next((switch for switch, _ in others.values() if switch is not None),
                               None)))
        taken |= {leg.job.name for leg in legs} | {job.name for _, job in others.values()}
    return cubes, [job for job in jobs if job.name not in taken]


def _ports(span):
    drops = defaultdict(float)
    for scrape, sign in ((span.now, 1), (span.before, -1)):
        for (port, _), value in scrape.rows(
                "sluice_port_dropped_packets_total", "port", "reason").items():
            drops[port] += sign * value
    return [Port(
        name=name, up=span.value("sluice_port_link_up", 0, port=name) == 1,
        rx_bits=span.rate("sluice_port_rx_bytes_total", 8, port=name),
        tx_bits=span.rate("sluice_port_tx_bytes_total", 8, port=name),
        rx_packets=span.rate("sluice_port_rx_packets_total", port=name),
        tx_packets=span.rate("sluice_port_tx_packets_total", port=name),
        queue_packets=span.value("sluice_port_queue_packets", 0, port=name),
        drop_rate=span.per_second(drops[name], 0))
        for (name,) in span.rows("sluice_port_rx_packets_total", "port")]


def _drops(span):
    """Packets that were of no use, by place and reason; the most frequent now first."""
    found = []

    def add(metric, keys, described):
        old = span.before.rows(metric, *keys)
        for key, value in span.rows(metric, *keys).items():
            words = described(*key)
            if value and words:
                found.append(Drop(*words, value, span.per_second(value, old.get(key))))

    for metric, where in (("sluice_packets_total", "appliance"),
                          ("sluice_own_dropped_packets_total", "sent by it")):
        add(metric, ("reason", "use"),
            lambda reason, use, where=where: use != "useful" and (where, reason))
    add("sluice_port_dropped_packets_total", ("port", "reason"),
        lambda port, reason: (f"port {port}", reason))
    add("sluice_port_rx_missed_packets_total", ("port",),
        lambda port: (f"port {port}", "not fetched in time"))
    return sorted(found, key=lambda drop: (-(drop.rate or 0), -drop.count))


def _traffic(span, area, **labels):
    def metric(name):
        return f"sluice_worker_{area}{name}"

    return Traffic(int(labels.get("thread", 0)), int(labels.get("level", 0)),
                   span.rate(metric("bytes_sent_total"), 8, **labels),
                   span.rate(metric("bytes_received_total"), 8, **labels),
                   span.value(metric("bytes_sent_total"), 0, **labels),
                   span.value(metric("retransmissions_total"), 0, **labels),
                   span.rate(metric("retransmissions_total"), **labels),
                   int(span.value(metric("detoured_lanes"), 0, **labels)))


def _workers(span):
    places = span.rows("sluice_worker_part_bytes_sent_total", "job", "rank", "thread", "level")
    waited_for = span.rows("sluice_worker_missing", "job", "rank", "missing")
    for job, rank in sorted(span.rows("sluice_worker_running", "job", "rank")):
        def value(name, of={"job": job, "rank": rank}):
            return span.value(f"sluice_worker_{name}", 0, **of)

        yield Worker(
            job, int(rank), int(value("world_size")), value("running") == 1,
            int(value("steps_done_total")),
            span.rate("sluice_worker_steps_done_total", job=job, rank=rank),
            _traffic(span, "", job=job, rank=rank),
            sorted(_traffic(span, "part_", job=job, rank=rank, thread=thread, level=level)
                   for *key, thread, level in places if key == [job, rank]),
            value("stalled_seconds"),
            sorted(int(missing) for *key, missing in waited_for if key == [job, rank]))


def view(span):
    """What to show of a page after two scrapes of it, which may be one."""
    now = span.now
    capacity = now.value("sluice_buffers_capacity_packets")
    cubes, jobs = _cubes([_job(span, name)
                          for (name,) in sorted(now.rows("sluice_job_members", "job"))])
    return View(
        jobs=jobs, cubes=cubes, ports=_ports(span), drops=_drops(span),
        busy=sorted((int(lcore), share) for (lcore,), share in
                    now.rows("sluice_lcore_busy_ratio", "lcore").items()),
        buffers=capacity and (now.value("sluice_buffers_in_use_packets", 0), capacity),
        workers=list(_workers(span)) if now.is_workers else None, span_s=span.seconds)
