"""Words, numbers and tables of `top`. ASCII only, so that they look the same over ssh, in a small
window and in a file.
"""

from rich.table import Table
from rich.text import Text

TITLE, HEAD, ALARM = "bold", "dim", "red"


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


def new_table(*headings, remarks=True):
    """Columns of words to the left ('<' before the heading), of numbers to the right. The last one,
    of remarks, becomes narrow first, on more lines."""
    table = Table(box=None, padding=(0, 0, 0, 2), pad_edge=False, header_style=HEAD)
    for heading in (*headings, *("<",) * remarks):
        table.add_column(heading.lstrip("<"), no_wrap=heading != "<",
                         justify="left" if heading.startswith("<") else "right")
    return table


def known(combine, values):
    """sum, min or max of those that are known; None when none is."""
    found = [value for value in values if value is not None]
    return combine(found) if found else None
