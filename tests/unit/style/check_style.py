"""The rules of the house that a machine can check, over every file that git tracks.

Prints one line a finding, `file:line: rule; what to do`, and exits 1 if there is any. Rules are
functions from a source file to findings; check_style_test.py shows each of them a bad sample. What
a folder may include is not among them: the build enforces that (cmake/sluice.cmake).
"""

import os
import re
import shutil
import subprocess
import sys
from typing import Callable, Iterator, List, NamedTuple, Optional, Tuple

from class_sizes import CEILINGS, large_classes

MAX_COLUMNS = 100
MAX_LINES = 400
PUBLIC_HEADER = "client/include/sluice/sluice.h"  # one contract, read from top to bottom
MAX_PAGE_WORDS = 600
MAX_TOP_PAGE_WORDS = 900
MAX_BYTES = 200 << 10
CLANG_FORMAT_VERSION = "14."  # Debian 12's; other versions lay out some lines differently

# Files that tools find by their names.
NAMED_BY_TOOLS = {"README.md", "CMakeLists.txt", "CMakePresets.json", "CONTRIBUTING.md",
                  "CHANGELOG.md", "LICENSE", ".gitignore", ".clang-format", ".clang-tidy",
                  "conftest.py", "__init__.py", "__main__.py", "pyproject.toml", "setup.py"}
KNOWN_TO_TOOLS = (".ci/",)

C_FAMILY = (".h", ".hpp", ".cc", ".c", ".cu")
TEXT = C_FAMILY + (".py", ".sh", ".cmake")

# Pure folders take time, randomness and memory as arguments.
PURE = ("aggregator/", "dataplane/core/", "dataplane/host/", "client/bcube/", "client/core/",
        "client/prune/", "client/sched/")
IMPURE_HEADERS = re.compile(
    r"#include <(thread|chrono|mutex|condition_variable|iostream|fstream|filesystem|random|ctime|"
    r"time\.h|unistd\.h|pthread\.h|sys/(socket|time|epoll|mman)\.h)>")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')
# A clock that may step: times are of the monotonic one.
WALL_CLOCK = re.compile(r"CLOCK_REALTIME|system_clock|gettimeofday|\btime\((?:NULL|nullptr|0|&)"
                        r"|\btime\.time(?:_ns)?\(|\bdatetime\.now\(|\butcnow\(")
OPEN_END = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")  # style-ok: the rule itself
WORD = re.compile(r"[\w./+-]*\w")
# Types and their names, where a namespace's begin: in the first column.
PRODUCT = ("aggregator/", "client/", "config/", "dataplane/")
NAMESPACE = re.compile(r"namespace(?: ([\w:]+))? \{$")
TYPE = re.compile(r"(?:enum (?:class |struct )?|class |struct |union )"
                  r"(?:\[\[.*?\]\] |alignas\(.*?\) )?(\w+)(?: final)?(?: :[^;]*)? \{"
                  r"|using (\w+) =")
# What puts a folder's parts together; they must not know it.
FACADES = {"aggregator/core/shard.h": ("aggregator/core/shard",)}
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)\s]+)\)")
TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
NAMED_TEST = re.compile(r"`([A-Z]\w+\.\w+_\w+)`")  # `Suite.a_sentence`
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
IMPORT = re.compile(r"\s*(from|import) ")
MACHINE_PATH = re.compile(r"(?<![\w.<$}])/(work|farm|home|root)/[a-z]")


class Source(NamedTuple):
    path: str  # from the top of the repository, with slashes
    lines: List[str]


Finding = Tuple[int, str]  # line, text


def includes_start_at_the_root(source: Source) -> Iterator[Finding]:
    outside = ("client/include/", "client/examples/")  # what users see is found by its own name
    if not source.path.endswith(C_FAMILY) or source.path.startswith(outside):
        return
    for number, line in enumerate(source.lines, 1):
        match = INCLUDE.match(line)
        if match and "/" not in match.group(1):
            yield number, f'include "{match.group(1)}" by its path from the top of the repository'


