"""The frame of `top` as lines of text. Pure: a view and a size in, lines out.

ASCII only and no wider than asked, so that it looks the same over ssh, in a small window and in a
file. A line carries one style, which the terminal may show or not.
"""

from typing import NamedTuple

PLAIN, TITLE, HEAD, ALARM = "plain", "title", "head", "alarm"
_MIN_RANKS = 3
_LIVE_PORTS = 8
_LIVE_DROPS = 5


class Line(NamedTuple):
    text: str
    style: str = PLAIN


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


def _plural(count, word):
    return f"{count} {word}{'' if count == 1 else 's'}"


_COLUMNS = (  # heading, width, how soon it is left out of a narrow window (0: never), its text
    ("rank", 5, 0, lambda rank: str(rank.rank)),
    ("gradient", 10, 1, lambda rank: duration(rank.gradient_s)),
    ("behind", 8, 0, lambda rank: duration(rank.behind_s)),
    ("steps back", 12, 0, lambda rank: "-" if rank.steps_back is None else str(rank.steps_back)),
    ("lag p50", 9, 3, lambda rank: duration(rank.lag_s)),
    ("in sums", 9, 0, lambda rank: share(rank.included)),
    ("late/s", 8, 0, lambda rank: number(rank.late_rate)),
    ("requeued/s", 12, 4, lambda rank: number(rank.requeued_rate)),
    ("silent", 8, 2, lambda rank: duration(rank.silent_s)),
)
_MARKS = 17  # columns that a rank's marks take


def _columns_for(columns):
    shown = _COLUMNS
    while sum(column[1] for column in shown) + _MARKS > columns:
        most = max(shown, key=lambda column: column[2])
        if most[2] == 0:
            break
        shown = tuple(column for column in shown if column is not most)
    return shown


def _rank_lines(job, columns, most):
    shown = _columns_for(columns)
    lines = [Line("".join(f"{name:>{width}}" for name, width, _, _ in shown), HEAD)]
    for rank in job.ranks[:most]:
        words = ["MISSING"] * rank.missing + ["silent"] * rank.silent
        text = "".join(f"{cell(rank):>{width}}" for _, width, _, cell in shown)
        lines.append(Line(f"{text}  {', '.join(words)}".rstrip(), ALARM if words else PLAIN))
    if len(job.ranks) > most:
        lines.append(Line(f"{'...':>5}  {_plural(len(job.ranks) - most, 'rank')} more, less late"))
    return lines


def _job_lines(job):
    words = [job.name, job.state, f"{job.members} of {_plural(job.world_size, 'rank')}",
             f"step {job.step}"]
    if job.step_rate is not None:
        words.append(f"{number(job.step_rate)} steps/s")
    if job.step_s is not None:
        words.append(f"step p50 {duration(job.step_s)}")
    lines = [Line("  ".join(words), TITLE)]
    words = []
    if job.k:
        words.append(f"k {job.k} of {job.world_size}")
    if job.policy:
        words.append(f"policy {job.policy}, late gradients "
                     f"{'requeued' if job.late == 'requeue' else 'dropped'}"
                     if job.policy != "sync" else "policy sync")
    if job.noise_scale is not None:
        words.append(f"noise scale {number(job.noise_scale)}")
    if job.signs_flipped is not None:
        words.append(f"signs flipped {share(job.signs_flipped)}")
    if words:
        lines.append(Line("  " + "   ".join(words)))
    if job.state == "running":
        missing = job.missing
        lines.append(Line("  oldest open chunk waits for rank" +
                          f"{'s' * (len(missing) > 1)} {ranks_text(missing)}", ALARM)
                     if missing else Line("  no open chunk waits for anybody"))
    if job.absent and job.state != "ended":
        what = "not joined yet" if job.state == "forming" else "gone or finished"
        lines.append(Line(f"  {what}: rank{'s' * (len(job.absent) > 1)} {ranks_text(job.absent)}",
                          ALARM if job.state == "running" else PLAIN))
    return lines


def _drop_lines(drops, most):
    if not drops:
        return [Line("no packet dropped or useless so far", HEAD)]
    lines = [Line(f"{'dropped or useless':<18}  {'reason':<24}{'packets':>10}{'now':>12}", HEAD)]
    for drop in drops[:most]:
        rate = "-" if drop.rate is None else f"{number(drop.rate)}/s"
        lines.append(Line(f"{drop.where[:18]:<18}  {drop.reason:<24}{number(drop.count):>10}"
                          f"{rate:>12}", ALARM if drop.rate else PLAIN))
    if len(drops) > most:
        lines.append(Line(f"...  {_plural(len(drops) - most, 'reason')} more, less frequent"))
    return lines


def _port_lines(ports, most):
    lines = [Line(f"{'port':<16}{'link':<6}{'in':>12}{'packets':>11}{'out':>12}{'packets':>11}"
                  f"{'queued':>8}", HEAD)]
    busiest = sorted(ports, key=lambda port: -((port.rx_bits or 0) + (port.tx_bits or 0)))
    shown = set(port.name for port in busiest[:most])
    for port in ports:
        if port.name not in shown:
            continue
        lines.append(Line(
            f"{port.name[:15]:<16}{'up' if port.up else 'down':<6}{number(port.rx_bits, 'b/s'):>12}"
            f"{number(port.rx_packets, '/s'):>11}{number(port.tx_bits, 'b/s'):>12}"
            f"{number(port.tx_packets, '/s'):>11}{number(port.queue_packets):>8}"))
    if len(ports) > most:
        lines.append(Line(f"...  {_plural(len(ports) - most, 'port')} more, less busy"))
    return lines


def _box_line(view):
    words = [f"lcore {lcore} {share(busy)}" for lcore, busy in view.busy]
    if view.buffers:
        words.append("buffers {} of {}".format(*map(number, view.buffers)))
    return Line("busy:  " + "   ".join(words))


def frame(view, columns, rows=None):
    """All lines. With `rows` the tables are cut so that they fit when that is possible."""
    live = rows is not None
    tail = [Line("")] + _drop_lines(view.drops, _LIVE_DROPS if live else len(view.drops))
    if view.ports:
        tail += [Line("")] + _port_lines(view.ports, _LIVE_PORTS if live else len(view.ports))
    tail += [Line(""), _box_line(view)]
    heads = [_job_lines(job) for job in view.jobs]
    most = max((len(job.ranks) for job in view.jobs), default=0)
    if live and view.jobs:
        fixed = len(tail) + sum(len(head) + 3 for head in heads)  # heading, "more", empty line
        most = max(_MIN_RANKS, (rows - fixed) // len(view.jobs))
    lines = []
    for job, head in zip(view.jobs, heads):
        lines += head
        if job.ranks:
            lines += _rank_lines(job, columns, most)
        lines.append(Line(""))
    if not view.jobs:
        lines.append(Line("no job"))
    lines += tail if not view.jobs else tail[1:]
    return [Line(line.text[:columns], line.style) for line in lines]
