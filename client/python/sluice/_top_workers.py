"""What `top` shows of workers' own pages: a job by worker, and by thread and level.

Pure: scrapes, views and a size in, lines and tables out. Names of the metrics:
dataplane/ops/README.md.
"""

from typing import NamedTuple, Optional

from rich.console import Group

from sluice import bcube, errors
from sluice._top_boxes import WIDE, silent_lines, wrapping_table
from sluice._top_model import per_second
from sluice._top_text import ALARM, TITLE, duration, line, number, plural, ranks_text

_WAITS_S = 1.0  # so long that something is wrong


class Part(NamedTuple):
    """Of a worker's traffic: over a BCube a thread at a level."""
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
    whole: Part  # without thread and level
    parts: list
    stalled_s: float
    missing: list  # ranks that it waits for

    @property
    def waits(self):
        return self.running and self.stalled_s >= _WAITS_S


class View(NamedTuple):
    workers: list
    span_s: float


def _part(now, before, span_s, area, job, rank, **place):
    labels = {"job": job, "rank": rank, **place}

    def total(name, scrape=now):
        return scrape.value(f"sluice_worker_{area}{name}", **labels)

    def per_s(name, factor=1):
        found = per_second(total(name), total(name, before), span_s)
        return None if found is None else found * factor

    return Part(int(place.get("thread", 0)), int(place.get("level", 0)),
                per_s("bytes_sent_total", 8), per_s("bytes_received_total", 8),
                total("bytes_sent_total") or 0, total("retransmissions_total") or 0,
                per_s("retransmissions_total"), int(total("detoured_lanes") or 0))


def view(now, before):
    """As _top_model.view(), of a worker's page."""
    span_s = now.time_s - before.time_s
    workers = []
    for job, rank in sorted(now.rows("sluice_worker_running", "job", "rank")):
        def value(name, scrape=now, job=job, rank=rank):
            return scrape.value(f"sluice_worker_{name}", job=job, rank=rank)

        places = now.rows("sluice_worker_part_bytes_sent_total", "job", "rank", "thread", "level")
        missing = now.rows("sluice_worker_missing", "job", "rank", "missing")
        workers.append(Worker(
            job, int(rank), int(value("world_size") or 0), value("running") == 1,
            int(value("steps_done_total") or 0),
            per_second(value("steps_done_total"), value("steps_done_total", before), span_s),
            _part(now, before, span_s, "", job, rank),
            sorted(_part(now, before, span_s, "part_", job, rank, thread=key[2], level=key[3])
                   for key in places if key[:2] == (job, rank)),
            value("stalled_seconds") or 0,
            sorted(int(key[2]) for key in missing if key[:2] == (job, rank))))
    return View(workers, span_s)


def _shape(workers):
    """The BCube that they are of, as their number and that of their parts tell."""
    levels = 1 + max((part.level for part in workers[0].parts), default=0)
    try:
        cube = bcube.Cube(round(workers[0].world_size ** (1 / levels)), levels)
    except errors.InvalidArgument:
        return None
    return cube if levels > 1 and cube.servers == workers[0].world_size else None


def _sum(values):
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _worker_table(found, columns):
    hang = any(worker.waits for box, worker in found if not box.problem)
    wide = columns >= WIDE
    table = wrapping_table("rank", "<page", "step", *("steps/s",) * wide, "out", "in",
                           "again", *("again/s",) * wide)
    for box, worker in found:
        whole, marks = worker.whole, []
        if box.problem:
            marks.append(f"unreachable for {duration(box.age_s)}")
        elif not worker.running:
            marks.append("has failed or left")
        elif worker.waits:
            whom = f" for {ranks_text(worker.missing)}" if worker.missing else ""
            marks.append(f"waits{whom}, {duration(worker.stalled_s)}")
        elif hang:
            marks.append("is waited for")
        if whole.detoured and not box.problem:
            marks.append(plural(whole.detoured, "lane") + " detoured")
        table.add_row(
            str(worker.rank), box.name, str(worker.step), *(number(worker.step_rate),) * wide,
            number(whole.sent_bits, "b/s"), number(whole.received_bits, "b/s"),
            number(whole.again), *(number(whole.again_rate),) * wide,
            ", ".join(marks), style=ALARM if marks else "")
    return table


def _part_table(found, shape, columns):
    """Of all workers that answer: rates are those of a worker, the mean; the rest is their sum."""
    wide = columns >= WIDE
    parts = {}
    for box, worker in found:
        for part in worker.parts if not box.problem else ():
            parts.setdefault((part.thread, part.level), []).append((worker.rank, part))
    table = wrapping_table("thread", "stage", "level", "out", "in", *("sent",) * wide,
                           "again", "again/s", "<most")
    levels = shape.levels if shape else 1
    for (thread, level), each in sorted(
            parts.items(), key=lambda one: (one[0][0], (one[0][1] - one[0][0]) % levels)):
        detoured = sum(part.detoured for _, part in each)
        most = max(each, key=lambda one: (one[1].again_rate or 0, one[1].again))
        means = [sums and sums / len(each) for sums in (
            _sum(part.sent_bits for _, part in each), _sum(part.received_bits for _, part in each))]
        table.add_row(
            str(thread), str((level - thread) % levels), str(level),
            *(number(mean, "b/s") for mean in means),
            *(number(sum(part.sent_bytes for _, part in each), "B"),) * wide,
            number(sum(part.again for _, part in each)),
            number(_sum(part.again_rate for _, part in each)),
            f"rank {most[0]}" if most[1].again else "-",
            plural(detoured, "lane") + " detoured" if detoured else "",
            style=ALARM if detoured else "")
    return table


def frame(boxes, columns):
    """Of workers, and of those that have never answered; first who does not answer."""
    parts, jobs = [*silent_lines(boxes)], {}
    for box in boxes:
        for worker in box.view.workers if box.view else ():
            jobs.setdefault(worker.job, []).append((box, worker))
    for job, found in sorted(jobs.items()):
        found.sort(key=lambda one: one[1].rank)
        answer = sum(not box.problem for box, _ in found)
        shape = _shape([worker for _, worker in found])
        words = [job, *([f"BCube({shape.ports}, {shape.levels})"] if shape else []),
                 f"{answer} of {found[0][1].world_size} workers answer here"]
        parts += [line("  ".join(words), TITLE), _worker_table(found, columns), line(""),
                  _part_table(found, shape, columns), line("")]
    return Group(*(parts if jobs else [*parts, line("no job")]))
