"""The frame of `top` for rich to print. Pure: pages and a size in, lines and tables out.

One page shows its ports and lcores; of several, each appliance is a line.
"""

import time

from rich.console import Console, Group
from rich.segment import SegmentLines
from rich.table import Table

from sluice._top_cube import cube_parts, worker_parts
from sluice._top_text import (ALARM, HEAD, TITLE, duration, known, line, new_table, number, plural,
                              ranks_text, share)

_MIN_RANKS = 3
_LIVE_PORTS = 8
_LIVE_DROPS = 5


# ---- jobs ----

_SUMS = (  # heading, how soon it is left out of a narrow window (0: never), its text
    ("rank", 0, lambda rank: str(rank.rank)),
    ("gradient", 1, lambda rank: duration(rank.gradient_s)),
    ("behind", 0, lambda rank: duration(rank.behind_s)),
    ("steps back", 0, lambda rank: "-" if rank.steps_back is None else str(rank.steps_back)),
    ("lag p50", 3, lambda rank: duration(rank.lag_s)),
    ("in sums", 0, lambda rank: share(rank.included)),
    ("late/s", 0, lambda rank: number(rank.late_rate)),
    ("requeued/s", 4, lambda rank: number(rank.requeued_rate)),
    ("silent", 2, lambda rank: duration(rank.silent_s)),
)
_STORE = (
    ("rank", 0, lambda rank: str(rank.rank)),
    ("steps back", 0, lambda rank: number(rank.steps_back)),
    ("suspended", 0, lambda rank: share(rank.suspended and min(1.0, rank.suspended))),
    ("oldest request", 1, lambda rank: number(rank.oldest_request)),
    ("silent", 2, lambda rank: duration(rank.silent_s)),
)
_CELL = 6  # columns of the widest cell
_MARKS = 17  # columns that a rank's marks take


def _columns_for(job, columns):
    shown = _STORE if job.store else _SUMS
    while sum(max(_CELL, len(column[0])) + 2 for column in shown) - 2 + _MARKS > columns:
        most = max(shown, key=lambda column: column[1])
        if most[1] == 0:
            break
        shown = tuple(column for column in shown if column is not most)
    return shown


def _rank_table(job, columns, most):
    if not job.ranks:
        return
    shown = _columns_for(job, columns)
    table = new_table(*(name for name, _, _ in shown))
    for rank in job.ranks[:most]:
        marks = ["MISSING"] * rank.missing + ["silent"] * rank.silent
        table.add_row(*(cell(rank) for _, _, cell in shown), ", ".join(marks),
                      style=ALARM if marks else "")
    yield table
    if len(job.ranks) > most:
        yield line(f" ...  {plural(len(job.ranks) - most, 'rank')} more, less late")


def _store_lines(job):
    store = job.store
    words = ["store"]
    if store.least is not None:
        words.append(f"clocks {store.least} to {store.greatest}")
    if store.staleness:
        words.append("staleness at read p50 {:.0f}, p99 {:.0f}".format(*store.staleness))
    if store.wait_s is not None:
        words.append(f"parked pulls wait p50 {duration(store.wait_s)}")
    yield line("  " + "   ".join(words))
    if job.state == "running" and not job.members:
        yield line("  no worker is left: the parameters are kept for those to come", ALARM)
        return
    if not store.parked:
        yield line("  no pull waits for anybody")
        return
    layers = ", ".join(f"{layer}: {count}" for layer, count in store.layers[:4])
    behind = ranks_text(sorted(rank.rank for rank in job.ranks
                               if rank.steps_back == (store.greatest or 0) - (store.least or 0)))
    yield line(f"  {plural(store.parked, 'pull')} of blocks parked, the oldest for "
                f"{duration(store.oldest_s)} (layer {layers}); least clock: rank {behind}", ALARM)


