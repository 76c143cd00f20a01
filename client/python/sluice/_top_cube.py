"""What `top` shows of jobs over several pages: a BCube by its switches, a job by its workers.

At a switch a worker's rank is its place there; where the names of the switch's jobs tell which one
it is, that becomes the rank in the BCube.
"""

from collections import defaultdict
from typing import NamedTuple, Optional

from sluice import _top_model, bcube, errors
from sluice._top_text import (ALARM, TITLE, duration, known, line, new_table, number, plural,
                              ranks_text)

WIDE = 100  # columns: a narrower window does without some


# ---- a BCube by its switches ----

class _Switch(NamedTuple):
    """An appliance as far as a BCube's job passes it."""
    page: _top_model.Page
    cube: _top_model.Cube
    shape: Optional[bcube.Cube]
    index: Optional[int]  # in its level; None: its jobs do not tell

    @property
    def stands_in(self):
        return bool(self.cube.spare and self.cube.spare.step_rate and not self.page.problem)

    @property
    def name(self):
        return (f"{'-' if self.cube.level is None else self.cube.level}-"
                f"{'?' if self.index is None else self.index}")

    def who(self, place):
        if self.index is None:
            return f"place {place}"
        return f"worker {self.shape.servers_of(self.cube.level, self.index)[place]}"


def _switch(page, cube):
    shape = index = None
    lost, level = cube.stands_in_for, cube.level
    try:
        shape = cube.levels and bcube.Cube(cube.meeting.world_size, cube.levels)
    except errors.InvalidArgument:  # of somebody else's making
        pass
    if shape and lost is not None and lost < shape.switches:
        index = shape.detour(shape.servers_of(level, lost)[0], level)[2]
    return _Switch(page, cube, shape, index)


def _latest(legs):
    """Of (switch, leg): the one that waits, else the one where somebody is most behind."""
    return max((one for one in legs if one[1].job.ranks), default=None, key=lambda one: (
        bool(one[1].job.missing), one[1].job.ranks[0].behind_s or 0))


def _latest_cells(late, where=""):
    rank = late and late[1].job.ranks[0]
    return (late[0].who(rank.rank) + where if rank else "-", duration(rank and rank.behind_s))


def _rate_cells(jobs, wide, combine):
    return [number(known(combine, (job.step_rate for job in jobs))),
            duration(known(max, (job.step_s for job in jobs)))] if wide else []


def _switch_marks(one, late, replaced):
    """What is wrong with a switch."""
    cube = one.cube
    if one.page.problem:
        yield f"unreachable for {duration(one.page.age_s)}"
    else:
        if late and late[1].job.missing:
            yield ("waits for " + ", ".join(map(one.who, late[1].job.missing[:4])) +
                   f" in thread {late[1].thread}, stage {late[1].stage}")
        if cube.meeting.state == "ended":
            yield "ended"
        elif cube.meeting.members != cube.meeting.world_size:
            yield f"{cube.meeting.members} of {cube.meeting.world_size} workers are here"
    if one.stands_in:
        yield f"stands in for {cube.level}-{cube.stands_in_for}"
    other = replaced.get((cube.level, one.index)) if one.index is not None else None
    if other:
        yield f"{other.name} stands in for it"


def _switch_table(found, wide):
    replaced = {(one.cube.level, one.cube.stands_in_for): one for one in found if one.stands_in}
    table = new_table("switch", "<appliance", "step", *("steps/s", "p50") * wide, "<latest",
                      "behind")
    for one in found:
        legs = [] if one.page.problem else one.cube.legs
        late, spare = _latest([(one, leg) for leg in legs]), one.cube.spare
        marks = list(_switch_marks(one, late, replaced))
        stood = []
        if spare and spare.step > 1:
            now = f"{number(spare.step_rate)} steps/s" if one.stands_in else "not now"
            stood = [f"has stood in for {one.cube.level}-{one.cube.stands_in_for}: "
                     f"{plural(spare.step - 1, 'step')}, {now}"]
        table.add_row(
            one.name, one.page.name, str(max(leg.job.step for leg in one.cube.legs)),
            *_rate_cells([leg.job for leg in legs], wide, max), *_latest_cells(late),
            ", ".join([*stood, *marks]), style=ALARM if marks else "")
    return table


def _leg_table(found, wide, alone):
    legs = defaultdict(list)
    for one in found:
        for leg in one.cube.legs if not one.page.problem else ():
            legs[(*leg.order, leg.stage, leg.way, one.cube.level)].append((one, leg))
    table = new_table("thread", "stage", "<way", "level", "step", *("steps/s", "p50") * wide,
                      "<latest", "behind")
    for (thread, _, _, stage, way, level), each in sorted(legs.items()):
        jobs, late = [leg.job for _, leg in each], _latest(each)
        low, high = (combine(job.step for job in jobs) for combine in (min, max))
        ended = all(job.state == "ended" for job in jobs)
        waits = late and late[1].job.missing
        table.add_row(
            str(thread), str(stage), way, "-" if level is None else str(level),
            str(low) if low == high else f"{low} to {high}", *_rate_cells(jobs, wide, min),
            *_latest_cells(late, "" if alone or not late else f" at {late[0].page.name}"),
            "MISSING" if waits else "ended" if ended else "",
            style=ALARM if waits or ended else "")
    return table


