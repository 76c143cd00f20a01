"""Holds the table of tiers in tests/README.md against ctest's own list.

A row names tests, by labels or by patterns, and says for each tier "all", "part" or "-". A test
belongs to the first row that fits. Arguments: the source folder, the build folder.
"""

import fnmatch
import json
import re
import subprocess
import sys
from pathlib import Path

QUICK = {"style", "unit", "packets"}  # labels: as `run` has them
LESS = re.compile(r"\bFULL\b|mark\.full|bcube_shapes|seed_stride")  # what a tier may leave out


def ctest(build, *options):
    out = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *options],
                         capture_output=True, text=True, check=True).stdout
    tests = {}
    for test in json.loads(out)["tests"]:
        properties = {each["name"]: each["value"] for each in test["properties"]}
        tests[test["name"]] = set(properties.get("LABELS", []))
    return tests


def rows(page):
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and set(cells[1:4]) <= {"all", "part", "-"}:
            yield re.findall(r"`([\w*]+)`", cells[0]), cells[1:4]


def is_in_part(source, name):
    """Whether a file of that test leaves something to the full tier."""
    folder, _, rest = name.partition("_")
    file = source / "tests" / folder / f"test_{rest}.py"
    if not file.exists():
        file = source / "tests" / "sim" / f"{name}.cc"
    return file.exists() and LESS.search(file.read_text()) is not None


def findings(table, everywhere, labels, in_part):
    used = set()
    for name, its_labels in labels.items():
        fitting = [(patterns, tiers) for patterns, tiers in table
                   if its_labels & set(patterns)
                   or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
        if not fitting:
            yield f"{name}: in no row"
            continue
        patterns, tiers = fitting[0]
        used.add(tuple(patterns))
        is_quick = bool(its_labels & QUICK)
        middle = "-" if name not in everywhere else "part" if in_part(name) else "all"
        told = ["all" if is_quick else "-", middle, "all"]
        if tiers != told:
            yield f"{name}: the table says {tiers}, ctest and the test {told}"
    for patterns, tiers in table:
        if tuple(patterns) not in used and tiers[1] != "-":  # the full tier alone builds benches
            yield f"{patterns}: no such test"


def main():
    source, build = Path(sys.argv[1]), sys.argv[2]
    labels, everywhere = ctest(build, "-C", "full"), ctest(build)
    table = list(rows(source / "tests" / "README.md"))
    wrong = list(findings(table, everywhere, labels, lambda name: is_in_part(source, name)))
    print(*(f"tests/README.md: {finding}" for finding in wrong), sep="\n")
    return 1 if wrong or not table else 0


if __name__ == "__main__":
    sys.exit(main())
