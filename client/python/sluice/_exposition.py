"""The text that /metrics answers, as values: Prometheus' exposition format, version 0.0.4.

Pure: text in, samples out. Reads what the format allows (escapes, timestamps, infinities) and names
the line that it does not understand.
"""

import math
import re
from typing import NamedTuple

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", "\\": "\\", '"': '"'}


class Sample(NamedTuple):
    labels: dict
    value: float


def _unescape(text):
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _parse_line(line):
    """(name, Sample) of one line; ValueError when it is not a sample."""
    match = _NAME.match(line)
    if match is None:
        raise ValueError("no metric name")
    name, at, labels = match[0], match.end(), {}
    if line[at:at + 1] == "{":
        at += 1
        while True:
            match = _LABEL.match(line, at)
            if match is None:
                break
            labels[match[1]] = _unescape(match[2]) if "\\" in match[2] else match[2]
            at = match.end()
        close = re.compile(r"\s*\}").match(line, at)
        if close is None:
            raise ValueError("a label that is not name=\"value\"")
        at = close.end()
    fields = line[at:].split()
    if len(fields) not in (1, 2):
        raise ValueError("not one value and at most one timestamp")
    if len(fields) == 2:
        int(fields[1])
    return name, Sample(labels, float(fields[0]))


def parse(text):
    """A dict from metric name to its samples, in the order of the page. ValueError names the line.

    A histogram appears as its parts: NAME_bucket, NAME_sum, NAME_count.
    """
    samples = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            name, sample = _parse_line(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {line[:80]!r}: {error}") from None
        samples.setdefault(name, []).append(sample)
    return samples


def families(text):
    """A dict from the name of each family on the page to its type, whether it has rows or not."""
    found = {}
    for line in text.split("\n"):
        words = line.split()
        if len(words) == 4 and words[:2] == ["#", "TYPE"]:
            found[words[2]] = words[3]
    return found


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