def cube_parts(pages, columns, alone):
    named = defaultdict(list)
    for page in pages:
        for cube in page.view.cubes:
            named[cube.name].append(_switch(page, cube))
    for name, found in sorted(named.items()):
        found.sort(key=lambda one: (one.cube.level or 0, one.index or 0))
        shape = next((one.shape for one in found if one.shape), None)
        answer = sum(not one.page.problem for one in found)
        wide = alone or columns >= WIDE
        words = [name, "BCube"]
        if shape:
            words = [name, f"BCube({shape.ports}, {shape.levels})",
                     f"{answer} of {shape.levels * shape.switches} switches answer here"]
        yield line("  ".join(words), TITLE)
        yield _switch_table(found, wide)
        yield line("")
        yield _leg_table(found, wide, alone)
        yield line("")


# ---- jobs by their workers' pages ----

def _shape(workers):
    """The BCube that they are of, as their number and that of their parts tell."""
    levels = 1 + max((part.level for part in workers[0].parts), default=0)
    try:
        cube = bcube.Cube(round(workers[0].world_size ** (1 / levels)), levels)
    except errors.InvalidArgument:
        return None
    return cube if levels > 1 and cube.servers == workers[0].world_size else None


def _worker_table(found, columns):
    hang = any(worker.waits for page, worker in found if not page.problem)
    wide = columns >= WIDE
    table = new_table("rank", "<page", "step", *("steps/s",) * wide, "out", "in",
                      "again", *("again/s",) * wide)
    for page, worker in found:
        whole, marks = worker.whole, []
        if page.problem:
            marks.append(f"unreachable for {duration(page.age_s)}")
        elif not worker.running:
            marks.append("has failed or left")
        elif worker.waits:
            whom = f" for {ranks_text(worker.missing)}" if worker.missing else ""
            marks.append(f"waits{whom}, {duration(worker.stalled_s)}")
        elif hang:
            marks.append("is waited for")
        if whole.detoured and not page.problem:
            marks.append(plural(whole.detoured, "lane") + " detoured")
        table.add_row(
            str(worker.rank), page.name, str(worker.step), *(number(worker.step_rate),) * wide,
            number(whole.sent_bits, "b/s"), number(whole.received_bits, "b/s"),
            number(whole.again), *(number(whole.again_rate),) * wide,
            ", ".join(marks), style=ALARM if marks else "")
    return table


def _traffic_table(found, shape, columns):
    """Of all workers that answer: rates are those of a worker, the mean; the rest is their sum."""
    wide = columns >= WIDE
    parts = {}
    for page, worker in found:
        for part in worker.parts if not page.problem else ():
            parts.setdefault((part.thread, part.level), []).append((worker.rank, part))
    table = new_table("thread", "stage", "level", "out", "in", *("sent",) * wide,
                      "again", "again/s", "<most")
    levels = shape.levels if shape else 1
    for (thread, level), each in sorted(
            parts.items(), key=lambda one: (one[0][0], (one[0][1] - one[0][0]) % levels)):
        detoured = sum(part.detoured for _, part in each)
        most = max(each, key=lambda one: (one[1].again_rate or 0, one[1].again))
        means = [rate and rate / len(each) for rate in (
            known(sum, (part.sent_bits for _, part in each)),
            known(sum, (part.received_bits for _, part in each)))]
        table.add_row(
            str(thread), str((level - thread) % levels), str(level),
            *(number(mean, "b/s") for mean in means),
            *(number(sum(part.sent_bytes for _, part in each), "B"),) * wide,
            number(sum(part.again for _, part in each)),
            number(known(sum, (part.again_rate for _, part in each))),
            f"rank {most[0]}" if most[1].again else "-",
            plural(detoured, "lane") + " detoured" if detoured else "",
            style=ALARM if detoured else "")
    return table


def worker_parts(pages, columns):
    jobs = defaultdict(list)
    for page in pages:
        for worker in page.view.workers or ():
            jobs[worker.job].append((page, worker))
    for job, found in sorted(jobs.items()):
        found.sort(key=lambda one: one[1].rank)
        answer = sum(not page.problem for page, _ in found)
        shape = _shape([worker for _, worker in found])
        words = [job, *([f"BCube({shape.ports}, {shape.levels})"] if shape else []),
                 f"{answer} of {found[0][1].world_size} workers answer here"]
        yield from (line("  ".join(words), TITLE), _worker_table(found, columns), line(""),
                    _traffic_table(found, shape, columns), line(""))