def pure_folders_stay_pure(source: Source) -> Iterator[Finding]:
    if not source.path.startswith(PURE):
        return
    for number, line in enumerate(source.lines, 1):
        if IMPURE_HEADERS.match(line):
            yield number, f"{line.strip()} in a pure folder; take it as an argument instead"


def times_are_monotonic(source: Source) -> Iterator[Finding]:
    if not source.path.startswith(PRODUCT) or not source.path.endswith(C_FAMILY + (".py",)):
        return
    for number, line in enumerate(source.lines, 1):
        if WALL_CLOCK.search(line) and "style-ok" not in line:
            yield number, "a clock that may step; read the monotonic one"


def headers_say_what_they_are(source: Source) -> Iterator[Finding]:
    if not source.path.endswith((".h", ".hpp")):
        return
    if not source.lines or not source.lines[0].startswith(("//", "/*")):
        yield 1, "a header starts with what it is, what it is not, and who calls it"
    # Highway reads -inl.h files once for each instruction set.
    guarded = any(line.startswith(("#pragma once", "#ifndef ")) for line in source.lines)
    if not guarded and not source.path.endswith("-inl.h"):
        yield 1, "header without #pragma once"


def open_ends_have_an_issue(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if OPEN_END.search(line) and "style-ok" not in line:
            yield number, "open end without an issue; do it now, or write TODO(#number)"  # style-ok


def lines_fit(source: Source) -> Iterator[Finding]:
    if not source.path.endswith(TEXT) and source.path != "run":
        return
    for number, line in enumerate(source.lines, 1):
        if len(line) > MAX_COLUMNS and "http" not in line:
            yield number, f"{len(line)} columns; wrap at {MAX_COLUMNS}"


def files_are_short(source: Source) -> Iterator[Finding]:
    if source.path == PUBLIC_HEADER:
        return
    if source.path.endswith(TEXT) and len(source.lines) > MAX_LINES:
        yield MAX_LINES + 1, f"{len(source.lines)} lines; split at {MAX_LINES}, by idea"


def facades_stay_above(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        match = INCLUDE.match(line)
        parts = FACADES.get(match.group(1)) if match else None
        if parts and os.path.dirname(source.path) == os.path.dirname(match.group(1)) \
                and not source.path.startswith(parts):
            yield number, f"a part of {match.group(1)} includes it; what both need stands below"


def no_path_of_one_machine(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines, 1):
        if MACHINE_PATH.search(line) and "style-ok" not in line:
            yield number, "a path of one machine"


RULES: List[Callable[[Source], Iterator[Finding]]] = [
    includes_start_at_the_root, pure_folders_stay_pure, times_are_monotonic,
    headers_say_what_they_are, open_ends_have_an_issue, lines_fit, files_are_short,
    facades_stay_above, no_path_of_one_machine,
]


def check(source: Source) -> List[str]:
    return [f"{source.path}:{line}: {text}" for rule in RULES for line, text in rule(source)]


def tracked_files(root: str) -> List[str]:
    """What git tracks; in a tree without git, all that is not a build output."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
        return [name for name in names if os.path.isfile(os.path.join(root, name))]
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders
                         if name not in (".git", "build", "dist", "demo-out", "__pycache__")]
        found += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return found


def read(root: str, path: str) -> Optional[Source]:
    try:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            return Source(path, file.read().split("\n")[:-1])
    except UnicodeDecodeError:
        return None  # a binary file, such as a corpus entry


def folders_without_readme(paths: List[str]) -> List[str]:
    code = {os.path.dirname(path) for path in paths if path.endswith(C_FAMILY)}
    readmes = {os.path.dirname(path) for path in paths if os.path.basename(path) == "README.md"}

    def covered(folder: str) -> bool:
        # One page serves the unit tests of all parts, and one the public headers.
        parents = [folder[:at] for at, char in enumerate(folder) if char == "/"] + [folder]
        shared = [name for name in parents
                  if name.startswith(("tests/unit", "client/include", "client/examples"))]
        return bool(readmes & ({folder} | set(shared)))

    return [f"{folder}/README.md:1: missing; what lives here, what may it include, where to start"
            for folder in sorted(code) if folder and not covered(folder)]


def blobs(root: str, paths: List[str]) -> List[str]:
    """Files that make every clone heavier for good."""
    sizes = [(path, os.path.getsize(os.path.join(root, path))) for path in paths]
    return [f"{path}:1: {size >> 10} KiB; keep files below {MAX_BYTES >> 10}: pack it, or derive it"
            for path, size in sizes if size > MAX_BYTES]


def unused(sources: List[Source]) -> List[str]:
    """Files that no other file names: a header that nothing includes, a source that no
    CMakeLists.txt lists, a module that nothing imports, anything else that no page, script or test
    names. Tests are listed without `test_` or `_test`, in their own folder."""
    included, listed, imported = set(), set(), set()
    named = {}  # of each file, all its words
    for source in sources:
        text = "\n".join(source.lines)
        named[source.path] = words = {word for found in WORD.findall(text)
                                      for word in (found, os.path.basename(found))}
        if source.path.endswith("CMakeLists.txt"):
            listed |= words
        elif source.path.endswith(C_FAMILY):
            included |= {os.path.basename(name) for name in ANY_INCLUDE.findall(text)}
        elif source.path.endswith(".py"):
            imported |= {word for line in source.lines if IMPORT.match(line)
                         for word in re.findall(r"\w+", line)}

    def is_used(path: str) -> bool:
        folder, name = os.path.split(path)
        stem = name.split(".")[0]
        if name in NAMED_BY_TOOLS or path.startswith(KNOWN_TO_TOOLS):
            return True
        if name.endswith((".h", ".hpp")):
            return name in included
        if name.endswith(C_FAMILY):
            return name in listed
        if name.endswith(".py") and stem in imported:
            return True
        near = {stem, stem.removeprefix("test_"), stem.removesuffix("_test")}
        return any(name in words or path in words or
                   os.path.dirname(other) == folder and near & words
                   for other, words in named.items() if other != path)

    return [f"{source.path}:1: nothing names it; use it or delete it" for source in sources
            if not is_used(source.path)]


def types_of_one_name(sources: List[Source]) -> List[str]:
    """Two types of the product with one name in one namespace: one of them is found by chance."""
    first, findings = {}, []
    for source in sources:
        if not source.path.startswith(PRODUCT) or not source.path.endswith(C_FAMILY):
            continue
        scope: List[str] = []
        for number, line in enumerate(source.lines, 1):
            opened, found = NAMESPACE.match(line), TYPE.match(line)
            if opened:
                scope.append(opened.group(1) or source.path)  # without a name: the file's own
            elif line.startswith("}  // namespace"):
                scope.pop()
            elif found and scope:
                key = ("::".join(scope), found.group(1) or found.group(2))
                place = first.setdefault(key, f"{source.path}:{number}")
                if place != f"{source.path}:{number}":
                    findings.append(f"{source.path}:{number}: {'::'.join(key)} is also in {place}")
    return findings


def long_pages(sources: List[Source]) -> List[str]:
    """Pages that are more than a page. The benches' are what they are."""
    counts = [(source.path, len(re.findall(r"\S*\w\S*", "\n".join(source.lines))),
               MAX_PAGE_WORDS if "/" in source.path else MAX_TOP_PAGE_WORDS)
              for source in sources
              if os.path.basename(source.path) == "README.md"
              and not source.path.startswith("bench/")]
    return [f"{path}:1: {count} words; such a page has {most} at most"
            for path, count, most in counts if count > most]


def broken_links(sources: List[Source], paths: List[str]) -> List[str]:
    """Links of pages to files that are not there, or to headings that a page has not."""
    known = set(paths) | {os.path.dirname(path) for path in paths} | {"."}
    known |= {parent for path in list(known)
              for parent in (path[:at] for at, char in enumerate(path) if char == "/")}
    headings = {source.path: {anchor_of(line) for line in source.lines if line.startswith("#")}
                for source in sources if source.path.endswith(".md")}
    found = []
    for source in sources:
        if not source.path.endswith(".md"):
            continue
        folder = os.path.dirname(source.path)
        for number, line in enumerate(unquoted(source.lines), 1):
            for link in LINK.findall(line):
                target, _, anchor = link.partition("#")
                path = os.path.normpath(os.path.join(folder, target)) if target else source.path
                if path not in known or anchor and anchor not in headings.get(path, ()):
                    found.append(f"{source.path}:{number}: link to {link}, which is not there")
    return found


def missing_tests(sources: List[Source]) -> List[str]:
    """C++ tests that a page names and that are not there."""
    tests = {f"{match.group(1)}.{match.group(2)}" for source in sources
             if source.path.endswith(".cc") for match in TEST.finditer("\n".join(source.lines))}
    return [f"{source.path}:{number}: there is no test {name}" for source in sources
            if source.path.startswith("docs/") and source.path.endswith(".md")
            for number, line in enumerate(source.lines, 1)
            for name in NAMED_TEST.findall(line) if name not in tests]


def anchor_of(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower())
    return words.replace(" ", "-")


def unquoted(lines: List[str]) -> Iterator[str]:
    """The lines of a page, those of code as empty ones."""
    code = False
    for line in lines:
        if line.startswith("```"):
            code = not code
        yield "" if code or line.startswith("    ") else line


def pages_without_title(sources: List[Source]) -> List[str]:
    """Pages that a formatter of code has gone over begin with "#title"."""
    return [f"{source.path}:1: a page begins with its title, '# ...'" for source in sources
            if source.path.endswith(".md") and not source.lines[0].startswith("# ")]


def misformatted(root: str, paths: List[str]) -> List[str]:
    """Files that clang-format would change. Another version of it has other opinions: skipped."""
    tool = shutil.which("clang-format")
    if tool is None:
        return []
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    if f"version {CLANG_FORMAT_VERSION}" not in version:
        return []
    files = [path for path in paths if path.endswith(C_FAMILY)]
    dry = subprocess.run([tool, "--dry-run", *files], cwd=root, capture_output=True, text=True,
                         check=False)
    changed = {line.split(":", 1)[0] for line in dry.stderr.splitlines()
               if "[-Wclang-format-violations]" in line}
    return [f"{path}:1: not formatted; ./run fmt" for path in sorted(changed)]


def bad_shell(root: str, sources: List[Source]) -> List[str]:
    tool = shutil.which("shellcheck")
    scripts = [s.path for s in sources if s.lines and re.match(r"#!.*\b(ba)?sh$", s.lines[0])]
    if tool is None or not scripts:
        return []
    run = subprocess.run([tool, "-f", "gcc", *scripts], cwd=root, capture_output=True, text=True,
                         check=False)
    return run.stdout.splitlines()


def main() -> int:
    root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    paths = tracked_files(root)
    sources = [source for source in (read(root, path) for path in paths) if source]
    findings = [finding for source in sources for finding in check(source)]
    findings += folders_without_readme(paths) + long_pages(sources) + pages_without_title(sources)
    findings += broken_links(sources, paths) + missing_tests(sources)
    findings += blobs(root, paths) + unused(sources) + types_of_one_name(sources)
    findings += large_classes(((source.path, "\n".join(source.lines)) for source in sources
                               if source.path.endswith(C_FAMILY)), CEILINGS)
    findings += misformatted(root, paths) + bad_shell(root, sources)
    for finding in findings:
        print(finding)
    print(f"style: {len(sources)} files, {len(findings)} findings")
    return 1 if findings or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
