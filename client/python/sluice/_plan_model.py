"""What a step's communication takes through a box, several boxes, or a ring; and in words.

Pure: the question and the measured costs in, a plan out. Every part works at once on other chunks,
so the slowest part sets the time. A worker sends each chunk once and gets its sum once, whatever
the number of workers; a box handles a contribution of every worker for each chunk; a ring sends 2
(N - 1) / N of the bytes through every link.
"""

import math
from dataclasses import dataclass

ELEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
WIRES = {**ELEM_BYTES, "int8": 1}  # how float32 may travel
_SCALE_BYTES = {"int8": 4}  # of each chunk

_CHUNK_ALIGN_BYTES, _CHUNK_BYTES_MAX = 64, 8832
_WIRE_BYTES = 24  # a frame, besides its bytes: preamble, checksum, gap
_ETHERNET_BYTES = 14
_IP_UDP_BYTES = 20 + 8
_IP_TCP_BYTES = 20 + 32
# What a worker's kernel may hold over UDP: SO_SNDBUF, which it doubles, and a train beyond.
_STANDING_QUEUE_BYTES = 2 * (128 << 10) + 65_400
_RESULT_BYTES = 16 + 70  # the longest headers: a result's, and a word for 64 workers


def result_header_bytes(workers):
    return _RESULT_BYTES + 8 * math.ceil(workers / 64)


