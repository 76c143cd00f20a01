"""What `top` shows, worked out from two scrapes of /metrics. Pure: no network, no terminal.

A rate is the difference of a counter over the time between the scrapes; None when the counter is
new or has started again. Names of the metrics: dataplane/ops/README.md.
"""

import math
import re
import statistics
from collections import defaultdict
from typing import NamedTuple, Optional

_PINGED_AFTER_S = 1.0  # of silence, a member is pinged
_LANE = re.compile(r"(.+)\.t(\d+)\.s(\d+)\.(up|turn|down)")  # client/bcube/relay_lanes.cc
_SPARE = re.compile(r"\.(spare|survey|vote)\.(\d+)")


class Scrape:
    """One answer of the endpoint: samples by name, and when they came.

    `families`: of prometheus_client's parser. A histogram appears as its parts: NAME_bucket,
    NAME_sum, NAME_count.
    """

    def __init__(self, families, time_s):
        self.samples = defaultdict(list)
        for family in families:
            for sample in family.samples:
                self.samples[sample.name].append(sample)
        self.time_s = time_s
        self._grouped = {}

    def rows(self, name, *keys):
        """A dict from the values of the labels `keys` (a tuple) to the value."""
        index = (name, keys)
        if index not in self._grouped:
            self._grouped[index] = {tuple(sample.labels.get(key, "") for key in keys): sample.value
                                    for sample in self.samples.get(name, ())}
        return self._grouped[index]

    def value(self, name, default=None, **labels):
        return self.rows(name, *labels).get(tuple(labels.values()), default)

    def buckets(self, name, *keys):
        """A dict from label values to {upper bound: count} of a histogram."""
        index = (name, "buckets", keys)
        if index not in self._grouped:
            grouped = defaultdict(dict)
            for sample in self.samples.get(name + "_bucket", ()):
                key = tuple(sample.labels.get(label, "") for label in keys)
                grouped[key][float(sample.labels["le"])] = sample.value
            self._grouped[index] = grouped
        return self._grouped[index]


def quantile(buckets, share):
    """The value below which `share` of a histogram's observations lie; None without any.

    `buckets` maps each upper bound, infinity among them, to the count up to it. Linear within a
    bucket; the lower bound of the last one, which has no upper bound. As histogram_quantile() of
    Prometheus.
    """
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    wanted = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted and buckets[bound] > below:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (wanted - below) / (buckets[bound] - below)
        low, below = bound, buckets[bound]
    return low


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


class Lane(NamedTuple):
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
    levels: Optional[int]  # None: no lane tells
    lanes: list
    meeting: Job
    spare: Optional[Job]  # where this switch stands in for another one of its level
    stands_in_for: Optional[int]  # that one

    @property
    def level(self):
        return self.levels and (self.lanes[0].thread + self.lanes[0].stage) % self.levels


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


class View(NamedTuple):
    jobs: list
    cubes: list  # of what else would be jobs
    ports: list
    drops: list  # those that are not zero
    busy: list  # (lcore, share)
    buffers: Optional[tuple]  # in use, capacity
    span_s: float


def per_second(new, old, span_s):
    if new is None or old is None or new < old or span_s <= 0:
        return None
    return (new - old) / span_s


def _recent(new, old):
    """A histogram of what came between two scrapes, or of all when nothing did."""
    difference = {bound: count - old.get(bound, 0) for bound, count in new.items()}
    recent = any(difference.values()) and min(difference.values()) >= 0
    return difference if recent else new


def _included(now, before, name):
    """Share of the chunks that each rank has a part in since the scrape before, by rank label.

    The chunks are those of the steps that closed between the scrapes, give or take the open one: a
    scrape falls somewhere within a step, so the rank that had a part in most of them tells how many
    there were, within one step. All chunks of the job when no step has closed between the scrapes.
    """
    chunks = now.value("sluice_job_chunks", 0, job=name)
    counts, old_counts = (
        {rank: count for (job, rank), count in
         scrape.rows("sluice_job_included_chunks_total", "job", "rank").items() if job == name}
        for scrape in (now, before))
    steps = now.value("sluice_job_step", 0, job=name) - before.value("sluice_job_step", 0, job=name)
    if steps <= 0 or any(counts[rank] < old for rank, old in old_counts.items() if rank in counts):
        old_counts = {}
        steps = now.value("sluice_job_step", 0, job=name) - 1
    counts = {rank: count - old_counts.get(rank, 0) for rank, count in counts.items()}
    most = max(counts.values(), default=0)
    total = min(max(most, (steps - 1) * chunks), (steps + 1) * chunks)
    if total <= 0:
        return {}
    return {rank: min(1.0, count / total) for rank, count in counts.items()}


