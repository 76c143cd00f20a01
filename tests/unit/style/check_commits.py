"""The rules for commit messages, over every commit that follows the one that added this file.

    python3 check_commits.py ROOT

Prints one line a finding, `commit "title": rule`, and exits 1 if there is any. Without git, or
without a history, there is nothing to check.
"""

import os
import re
import subprocess
import sys
from typing import List, NamedTuple

MAX_TITLE = 72
AREA = re.compile(r"[\w./, -]+: ")
# "Added", "adding", "adds": a title says what applying the commit does.
OTHER_MOODS = re.compile(r"(?!(need|feed|seed|embed|exceed|shed|speed|bring|ping|string)\b)"
                         r"(\w+(ed|ing)|\w*[^su\W]s)\b", re.IGNORECASE)
NOUNS = re.compile(r"(the|an?|one|some|all|no|every|its?|this|that|what|who|how|when)\b",
                   re.IGNORECASE)
THIS_FILE = "tests/unit/style/check_commits.py"


class Commit(NamedTuple):
    name: str
    title: str
    body: str


def check(commit: Commit) -> List[str]:
    found = []
    if commit.title.startswith(("Merge branch", "Merge remote")):
        return ["a bare merge: rebase, or say what the merge brings"]
    if len(commit.title) > MAX_TITLE:
        found.append(f"{len(commit.title)} characters; at most {MAX_TITLE}")
    first = AREA.sub("", commit.title, count=1)
    if OTHER_MOODS.match(first) or NOUNS.match(first):
        found.append("begin with a verb in the imperative, behind the area: \"store: keep ...\"")
    if not commit.body.strip():
        found.append("the body says why")
    return found


def commits_since(root: str) -> List[Commit]:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True,
                              check=False)
        return done.stdout if done.returncode == 0 else ""

    added = git("log", "--diff-filter=A", "--format=%H", "--", THIS_FILE).split()
    if not added:
        return []
    listed = git("log", "--format=%h%x00%s%x00%b%x01", f"{added[-1]}..HEAD")
    return [Commit(*entry.strip("\n").split("\0")) for entry in listed.split("\1") if entry.strip()]


def main() -> int:
    findings = [f'{commit.name} "{commit.title}": {text}'
                for commit in commits_since(os.path.abspath(sys.argv[1]))
                for text in check(commit)]
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
