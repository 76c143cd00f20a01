"""What `top` shows of several appliances: a BCube's switches as one job, then ordinary jobs.

Pure: views and a size in, lines and tables out. At a switch a worker's rank is its place there;
where the names of the switch's jobs tell which one it is, that becomes the rank in the BCube.
"""

from typing import NamedTuple, Optional

from rich.console import Group

from sluice import _top_model, bcube, errors
from sluice._top_text import (ALARM, LIVE_DROPS, MIN_RANKS, TITLE, drop_table, duration, job_lines,
                              line, new_table, number, plural, rank_table, share)

_RATES = ("steps/s", "p50")
WIDE = 100  # columns


class Box(NamedTuple):
    """An appliance."""
    name: str
    view: Optional[_top_model.View]  # None: it has not answered yet
    problem: str  # why it does not answer now; empty: it does
    age_s: float  # of the view, or how long it has been asked


class Switch(NamedTuple):
    """An appliance as far as a BCube's job passes it."""
    box: Box
    cube: _top_model.Cube
    shape: Optional[bcube.Cube]
    index: Optional[int]  # in its level; None: its jobs do not tell

    @property
    def stands_in(self):
        return bool(self.cube.spare and self.cube.spare.step_rate and not self.box.problem)

    def who(self, place):
        if self.index is None:
            return f"place {place}"
        return f"worker {self.shape.servers_of(self.cube.level, self.index)[place]}"


def _switch(box, cube):
    shape = index = None
    lost, level = cube.stands_in_for, cube.level
    try:
        shape = cube.levels and bcube.Cube(cube.meeting.world_size, cube.levels)
    except errors.InvalidArgument:  # of somebody else's making
        pass
    if shape and lost is not None and lost < shape.switches:
        index = shape.detour(shape.servers_of(level, lost)[0], level)[2]
    return Switch(box, cube, shape, index)


def switches(boxes):
    """By name of the BCube's job, in order of level and switch."""
    found = {}
    for box in boxes:
        for cube in box.view.cubes if box.view else ():
            found.setdefault(cube.name, []).append(_switch(box, cube))
    for each in found.values():
        each.sort(key=lambda one: (one.cube.level or 0, one.index or 0))
    return found


def _latest(lanes):
    """Of (switch, lane): the one that waits, else the one where somebody is most behind."""
    return max((one for one in lanes if one[1].job.ranks), default=None, key=lambda one: (
        bool(one[1].job.missing), one[1].job.ranks[0].behind_s or 0))


def _least(values):
    return min((value for value in values if value is not None), default=None)


def _greatest(values):
    return max((value for value in values if value is not None), default=None)


def _span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def wrapping_table(*headings):
    """Whose last column, of remarks, is the one that becomes narrow first, on more lines."""
    table = new_table(*headings, "<")
    table.columns[-1].no_wrap = False
    return table


def _rates(jobs, columns, rate):
    """Cells that a narrow window does without."""
    return [number(rate(job.step_rate for job in jobs)),
            duration(_greatest(job.step_s for job in jobs))] if columns >= WIDE else []


def _switch_table(found, columns):
    replaced = {(one.cube.level, one.cube.stands_in_for): one for one in found if one.stands_in}
    table = wrapping_table("switch", "<appliance", "step", *_RATES[:columns >= WIDE and 2],
                           "<latest", "behind")
    for one in found:
        cube, jobs, marks = one.cube, [lane.job for lane in one.cube.lanes], []
        late = _latest([(one, lane) for lane in cube.lanes])
        if one.box.problem:
            marks, late, jobs = [f"unreachable for {duration(one.box.age_s)}"], None, []
        elif late and late[1].job.missing:
            marks.append("waits for " + ", ".join(map(one.who, late[1].job.missing[:4])) +
                         f" in thread {late[1].thread}, stage {late[1].stage}")
        if cube.meeting.state == "ended" and not one.box.problem:
            marks.append("ended")
        elif cube.meeting.members != cube.meeting.world_size and not one.box.problem:
            marks.append(f"{cube.meeting.members} of {cube.meeting.world_size} workers are here")
        if one.stands_in:
            marks.append(f"stands in for {cube.level}-{cube.stands_in_for}")
        if one.index is not None and (cube.level, one.index) in replaced:
            other = replaced[cube.level, one.index]
            marks.append(f"{other.cube.level}-{other.index} stands in for it")
        rank = late and late[1].job.ranks[0]
        table.add_row(
            f"{'-' if cube.level is None else cube.level}-"
            f"{'?' if one.index is None else one.index}", one.box.name,
            str(max(lane.job.step for lane in cube.lanes)), *_rates(jobs, columns, _greatest),
            one.who(rank.rank) if rank else "-", duration(rank and rank.behind_s),
            ", ".join(marks), style=ALARM if marks else "")
    return table