def _store(now, before, name):
    oldest_s = now.value("sluice_job_oldest_pull_seconds", job=name)
    if oldest_s is None:
        return None

    def recent(metric):
        return _recent(*(scrape.buckets(metric, "job").get((name,), {})
                         for scrape in (now, before)))

    def highest(share):
        """The bound below which a count lies: counts are whole."""
        found = quantile(staleness, share)
        return found and min((bound for bound in staleness if bound >= found))

    layers = [(int(layer), int(count)) for (job, layer), count in
              now.rows("sluice_job_parked_pulls", "job", "layer").items() if job == name and count]
    staleness = recent("sluice_job_staleness_iterations")
    clocks = (now.value(metric, job=name)
              for metric in ("sluice_job_least_clock", "sluice_job_greatest_clock"))
    return Store(
        *(None if clock is None else int(clock) for clock in clocks),
        parked=sum(count for _, count in layers),
        layers=sorted(layers, key=lambda layer: (-layer[1], layer[0])), oldest_s=oldest_s,
        wait_s=quantile(recent("sluice_job_pull_wait_seconds"), 0.5),
        staleness=None if quantile(staleness, 0.5) is None else (highest(0.5), highest(0.99)))


def _ranks(now, before, name, span_s):
    keys = [key for key in now.rows("sluice_job_member_silent_seconds", "job", "rank")
            if key[0] == name]
    durations = now.rows("sluice_job_gradient_seconds", "job", "rank")
    known = [durations[key] for key in keys if key in durations]
    middle = statistics.median(known) if known else None
    lags = now.buckets("sluice_job_arrival_lag_seconds", "job", "rank")
    old_lags = before.buckets("sluice_job_arrival_lag_seconds", "job", "rank")
    open_step = now.value("sluice_job_step", 0, job=name)
    steps = now.rows("sluice_job_gradient_step", "job", "rank")
    greatest = now.value("sluice_job_greatest_clock", job=name)
    if greatest is not None:  # a store's worker is at the iteration after its clock
        open_step = int(greatest) + 1
        steps = now.rows("sluice_job_clock", "job", "rank")
    included = _included(now, before, name)
    found = []
    for key in keys:
        def total(metric, scrape=now, key=key):
            return scrape.rows(metric, "job", "rank").get(key)

        def rate(metric):
            return per_second(total(metric), total(metric, before), span_s)

        duration = durations.get(key)
        lag = quantile(_recent(lags.get(key, {}), old_lags.get(key, {})), 0.5)
        found.append(Rank(
            rank=int(key[1]), gradient_s=duration,
            behind_s=lag if duration is None else max(0.0, duration - middle),
            steps_back=int(max(0, open_step - 1 - steps[key])) if key in steps else None,
            lag_s=lag,
            included=included.get(key[1]),
            late_rate=rate("sluice_job_late_chunks_total"),
            requeued_rate=rate("sluice_job_requeued_chunks_total"),
            late=total("sluice_job_late_chunks_total") or 0,
            requeued=total("sluice_job_requeued_chunks_total") or 0,
            silent_s=total("sluice_job_member_silent_seconds"),
            missing=total("sluice_job_missing") == 1,
            suspended=rate("sluice_job_suspended_seconds_total"),
            oldest_request=total("sluice_job_oldest_request_iterations")))
    return sorted(found, key=lambda rank: (
        not rank.missing, not rank.silent, -(rank.steps_back or 0), -(rank.behind_s or 0),
        rank.rank))


def _job(now, before, name, span_s):
    members = int(now.value("sluice_job_members", 0, job=name))
    world_size = int(now.value("sluice_job_world_size", 0, job=name))
    step = int(now.value("sluice_job_step", 0, job=name))
    if now.value("sluice_job_running", job=name) == 1:
        state = "running"
    else:
        state = "forming" if step == 0 else "ended"
    policy = next((key[1:] for key in now.rows("sluice_job_policy_info", "job", "policy", "late")
                   if key[0] == name), ("", ""))
    ranks = _ranks(now, before, name, span_s)
    present = {rank.rank for rank in ranks}
    noise_scale = now.value("sluice_job_noise_scale", job=name)
    if now.value("sluice_job_noise_scale_valid", job=name) != 1:
        noise_scale = None
    k = now.value("sluice_job_k", job=name)
    durations = [scrape.buckets("sluice_job_step_duration_seconds", "job").get((name,), {})
                 for scrape in (now, before)]
    return Job(
        name=name, state=state, members=members, world_size=world_size,
        absent=[rank for rank in range(world_size) if rank not in present], step=step,
        step_rate=per_second(step, before.value("sluice_job_step", job=name), span_s),
        step_s=quantile(_recent(*durations), 0.5), k=int(k) if k else None, policy=policy[0],
        late=policy[1], noise_scale=noise_scale,
        signs_flipped=now.value("sluice_job_signs_flipped_ratio", job=name), ranks=ranks,
        store=_store(now, before, name))


