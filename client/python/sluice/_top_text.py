"""The frame of `top` for rich to print. Pure: a view and a size in, lines and tables out.

ASCII only, so that it looks the same over ssh, in a small window and in a file.
"""

from rich.console import Group
from rich.table import Table
from rich.text import Text

TITLE, HEAD, ALARM = "bold", "dim", "red"
MIN_RANKS = 3
_LIVE_PORTS = 8
LIVE_DROPS = 5


def duration(seconds):
    if seconds is None:
        return "-"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.{0 if seconds >= 0.00995 else 1}f} ms"
    if seconds < 99.5:
        return f"{seconds:.{1 if seconds >= 9.95 else 2}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.0f} h"


def number(value, unit=""):
    """Three digits and a prefix: 950, 1.25 k, 31 M."""
    if value is None:
        return "-"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            scaled = value / factor
            digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f} {prefix}{unit}"
    text = f"{value:.0f}" if value == int(value) or value >= 99.95 else f"{value:.1f}"
    return f"{text} {unit}".rstrip()


def share(value):
    return "-" if value is None else f"{value * 100:.0f} %"


def ranks_text(ranks, most=12):
    """'0, 3-7, 9'; the rest as a count."""
    runs = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [str(low) if low == high else f"{low}-{high}" for low, high in runs[:most]]
    more = sum(high - low + 1 for low, high in runs[most:])
    return ", ".join(words) + (f" and {more} more" if more else "")


def plural(count, word):
    return f"{count} {word}{'' if count == 1 else 's'}"


def line(text, style=""):
    return Text(text, style, no_wrap=True, overflow="crop")


def new_table(*headings):
    """Columns of words to the left ('<' before the heading), of numbers to the right."""
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style=HEAD)
    for heading in headings:
        left = heading.startswith("<")
        table.add_column(heading.lstrip("<"), justify="left" if left else "right", no_wrap=True)
    return table


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


def rank_table(job, columns, most):
    shown = _columns_for(job, columns)
    table = new_table(*(name for name, _, _ in shown), "<")
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


def job_lines(job):
    words = [job.name, job.state, f"{job.members} of {plural(job.world_size, 'rank')}",
             f"step {job.step}"]
    if job.step_rate is not None:
        words.append(f"{number(job.step_rate)} steps/s")
    if job.step_s is not None:
        words.append(f"step p50 {duration(job.step_s)}")
    lines = [line("  ".join(words), TITLE)]
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
        lines.append(line("  " + "   ".join(words)))
    if job.store:
        lines += _store_lines(job)
    elif job.state == "running":
        missing = job.missing
        lines.append(line("  oldest open chunk waits for rank" +
                          f"{'s' * (len(missing) > 1)} {ranks_text(missing)}", ALARM)
                     if missing else line("  no open chunk waits for anybody"))
    if job.absent and job.state != "ended":
        what = "not joined yet" if job.state == "forming" else "gone or finished"
        lines.append(line(f"  {what}: rank{'s' * (len(job.absent) > 1)} {ranks_text(job.absent)}",
                          ALARM if job.state == "running" else ""))
    return lines


def _cube_lines(cube):
    meeting = cube.meeting
    words = [cube.name, f"BCube, level {cube.level} of {cube.levels}" if cube.levels else "BCube",
             f"{meeting.members} of {plural(meeting.world_size, 'server')} of the switch"]
    yield line("  ".join(words), TITLE)
    spare = cube.spare
    if spare and spare.step > 1:
        now = f"now, {number(spare.step_rate)} steps/s" if spare.step_rate else "not now"
        yield line(f"  has stood in for switch {cube.stands_in_for} of its level: "
                    f"{plural(spare.step - 1, 'step')}, {now}", ALARM if spare.step_rate else "")
    table = new_table("thread", "stage", "<way", "step", "steps/s", "p50", "<latest", "behind", "<")
    for lane in cube.lanes:
        job, marks = lane.job, []
        if job.state != "running":
            marks.append(job.state)
        if job.missing:
            marks.append(f"waits for rank{'s' * (len(job.missing) > 1)} {ranks_text(job.missing)}")
        latest = job.ranks[0] if job.ranks else None
        table.add_row(str(lane.thread), str(lane.stage), lane.way, str(job.step),
                      number(job.step_rate), duration(job.step_s),
                      f"rank {latest.rank}" if latest else "-",
                      duration(latest and latest.behind_s), ", ".join(marks),
                      style=ALARM if marks else "")
    yield table


def drop_table(drops, most):
    if not drops:
        yield line("no packet dropped or useless so far", HEAD)
        return
    table = new_table("<dropped or useless", "<reason", "packets", "now")
    for drop in drops[:most]:
        table.add_row(drop.where, drop.reason, number(drop.count),
                      "-" if drop.rate is None else f"{number(drop.rate)}/s",
                      style=ALARM if drop.rate else "")
    yield table
    if len(drops) > most:
        yield line(f" ...  {plural(len(drops) - most, 'reason')} more, less frequent")


def _port_table(ports, most):
    table = new_table("<port", "<link", "in", "packets", "out", "packets", "queued")
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


def _box_line(view):
    words = [f"lcore {lcore} {share(busy)}" for lcore, busy in view.busy]
    if view.buffers:
        words.append("buffers {} of {}".format(*map(number, view.buffers)))
    return line("busy:  " + "   ".join(words))


def frame(view, columns, rows=None):
    """All of it. With `rows` the tables are cut so that they fit when that is possible."""
    live = rows is not None
    tail = [*drop_table(view.drops, LIVE_DROPS if live else len(view.drops))]
    if view.ports:
        tail += [line(""), *_port_table(view.ports, _LIVE_PORTS if live else len(view.ports))]
    tail += [line(""), _box_line(view)]
    heads = [job_lines(job) for job in view.jobs]
    most = max((len(job.ranks) for job in view.jobs), default=0)
    if live and view.jobs:
        below = min(len(view.drops), LIVE_DROPS) + min(len(view.ports), _LIVE_PORTS) + 7
        fixed = below + sum(len(head) + 3 for head in heads)  # heading, "more", empty line
        fixed += sum(len(cube.lanes) + 4 for cube in view.cubes)
        most = max(MIN_RANKS, (rows - fixed) // len(view.jobs))
    parts = []
    for cube in view.cubes:
        parts += [*_cube_lines(cube), line("")]
    for job, head in zip(view.jobs, heads):
        parts += head
        if job.ranks:
            parts += rank_table(job, columns, most)
        parts.append(line(""))
    return Group(*(parts or [line("no job"), line("")]), *tail)