def _lane_table(found, columns):
    lanes = {}
    for one in found:
        for lane in one.cube.lanes if not one.box.problem else ():
            key = (*lane.order, lane.stage, lane.way, one.cube.level)
            lanes.setdefault(key, []).append((one, lane))
    table = wrapping_table("thread", "stage", "<way", "level", "step",
                           *_RATES[:columns >= WIDE and 2], "<latest", "behind")
    for (thread, _, _, stage, way, level), each in sorted(lanes.items()):
        jobs, late = [lane.job for _, lane in each], _latest(each)
        rank = late and late[1].job.ranks[0]
        ended = all(job.state == "ended" for job in jobs)
        waits = late and late[1].job.missing
        table.add_row(
            str(thread), str(stage), way, "-" if level is None else str(level),
            _span([job.step for job in jobs]), *_rates(jobs, columns, _least),
            f"{late[0].who(rank.rank)} at {late[0].box.name}" if rank else "-",
            duration(rank and rank.behind_s),
            "is waited for" if waits else "ended" if ended else "",
            style=ALARM if waits or ended else "")
    return table


def _cube_lines(name, found, columns):
    shape = next((one.shape for one in found if one.shape), None)
    answer = sum(not one.box.problem for one in found)
    words = [name, "BCube"]
    if shape:
        words = [name, f"BCube({shape.ports}, {shape.levels})",
                 f"{answer} of {shape.levels * shape.switches} switches answer here"]
    yield line("  ".join(words), TITLE)
    yield _switch_table(found, columns)
    yield line("")
    yield _lane_table(found, columns)
    yield line("")


def silent_lines(boxes):
    for box in boxes:
        if box.problem or box.view is None:
            age = f"numbers are {duration(box.age_s)} old" if box.view else "never seen"
            yield line(f"{box.name}: {box.problem or 'no answer yet'}, {age}", ALARM)


def _box_lines(boxes):
    """Those that do not answer first."""
    yield from silent_lines(boxes)
    table = new_table("<appliance", "jobs", "ports up", "in", "out", "queued", "dropped", "busy")
    for box in boxes:
        if box.problem or box.view is None:
            continue
        ports = box.view.ports

        def total(values):
            known = [value for value in values if value is not None]
            return sum(known) if known else None

        down = sum(not port.up for port in ports)
        table.add_row(
            box.name, str(len(box.view.jobs) + len(box.view.cubes)),
            f"{len(ports) - down} of {len(ports)}",
            number(total(port.rx_bits for port in ports), "b/s"),
            number(total(port.tx_bits for port in ports), "b/s"),
            number(total(port.queue_packets for port in ports) or 0),
            number(total(drop.rate for drop in box.view.drops) or 0) + "/s",
            share(_greatest(busy for _, busy in box.view.busy)), style=ALARM if down else "")
    if table.row_count:
        yield table
    yield line("")


def frame(boxes, columns, rows=None):
    """All of it; with `rows`, for a terminal that it need not fit into, without the less urgent."""
    live = rows is not None
    parts = []
    for name, found in sorted(switches(boxes).items()):
        parts += _cube_lines(name, found, columns)
    for box in boxes:
        for job in box.view.jobs if box.view else ():
            if box.problem:
                parts.append(line(f"{job.name} at {box.name}: unreachable for "
                                  f"{duration(box.age_s)}", ALARM))
            else:
                parts += job_lines(job._replace(name=f"{job.name} at {box.name}"))
                if job.ranks:
                    parts += rank_table(job, columns, MIN_RANKS if live else len(job.ranks))
            parts.append(line(""))
    if not parts:
        parts = [line(f"no job at {plural(len(boxes), 'appliance')}"), line("")]
    drops = sorted((drop._replace(where=f"{box.name}, {drop.where}") for box in boxes
                    if box.view and not box.problem for drop in box.view.drops),
                   key=lambda drop: (-(drop.rate or 0), -drop.count))
    return Group(*_box_lines(boxes), *parts, *drop_table(drops, LIVE_DROPS if live else len(drops)))