def chunk_bytes(mtu, workers):
    """The largest chunk whose result fits the MTU."""
    room = mtu - _IP_UDP_BYTES - result_header_bytes(workers)
    return min(room // _CHUNK_ALIGN_BYTES * _CHUNK_ALIGN_BYTES, _CHUNK_BYTES_MAX)


def chunk_elems(one_chunk_bytes, travels):
    return (one_chunk_bytes - _SCALE_BYTES.get(travels, 0)) // WIRES[travels]


def box_wire_bytes(params, chunks, travels, workers):
    """What each link carries each way, all headers counted."""
    frame_bytes = (_WIRE_BYTES + _ETHERNET_BYTES + _IP_UDP_BYTES + result_header_bytes(workers) +
                   _SCALE_BYTES.get(travels, 0))
    return params * WIRES[travels] + chunks * frame_bytes


def ring_wire_bytes(total_bytes, workers, mtu):
    """The same for a ring of TCP streams."""
    payload_bytes = 2 * (workers - 1) / workers * total_bytes
    return payload_bytes * (mtu + _ETHERNET_BYTES + _WIRE_BYTES) / (mtu - _IP_TCP_BYTES)


@dataclass(frozen=True)
class Question:
    workers: int
    link_gbps: float
    cores: int
    params: int
    dtype: str = "float32"
    mtu: int = 1500
    wire: str = "float32"

    @property
    def travels(self):
        """How its elements do; those that are not float32 as they are."""
        return self.wire if self.dtype == "float32" else self.dtype

    @property
    def total_bytes(self):
        return self.params * ELEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Costs:
    """Processor time, of one core: of a box for a contribution and the result that answers it, of a
    worker for the same of its own."""

    box_ns: float
    worker_ns: float


# A job of operations at the appliance: aggregator/jobs/operations_request.cc says why so.
OPERATIONS_SHARE, OPERATIONS_MOST_MIB, GROUPS_SHARE, FIRST_SLOTS = 8, 256, 4, 256
JOB_MEMORY_MIB = 4096  # limits.job_memory_mib, by default
_BLOCK_CHUNKS, _MOST_GROUPS = 64, 256
_SLOT_STATE_BYTES = 40
_ROUND_TRIP_S = 1e-3


@dataclass(frozen=True)
class Operations:
    """What a job of operations takes of a box, and what that is good for."""

    memory_bytes: int
    first_slots: int  # of one kind of operation in one group
    kinds: int  # that can begin: four a group, up, down, both ways and small
    full_rate_slots: int  # at the links' rate over a round trip of a millisecond
    full_rate_kinds: int  # that can grow to it


def operations(question, job_memory_mib=JOB_MEMORY_MIB, reproducible=False):
    """Slots are reserved in blocks of 64 in each of the box's shards, its cores here. With
    `reproducible` a slot takes more: aggregator/operations/spec.h, pages_per_block()."""
    memory_bytes = min(job_memory_mib // OPERATIONS_SHARE, OPERATIONS_MOST_MIB) << 20
    one = chunk_bytes(question.mtu, question.workers)
    slot_bytes = (_SLOT_STATE_BYTES + 8 * math.ceil(question.workers / 64)
                  + math.ceil(one / 2 / 16) * 64)
    slot_bytes *= 1 + question.workers // 2 if reproducible else 1
    each_round = _BLOCK_CHUNKS * question.cores
    first = math.ceil(FIRST_SLOTS / each_round) * each_round
    group_bytes = 512 * (40 + 16 * math.ceil(question.workers / 64)) + (16 << 10) * question.cores
    of_groups = min(memory_bytes // GROUPS_SHARE, _MOST_GROUPS * group_bytes)
    slots = (memory_bytes - of_groups) // slot_bytes
    in_flight = 2 * question.link_gbps * 1e9 / 8 * _ROUND_TRIP_S / one
    full_rate = first * 2 ** max(0, math.ceil(math.log2(in_flight / first)))
    return Operations(memory_bytes, first, slots // first, full_rate, slots // full_rate)


# A result that a worker keeps for one that lacks it when the box is lost: client/core/sums/arena.h.
KEPT_RESULT_BYTES = 32  # beside its bytes
_MASK_WORD_BYTES = 8


def kept_bytes(question, waits_for_all=True):
    """What a worker keeps for that, over UDP and with a restart_timeout.

    With k < n each result has a mask, and so have those that come before their step.
    """
    one = chunk_bytes(question.mtu, question.workers)
    chunks = math.ceil(question.params / chunk_elems(one, question.travels))
    masks = 0 if waits_for_all else 2 * _MASK_WORD_BYTES * math.ceil(question.workers / 64)
    return chunks * (one + KEPT_RESULT_BYTES + masks)


def kept_of_store(question):
    """What a store's worker keeps for that: its newest parameters and its last push."""
    return 2 * ELEM_BYTES["float32"] * question.params


@dataclass(frozen=True)
class Plan:
    question: Question
    costs: Costs
    chunk_bytes: int
    chunk_elems: int
    chunks: int
    links_s: float
    worker_s: float
    ring_s: float

    def box_s(self, boxes=1):
        """What the cores of so many boxes need, between which the chunks are dealt out."""
        question = self.question
        return (self.chunks * question.workers * self.costs.box_ns * 1e-9 /
                (question.cores * boxes))

    def step_s(self, boxes=1):
        return max(self.links_s, self.worker_s, self.box_s(boxes))

    def limit(self, boxes=1):
        """What sets the time, in words."""
        parts = {"a worker's link": self.links_s, "a worker's core": self.worker_s,
                 "the box's cores" if boxes == 1 else "the boxes' cores": self.box_s(boxes)}
        return max(parts, key=parts.get)

    @property
    def standing_queue_s(self):
        """How long at most the link needs for what a worker's kernel already has."""
        queue_bytes = min(_STANDING_QUEUE_BYTES, self.chunks * self.chunk_bytes)
        return queue_bytes * 8 / (self.question.link_gbps * 1e9)

    @property
    def boxes_needed(self):
        """The least number of boxes beyond which another one gains nothing."""
        return max(1, math.ceil(self.box_s() / max(self.links_s, self.worker_s) - 1e-9))

    @property
    def box_gbps(self):
        """C of the law: gradients of all workers together that a box sums, as a ring has them."""
        chunk_gradient_bytes = self.chunk_elems * ELEM_BYTES[self.question.dtype]
        return self.question.cores * chunk_gradient_bytes * 8 / self.costs.box_ns

    @property
    def law_gbps(self):
        """C above which a box beats a ring whose links are as fast: N^2 W / (2 (N - 1))."""
        n = self.question.workers
        return n * n * self.question.link_gbps / (2 * (n - 1))


def plan(question, costs):
    one = chunk_bytes(question.mtu, question.workers)
    elems = chunk_elems(one, question.travels)
    chunks = math.ceil(question.params / elems)
    bits_a_second = question.link_gbps * 1e9
    return Plan(
        question=question, costs=costs, chunk_bytes=one, chunk_elems=elems, chunks=chunks,
        links_s=box_wire_bytes(question.params, chunks, question.travels, question.workers) * 8 /
        bits_a_second,
        worker_s=chunks * costs.worker_ns * 1e-9,
        ring_s=ring_wire_bytes(question.total_bytes, question.workers, question.mtu) * 8 /
        bits_a_second)


def _time(seconds):
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def words(made, source):
    """The plan in lines of prose; `source` says where its costs are from."""
    question, costs, needed = made.question, made.costs, made.boxes_needed
    wins = made.box_gbps > made.law_gbps
    narrow = question.travels != question.dtype
    travels = f", over the wire as {question.travels}" if narrow else ""

    def sets(boxes):
        limit = made.limit(boxes)
        return f"{limit} set{'' if limit.endswith('cores') else 's'} it"

    asked, in_order = operations(question), operations(question, reproducible=True)
    lines = [
        f"Given: {question.workers} workers, links of {question.link_gbps:g} Gb/s, MTU "
        f"{question.mtu}; a step sums {question.params:,} elements of {question.dtype}, "
        f"{question.total_bytes / 1e6:,.1f} MB a worker{travels}, in {made.chunks:,} chunks of "
        f"{made.chunk_bytes:,} bytes.",
        f"Costs ({source}): a core of a box takes {costs.box_ns:.0f} ns for a contribution and its "
        f"result, a core of a worker {costs.worker_ns:.0f} ns for a chunk's two packets.",
        f"One box of {question.cores} cores: {_time(made.step_s())} a step; {sets(1)} (links "
        f"{_time(made.links_s)}, box {_time(made.box_s())}, worker {_time(made.worker_s)}).",
        f"Several boxes: {needed} of them take {_time(made.step_s(needed))}, and {sets(needed)}; "
        "more would gain nothing." if needed > 1 else
        "Several boxes: one is enough; more would gain nothing.",
        f"Urgency: over UDP a tensor overtakes what the scheduler still has; not what stands below "
        f"it, in the worker's kernel, at most {_time(made.standing_queue_s)} of its link.",
        f"A ring: {_time(made.ring_s)}, of {question.dtype}; its links set it, where its workers' "
        "cores keep up with them.",
        f"The law: a box beats a ring if it sums more than N^2 W / (2 (N - 1)) = "
        f"{made.law_gbps:.1f} Gb/s of gradients; this one sums {made.box_gbps:.1f}, so "
        + ("it does." if wins else "it does not: give it more cores, or take more boxes."),
        f"Operations (backend \"sluice\"): a job of them takes {asked.memory_bytes >> 20} MiB of "
        f"the box, with limits.job_memory_mib at {JOB_MEMORY_MIB}. A group's first operation of a "
        f"kind (up, down, both ways, small) reserves {asked.first_slots} chunks, so {asked.kinds:,}"
        f" begin; at this link's rate over 1 ms each grows to {asked.full_rate_slots:,}, as "
        f"{asked.full_rate_kinds:,} can. With reproducible=True {in_order.kinds:,} begin and "
        f"{in_order.full_rate_kinds:,} can grow so.",
        f"Restarts: over UDP a worker keeps {kept_bytes(question) / 1e6:,.1f} MB of results for "
        f"those that lack them when the box is lost, {kept_bytes(question, False) / 1e6:,.1f} MB "
        f"with k < n; of a store {kept_of_store(question) / 1e6:,.1f} MB of parameters and pushes; "
        "nothing with a restart_timeout of 0.",
    ]
    return "\n".join(lines)