def _job_lines(job):
    words = [job.name, job.state, f"{job.members} of {plural(job.world_size, 'rank')}",
             f"step {job.step}"]
    if job.step_rate is not None:
        words.append(f"{number(job.step_rate)} steps/s")
    if job.step_s is not None:
        words.append(f"step p50 {duration(job.step_s)}")
    yield line("  ".join(words), TITLE)
    words = []
    if job.k:
        words.append(f"k {job.k} of {job.world_size}")
    if job.policy and not job.store:
        words.append(f"policy {job.policy}, late gradients "
                     f"{'requeued' if job.late == 'requeue' else 'dropped'}"
                     if job.policy != "sync" else "policy sync")
    if job.noise_scale is not None:
        words.append(f"noise scale {number(job.noise_scale)}")
    if job.signs_flipped is not None:
        words.append(f"signs flipped {share(job.signs_flipped)}")
    if words:
        yield line("  " + "   ".join(words))
    if job.store:
        yield from _store_lines(job)
    elif job.state == "running":
        missing = job.missing
        yield line("  oldest open chunk waits for rank" +
                   f"{'s' * (len(missing) > 1)} {ranks_text(missing)}", ALARM) \
            if missing else line("  no open chunk waits for anybody")
    if job.absent and job.state != "ended":
        what = "not joined yet" if job.state == "forming" else "gone or finished"
        yield line(f"  {what}: rank{'s' * (len(job.absent) > 1)} {ranks_text(job.absent)}",
                   ALARM if job.state == "running" else "")


# ---- appliances ----

def _drop_table(drops, most):
    if not drops:
        yield line("no packet dropped or useless so far", HEAD)
        return
    table = new_table("<dropped or useless", "<reason", "packets", "now", remarks=False)
    for drop in drops[:most]:
        table.add_row(drop.where, drop.reason, number(drop.count),
                      "-" if drop.rate is None else f"{number(drop.rate)}/s",
                      style=ALARM if drop.rate else "")
    yield table
    if len(drops) > most:
        yield line(f" ...  {plural(len(drops) - most, 'reason')} more, less frequent")


def _port_table(ports, most):
    table = new_table("<port", "<link", "in", "packets", "out", "packets", "queued", remarks=False)
    busiest = sorted(ports, key=lambda port: -((port.rx_bits or 0) + (port.tx_bits or 0)))
    shown = set(port.name for port in busiest[:most])
    for port in ports:
        if port.name in shown:
            table.add_row(port.name, "up" if port.up else "down", number(port.rx_bits, "b/s"),
                          number(port.rx_packets, "/s"), number(port.tx_bits, "b/s"),
                          number(port.tx_packets, "/s"), number(port.queue_packets))
    yield table
    if len(ports) > most:
        yield line(f" ...  {plural(len(ports) - most, 'port')} more, less busy")


def _lcore_line(view):
    words = [f"lcore {lcore} {share(busy)}" for lcore, busy in view.busy]
    if view.buffers:
        words.append("buffers {} of {}".format(*map(number, view.buffers)))
    return line("busy:  " + "   ".join(words))


def _silent_lines(pages):
    for page in pages:
        if page.problem or page.view is None:
            age = f"numbers are {duration(page.age_s)} old" if page.view else "never seen"
            yield line(f"{page.name}: {page.problem or 'no answer yet'}, {age}", ALARM)


def _appliance_table(pages):
    table = new_table("<appliance", "jobs", "ports up", "in", "out", "queued", "dropped", "busy",
                   remarks=False)
    for page in pages:
        ports, drops = page.view.ports, page.view.drops
        down = sum(not port.up for port in ports)
        table.add_row(
            page.name, str(len(page.view.jobs) + len(page.view.cubes)),
            f"{len(ports) - down} of {len(ports)}",
            number(known(sum, (port.rx_bits for port in ports)), "b/s"),
            number(known(sum, (port.tx_bits for port in ports)), "b/s"),
            number(sum(port.queue_packets for port in ports)),
            number(known(sum, (drop.rate for drop in drops)) or 0) + "/s",
            share(known(max, (busy for _, busy in page.view.busy))), style=ALARM if down else "")
    return table


# ---- all of it ----

