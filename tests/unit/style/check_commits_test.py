"""Each rule for commit messages reports its bad sample and nothing in the good ones."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from check_commits import THIS_FILE, Commit, check, commits_since

BAD = [
    ("store: " + "k" * 70, "Why.", "77 characters"),
    ("store: keep values", "\n", "the body says why"),
    ("Merge branch 'topic'", "", "a bare merge"),
    ("store: keeps values", "Why.", "imperative"),
    ("Added a store", "Why.", "imperative"),
    ("client, bcube: adding a store", "Why.", "imperative"),
    ("store: the values are kept", "Why.", "imperative"),
]
GOOD = ["store: keep values", "Feed the store", "jobs: pass a chunk", "client/core: focus",
        "run: address a box", "store: discuss it: why"]


class CommitMessages(unittest.TestCase):
    def test_every_bad_sample_breaks_its_own_rule_only(self):
        for title, body, expected in BAD:
            found = check(Commit("0", title, body))
            self.assertEqual(len(found), 1, (title, found))
            self.assertIn(expected, found[0])

    def test_good_samples_break_none(self):
        for title in GOOD:
            self.assertEqual(check(Commit("0", title, "Why.")), [], title)

    def test_commits_before_the_rules_are_left_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            def git(*arguments):
                subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b",
                                *arguments], check=True, capture_output=True)

            git("init")
            self.assertEqual(commits_since(folder), [])
            git("commit", "--allow-empty", "-m", "Old")
            file = Path(folder, THIS_FILE)
            file.parent.mkdir(parents=True)
            file.touch()
            git("add", ".")
            git("commit", "-m", "Rules")
            self.assertEqual(commits_since(folder), [])
            git("commit", "--allow-empty", "-m", "New", "-m", "Why\nand how.")
            git("commit", "--allow-empty", "-m", "Newer")
            self.assertEqual([(one.title, one.body.strip()) for one in commits_since(folder)],
                             [("Newer", ""), ("New", "Why\nand how.")])


if __name__ == "__main__":
    unittest.main()
