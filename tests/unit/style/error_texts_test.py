"""docs/errors.md has every error text of the product, and none that the product has not."""

import re
import unittest
from pathlib import Path

from error_texts import GAP, all_texts, texts_of_c

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "errors.md"
# Classes whose texts name a caller's mistake and its remedy: one row each is enough.
BY_CLASS = {"InvalidArgument", "Busy", "Internal", "Forked", "Interrupted", "ValueError",
            "Unusable", "TraceError", "DemoError", "ArgumentTypeError"}
HELPERS = {"_bad": "InvalidArgument", "Other": ""}  # functions that make an exception
NOT_AN_ERROR = {"_Stopped", "_Ended", "_Odd", "make", "with_traceback"}
OF_THE_CONFIGURATION = "FILE:LINE:"  # written by config/reader.cc, which knows no text as a whole


def phrases(page):
    """What stands in backticks in the first column of the tables with three columns."""
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "`" in row[0]]
    return [phrase for row in rows for phrase in re.findall(r"`([^`]+)`", row[0])]


def pattern(phrase):
    words = (re.escape(" ".join(part.split())) for part in phrase.split(GAP))
    return re.compile(rf"\s*{GAP}\s*".join(word.replace(r"\ ", r"\s+").strip() for word in words))


def missing(texts, page):
    found = phrases(page)
    patterns = [pattern(phrase) for phrase in found]
    for text in texts:
        kind = HELPERS.get(text.kind, text.kind)
        if kind in NOT_AN_ERROR or len(re.findall(r"\w{2,}", text.text)) < 3:  # a part of a text
            continue
        if kind in BY_CLASS and kind in found:
            continue
        if not any(one.search(text.text) for one in patterns):
            yield f"{text.place}: {text.kind}: {text.text}"


class ErrorTexts(unittest.TestCase):
    def setUp(self):
        self.page = PAGE.read_text()
        self.texts = all_texts(ROOT)

    def test_the_page_has_every_text(self):
        self.assertGreater(len(self.texts), 300, "the source is not read as it is written")
        self.assertEqual(list(missing(self.texts, self.page)), [])

    def test_the_page_has_no_text_that_nobody_says(self):
        said = [text.text for text in self.texts]
        kinds = {HELPERS.get(text.kind, text.kind) for text in self.texts}
        stale = [phrase for phrase in phrases(self.page)
                 if phrase not in kinds and phrase != OF_THE_CONFIGURATION
                 and not any(pattern(phrase).search(text) for text in said)]
        self.assertEqual(stale, [])

    def test_a_text_that_is_new_is_found_missing(self):
        source = ('return Status(StatusCode::kRefused, "the disk " + name +\n'
                  '              " burns; call \\"somebody\\"");')
        new = list(texts_of_c("config/new.cc", source))
        self.assertEqual([text.text for text in new], [f'the disk {GAP} burns; call "somebody"'])
        self.assertEqual(len(list(missing(new, self.page))), 1)
        page = self.page + "\n| `the disk … burns` | a | b |\n"
        self.assertEqual(list(missing(new, page)), [])

    def test_a_refusal_has_gaps_for_its_values(self):
        source = 'text("job %s has %zu " "MiB", name, size)'
        new = list(texts_of_c("aggregator/jobs/new.cc", source))
        self.assertEqual([(one.kind, one.text) for one in new],
                         [("Notice", f"job {GAP} has {GAP} MiB {GAP}")])


if __name__ == "__main__":
    unittest.main()