def _parts(pages, columns, live, most):
    """Lines and tables, with `most` ranks of a job; `live`: without the less urgent."""
    alone = len(pages) == 1
    if alone:  # its last numbers stay while it does not answer
        pages = [pages[0]._replace(problem="")]
    else:
        yield from _silent_lines(pages)
    seen = [page for page in pages if page.view]
    appliances = [page for page in seen if page.view.workers is None]
    answering = [page for page in appliances if not page.problem]
    if answering and not alone:
        yield from (_appliance_table(answering), line(""))
    jobs = [*worker_parts(seen, columns), *cube_parts(appliances, columns, alone)]
    for page in appliances:
        for job in page.view.jobs:
            name = job.name if alone else f"{job.name} at {page.name}"
            if page.problem:
                jobs.append(line(f"{name}: unreachable for {duration(page.age_s)}", ALARM))
            else:
                jobs += [*_job_lines(job._replace(name=name)), *_rank_table(job, columns, most)]
            jobs.append(line(""))
    yield from jobs or (line("no job" if alone else f"no job at {plural(len(pages), 'page')}"),
                        line(""))
    if not answering:
        return
    drops = sorted((drop if alone else drop._replace(where=f"{page.name}, {drop.where}")
                    for page in answering for drop in page.view.drops),
                   key=lambda drop: (-(drop.rate or 0), -drop.count))
    yield from _drop_table(drops, _LIVE_DROPS if live else len(drops))
    if alone:
        view = answering[0].view
        if view.ports:
            yield line("")
            yield from _port_table(view.ports, _LIVE_PORTS if live else len(view.ports))
        yield from (line(""), _lcore_line(view))


def frame(pages, columns, rows=None):
    """All of it. With `rows`, for a terminal that it need not fit into, without the less urgent and
    with as many ranks of each job as fit, but the latest few in any case."""
    most = max((len(job.ranks) for page in pages if page.view for job in page.view.jobs), default=0)
    if rows is not None:
        least = [*_parts(pages, columns, True, _MIN_RANKS)]
        height = sum(part.row_count + 1 if isinstance(part, Table) else 1 for part in least)
        jobs = sum(len(page.view.jobs) for page in pages if page.view)
        most = _MIN_RANKS + max(0, rows - height) // max(1, jobs)
    return Group(*_parts(pages, columns, rows is not None, most))


def heading(pages):
    span_s = max((page.view.span_s for page in pages.shown() if page.view), default=0)
    span = f"  rates over {span_s:.0f} s" if span_s >= 1 else ""
    where = pages.urls[0] if len(pages.urls) == 1 else f"{len(pages.urls)} pages"
    silent = sum(error is not None for error in pages.errors)
    if silent and len(pages.urls) > 1:
        where += f", {silent} unreachable"
    return f"sluice top  {time.strftime('%H:%M:%S')}{span}  {where}"


def new_console(**options):
    """A console that prints words as they are: no markup, no emoji, nothing highlighted."""
    return Console(markup=False, emoji=False, highlight=False, **options)


class Screen:
    """As much of a frame as the window holds, for rich."""

    def __init__(self, pages):
        self._pages = pages
        self._offset = 0

    def scroll(self, lines):
        self._offset = max(0, self._offset + lines)

    def __rich_console__(self, console, options):
        columns, rows = console.size
        error = self._pages.errors[0] if len(self._pages.urls) == 1 else None
        head = [line(heading(self._pages), TITLE)]
        if error:
            age_s = self._pages.shown()[0].age_s
            head.append(line(f"numbers are {age_s:.0f} s old: {error}", ALARM))
        space = max(1, rows - len(head) - 1)
        lines = console.render_lines(frame(self._pages.shown(), columns, space),
                                     options.update(width=columns, height=None))
        self._offset = min(self._offset, max(0, len(lines) - space))
        more = len(lines) - space - self._offset
        foot = "q quits" + (f"   arrows scroll: {more} lines below" if more > 0 else
                            "   arrows scroll" if self._offset else "")
        lines = lines[self._offset:self._offset + space]
        lines += [[]] * (space - len(lines))
        yield from head
        yield SegmentLines(lines, new_lines=True)
        yield line(foot, HEAD)