def _cubes(jobs):
    """(the BCubes among them, the others)."""
    by_name = {job.name: job for job in jobs}
    lanes = defaultdict(list)
    for job in jobs:
        found = _LANE.fullmatch(job.name)
        if found and (found[1] + ".meeting" in by_name or job.state == "ended"):  # outlives it
            lanes[found[1]].append(Lane(int(found[2]), int(found[3]), found[4], job))
    taken, cubes = set(), []
    for name, found in sorted(lanes.items()):
        # A thread turns at its last stage, and at each switch one thread does.
        levels = next((lane.stage + 1 for lane in found if lane.way == "turn"), None)
        spares = {match[1]: (int(match[2]), job) for job in jobs
                  if (match := _SPARE.fullmatch(job.name.removeprefix(name)))}
        cubes.append(Cube(name, levels, sorted(found, key=lambda lane: lane.order),
                          by_name.get(name + ".meeting", found[0].job),
                          spares.get("spare", (None, None))[1],
                          next((switch for switch, _ in spares.values()), None)))
        taken |= {lane.job.name for lane in found} | {name + ".meeting"}
        taken |= {f"{name}.{what}.{switch}" for what, (switch, _) in spares.items()}
    return cubes, [job for job in jobs if job.name not in taken]


def _ports(now, before, span_s):
    drops = defaultdict(float)
    for scrape, sign in ((now, 1), (before, -1)):
        for (port, _), value in scrape.rows(
                "sluice_port_dropped_packets_total", "port", "reason").items():
            drops[port] += sign * value

    def rate(metric, name, factor=1):
        found = per_second(now.value(metric, port=name), before.value(metric, port=name), span_s)
        return None if found is None else found * factor

    return [Port(
        name=name, up=now.value("sluice_port_link_up", 0, port=name) == 1,
        rx_bits=rate("sluice_port_rx_bytes_total", name, 8),
        tx_bits=rate("sluice_port_tx_bytes_total", name, 8),
        rx_packets=rate("sluice_port_rx_packets_total", name),
        tx_packets=rate("sluice_port_tx_packets_total", name),
        queue_packets=now.value("sluice_port_queue_packets", 0, port=name),
        drop_rate=per_second(drops[name], 0, span_s))
        for (name,) in now.rows("sluice_port_rx_packets_total", "port")]


def _drops(now, before, span_s):
    """Packets that were of no use, by place and reason; the most frequent now first."""
    found = []

    def add(where, reason, value, old):
        if value:
            found.append(Drop(where, reason, value, per_second(value, old, span_s)))

    for metric, where in (("sluice_packets_total", "appliance"),
                          ("sluice_own_dropped_packets_total", "sent by it")):
        old = before.rows(metric, "reason", "use")
        for key, value in now.rows(metric, "reason", "use").items():
            if key[1] != "useful":
                add(where, key[0], value, old.get(key))
    old = before.rows("sluice_port_dropped_packets_total", "port", "reason")
    for key, value in now.rows("sluice_port_dropped_packets_total", "port", "reason").items():
        add(f"port {key[0]}", key[1], value, old.get(key))
    old = before.rows("sluice_port_rx_missed_packets_total", "port")
    for key, value in now.rows("sluice_port_rx_missed_packets_total", "port").items():
        add(f"port {key[0]}", "not fetched in time", value, old.get(key))
    return sorted(found, key=lambda drop: (-(drop.rate or 0), -drop.count))


def view(now, before):
    """What to show at scrape `now`; `before` is an earlier one, or the same when there is none."""
    span_s = now.time_s - before.time_s
    capacity = now.value("sluice_buffers_capacity_packets")
    cubes, jobs = _cubes([_job(now, before, name, span_s)
                          for (name,) in sorted(now.rows("sluice_job_members", "job"))])
    return View(
        jobs=jobs, cubes=cubes,
        ports=_ports(now, before, span_s), drops=_drops(now, before, span_s),
        busy=sorted((int(lcore), share) for (lcore,), share in
                    now.rows("sluice_lcore_busy_ratio", "lcore").items()),
        buffers=capacity and (now.value("sluice_buffers_in_use_packets", 0), capacity),
        span_s=span_s)
