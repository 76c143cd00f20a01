"""Each style rule reports its bad sample and nothing in the good one."""

import unittest

from check_style import Source, check, folders_without_readme

HEADER = "// What it is."

BAD = [
    ("dataplane/core/a.cc", '#include "queue.h"', "by its path"),
    ("aggregator/core/a.cc", "#include <chrono>", "in a pure folder"),
    ("config/a.h", "#pragma once", "starts with what it is"),
    ("config/a.h", HEADER, "without #pragma once"),
    ("config/a.cc", "// TODO: later", "open end without an issue"),  # style-ok
    ("config/a.cc", "x" * 101, "101 columns"),
    ("config/a.cc", "\n" * 500 + "x", "501 lines"),
    ("run", "cd /home/" + "someone", "a path of one machine"),
]

GOOD = [
    ("client/transport/udp/a.cc", "#include <chrono>"),
    ("config/a.h", HEADER + "\n#pragma once"),
    ("config/a.cc", "// TODO(#12): later"),
    ("config/a.cc", "x" * 100),
    ("config/a.toml", "x" * 101),
]


class Style(unittest.TestCase):
    def test_every_bad_sample_is_found_under_its_own_rule_only(self):
        for path, text, expected in BAD:
            findings = check(Source(path, text.split("\n")))
            self.assertEqual(len(findings), 1, (path, text[:80], findings))
            self.assertIn(expected, findings[0])

    def test_good_samples_have_no_findings(self):
        for path, text in GOOD:
            self.assertEqual(check(Source(path, text.split("\n"))), [], (path, text[:80]))

    def test_a_folder_of_code_needs_a_page(self):
        self.assertEqual(len(folders_without_readme(["a/x.cc", "b/x.cc", "b/README.md"])), 1)
        self.assertEqual(folders_without_readme(["tests/unit/a/x.cc", "tests/unit/README.md"]), [])


if __name__ == "__main__":
    unittest.main()
