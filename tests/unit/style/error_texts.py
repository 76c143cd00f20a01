"""Every error text of the product, as its source has it, for the page of errors.

A text is its literals in order, with a gap for each value that is known at run time only:
`job '…' needs … MiB`. C and C++ texts are those of a Status and of an appliance's refusals and
notices; Python's are those of what it raises. Of texts whose beginning is another function's only
the literals here are known.
"""

import ast
import re
from pathlib import Path
from typing import Iterator, NamedTuple

GAP = "…"
PRODUCT = ("aggregator", "client", "config", "dataplane")
NOTICES = ("aggregator/jobs/",)  # where text("...") is what a worker is told
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_STATUS = re.compile(r"StatusCode::k(\w+)\s*,")
_TEXT = re.compile(r'\btext\((?=\s*")')
_FORMAT = re.compile(r"%[-+ #0-9.*]*(?:l|ll|z|h)*[a-zA-Z]|%0?\d+(?=\s|…|$)")  # PRIx64 ends one


class ErrorText(NamedTuple):
    kind: str  # Refused, TimedOut, ...; Notice: what the appliance tells a worker
    text: str
    place: str  # file:line


def _clean(text):
    return re.sub(rf"\s*{GAP}(\s*{GAP})*\s*", f" {GAP} ", text).strip()


def _literals(source, start):
    """The literals from `start` to the end of its argument list, with gaps between expressions."""
    found, depth, at, between = "", 0, start, ""
    while at < len(source):
        char = source[at]
        if char == '"':
            literal = _LITERAL.match(source, at)
            found += (GAP if between.strip() else "") + literal[1].replace('\\"', '"')
            at, between = literal.end(), ""
            continue
        if char in "({[":
            depth += 1
        elif char in ")}]":
            depth -= 1
            if depth < 0:
                break
        elif char == ";" and depth <= 0:
            break
        between += char
        at += 1
    return _clean(_FORMAT.sub(GAP, found + (GAP if between.strip() else "")))


def texts_of_c(name: str, source: str) -> Iterator[ErrorText]:
    """Of one C or C++ file; `name` from the top of the repository."""
    starts = [(match[1], match.end()) for match in _STATUS.finditer(source)]
    if name.startswith(NOTICES):
        starts += [("Notice", match.end()) for match in _TEXT.finditer(source)]
    for kind, start in starts:
        line = source.count("\n", 0, start) + 1
        yield ErrorText(kind, _literals(source, start), f"{name}:{line}")


def _of_c(root: Path) -> Iterator[ErrorText]:
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cc", ".h"):
                yield from texts_of_c(str(path.relative_to(root)), path.read_text())


def _joined(node):
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_joined(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined(node.left) + _joined(node.right)
    return GAP


def _of_python(root: Path) -> Iterator[ErrorText]:
    for path in sorted((root / "client" / "python" / "sluice").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                called = node.exc.func
                kind = getattr(called, "attr", getattr(called, "id", "Other"))
                yield ErrorText(kind, _clean(_joined(node.exc.args[0])),
                                f"{path.relative_to(root)}:{node.lineno}")


def all_texts(root: Path):
    return [*_of_c(root), *_of_python(root)]
