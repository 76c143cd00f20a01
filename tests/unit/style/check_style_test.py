"""Each style rule reports its bad sample and nothing in the good one."""

import tempfile
import unittest

from check_style import (Source, blobs, broken_links, check, folders_without_readme, long_pages,
                         missing_tests, pages_without_title, types_of_one_name, unused)

HEADER = "// What it is."

BAD = [
    ("dataplane/core/a.cc", '#include "queue.h"', "by its path"),
    ("aggregator/core/a.cc", "#include <chrono>", "in a pure folder"),
    ("config/a.h", "#pragma once", "starts with what it is"),
    ("config/a.h", HEADER, "without #pragma once"),
    ("config/a.cc", "// TODO: later", "open end without an issue"),  # style-ok
    ("client/bcube/a.cc", "#include <chrono>", "in a pure folder"),
    ("dataplane/ops/a.cc", "auto now = std::chrono::system_clock::now();", "a clock that may step"),
    ("client/python/sluice/a.py", "begun_s = time.time()", "a clock that may step"),
    ("config/a.cc", "x" * 101, "101 columns"),
    ("client/device/cuda/a.cu", "x" * 101, "101 columns"),
    ("config/a.cc", "\n" * 500 + "x", "501 lines"),
    ("aggregator/core/slot.cc", '#include "aggregator/core/shard.h"', "a part of"),
    ("run", "cd /home/" + "someone", "a path of one machine"),
]

GOOD = [
    ("client/transport/udp/a.cc", "#include <chrono>"),
    ("client/python/sluice/a.py", "begun_s = time.monotonic()"),
    ("config/a.h", HEADER + "\n#pragma once"),
    ("config/a.cc", "// TODO(#12): later"),
    ("config/a.cc", "x" * 100),
    ("config/a.toml", "x" * 101),
    ("aggregator/core/shard_reply.cc", '#include "aggregator/core/shard.h"'),
    ("client/bcube/relay.cc", '#include "client/core/session.h"'),
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

    def test_a_file_that_nothing_names_is_found(self):
        def tree(*rows):
            return unused([Source(path, text.split("\n")) for path, text in rows])
        user = ("a/main.cc", '#include "a/used.h"')
        build = ("a/CMakeLists.txt", "add_executable(a main.cc)\ntest(job)\nrun(tools/x.sh)")
        script = ("b/run.py", "from b import used")
        page = ("b/README.md", "`run.py`, `data.csv`")
        used = [user, build, script, page, ("a/used.h", ""), ("b/used.py", ""), ("b/data.csv", ""),
                ("a/test_job.py", ""), ("a/tools/x.sh", "")]
        self.assertEqual(tree(*used), [])
        for path in ("a/unused.h", "a/unused.cc", "b/unused.py", "b/unused.csv", "a/test_it.py"):
            findings = tree(*used, (path, ""))
            self.assertEqual(len(findings), 1, (path, findings))
            self.assertIn(path, findings[0])
        self.assertIn("a/main.cc", tree(user, ("a/used.h", ""), ("a/README.md", "main.cc"))[0])

    def test_two_types_of_one_name_in_a_namespace_are_found(self):
        def file(path, *lines):
            return Source(path, ["namespace sluice::agg {", *lines, "}  // namespace sluice::agg"])
        member = file("aggregator/core/job.h", "struct alignas(64) Member {", "  enum class Kind {",
                      "};")
        twins = ("class Member final : public Base {", "struct [[nodiscard]] Member {};",
                 "enum class Member : std::uint8_t { kOne };", "using Member = int;")
        for twin in twins:
            findings = types_of_one_name([member, file("aggregator/jobs/entry.h", twin)])
            self.assertEqual(len(findings), 1, (twin, findings))
            self.assertIn("entry.h:2: sluice::agg::Member is also in aggregator/core/job.h:2",
                          findings[0])
        others = [file("aggregator/jobs/a.cc", "namespace {", "struct Member {", "}  // namespace"),
                  file("aggregator/jobs/b.cc", "namespace {", "struct Member {", "}  // namespace"),
                  file("aggregator/jobs/c.h", "struct Member;", "struct Kind {"),
                  file("tests/unit/jobs/d.h", "struct Member {")]
        self.assertEqual(types_of_one_name([member, *others]), [])

    def test_large_files_and_long_pages_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, size in (("small.bin", 200 << 10), ("large.bin", (200 << 10) + 1)):
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(bytes(size))
            self.assertEqual(len(blobs(folder, ["small.bin", "large.bin"])), 1)
        pages = [Source(path, ["word " * 601]) for path in ("a/README.md", "README.md",
                                                            "bench/README.md")]
        self.assertEqual(len(long_pages(pages)), 1)
        self.assertEqual(len(long_pages([Source("README.md", ["word " * 901])])), 1)
        self.assertEqual(long_pages([Source("a/README.md", ["word " * 600])]), [])

    def test_links_to_what_is_not_there_are_found(self):
        pages = [Source("a/README.md", ["# One: two", "[x](../b.md#two-words) [y](#one-two)",
                                        "[z](https://a.b) [f](..) `g`", "```", "[q](none)", "```"]),
                 Source("b.md", ["# Two words", "[v](a/README.md#two)", "[w](a/c.md)"])]
        found = broken_links(pages, [page.path for page in pages] + ["a/x.cc"])
        self.assertEqual([line.split(":")[:2] for line in found], [["b.md", "2"], ["b.md", "3"]])

    def test_names_of_tests_that_are_not_there_are_found(self):
        code = Source("a_test.cc", ["TEST_F(Loss, is_no_loss) {", "TEST(", "    Ends, at_last) {}"])
        page = Source("docs/a.md", ["# A", "`Loss.is_no_loss`, `Ends.at_last`", "`Loss.is_one`"])
        self.assertEqual([line.split(":")[1] for line in missing_tests([code, page])], ["3"])

    def test_pages_without_a_title_are_found(self):
        pages = [Source("a/README.md", ["# a"]), Source("b/README.md", ["#b / c"])]
        self.assertEqual([found[:8] for found in pages_without_title(pages)], ["b/README"])


if __name__ == "__main__":
    unittest.main()
