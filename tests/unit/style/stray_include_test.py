"""An include against the floors does not compile: the compiler is asked, with the build's commands.

A file of each folder is preprocessed as the build does it, but with another text. The headers of
this repository that the folder finds are then known, and not read from a list that could be wrong.
"""

import glob
import json
import os
import shlex
import subprocess
import sys
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
BUILD = os.environ.get("SLUICE_BUILD", os.path.join(ROOT, "build"))

UPPER = ("aggregator/appliance", "dataplane/core", "dataplane/host", "dataplane/ops",
         "dataplane/dpdk", "config")
CALLS, LINK = "client/core/calls", "client/core/link"
# A folder of the client's core, and those that it finds.
CORE_FLOORS = {CALLS: set(), LINK: {CALLS}, "client/core/handover": set(),
               "client/core/member": {CALLS},
               "client/core/sums": {CALLS, LINK, "client/core/handover"},
               "client/core/bytes": {CALLS, LINK},
               "client/core/store": {CALLS, LINK}, "client/core/operations": {CALLS, LINK}}
CORE = set(CORE_FLOORS)
CLIENT = ("client", "client/bcube", "client/core", *CORE, "client/prune", "client/sched",
          "client/transport/udp")
TESTS = ("tests/sim", "bench")
DPDK = "rte_mbuf.h"
NOT_CORE = ("client/transport/udp", "aggregator/core/shard.h", "aggregator/core/job.h",
            "aggregator/policy", "aggregator/jobs", *UPPER, *TESTS, DPDK)

# What a folder must not find: all the headers of these folders, or one header by its name.
STRAYS = {
    "aggregator/wire": ("aggregator/core", "aggregator/policy", "aggregator/jobs", *UPPER, *CLIENT),
    "aggregator/policy": ("aggregator/wire", "aggregator/core", "aggregator/jobs", *UPPER, *CLIENT),
    "aggregator/core": ("aggregator/jobs", *UPPER, *CLIENT, *TESTS, DPDK),
    "aggregator/operations": ("aggregator/jobs", *UPPER, *CLIENT, *TESTS, DPDK),
    "aggregator/store": ("aggregator/jobs", *UPPER, *CLIENT, *TESTS, DPDK),
    "aggregator/jobs": (*UPPER, *CLIENT, *TESTS, DPDK),
    "aggregator/appliance": (*UPPER[1:], *CLIENT, *TESTS, DPDK),
    "config": ("aggregator/core", "aggregator/policy", "aggregator/jobs", "dataplane/core",
               "dataplane/dpdk", *CLIENT, *TESTS, DPDK),
    "config/toml": ("aggregator/base", "aggregator/wire", "aggregator/core", "aggregator/jobs",
                    *UPPER, *CLIENT, *TESTS, DPDK),
    "dataplane/core": ("aggregator/core", "aggregator/policy", "aggregator/jobs", "dataplane/host",
                       "dataplane/ops", "dataplane/dpdk", "config", *CLIENT, *TESTS, DPDK),
    "dataplane/host": ("aggregator/core", "aggregator/jobs", "dataplane/ops", "dataplane/dpdk",
                       "config", *CLIENT, *TESTS, DPDK),
    "dataplane/ops": ("dataplane/host", "dataplane/dpdk", "config", *CLIENT, *TESTS, DPDK),
    "dataplane/dpdk": ("dataplane/ops", *CLIENT, *TESTS),
    "dataplane": (*CLIENT, *TESTS, DPDK),
    "client/prune": ("client", "client/core", *CORE, "client/sched", "client/transport/udp",
                     "aggregator/core", "aggregator/wire", *UPPER, *TESTS),
    "client/sched": ("client", "client/core", *CORE, "client/transport/udp", "aggregator/core",
                     "aggregator/wire", *UPPER, *TESTS),
    # Of the box's core the client finds the sums alone: it folds with the same kernels.
    **{folder: ("client", "client/bcube", "client/core", *(CORE - {folder} - below), *NOT_CORE)
       for folder, below in CORE_FLOORS.items()},
    "client/core": ("client", "client/bcube", *NOT_CORE),
    "client/bcube": ("client", "client/transport/udp", "aggregator/core/shard.h",
                     "aggregator/policy", "aggregator/jobs", *UPPER, *TESTS, DPDK),
    "client/transport/udp": ("client/core", *CORE, "client/job.h", "client/transport/inproc",
                             "aggregator/core", "aggregator/jobs", *UPPER, *TESTS, DPDK),
    "client/transport/inproc": ("client/core", *CORE, "client/job.h", *UPPER[1:], *TESTS, DPDK),
    "client/device": ("aggregator/core/shard.h", "aggregator/policy", "aggregator/jobs", *UPPER,
                      *TESTS, DPDK),
    "client": ("aggregator/core/shard.h", "aggregator/policy", "aggregator/jobs", *UPPER, *TESTS,
               DPDK),
    "tests/sim": ("dataplane/dpdk", "dataplane/ops", "config", "client/job.h", "bench", DPDK),
}


def commands():
    """By folder, a compile command for each set of headers that one of its files may find."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        folder = os.path.relpath(os.path.dirname(entry["file"]), ROOT)
        words = shlex.split(entry["command"])
        if "ccache" in os.path.basename(words[0]):
            words = words[1:]
        sees = tuple(word for word in words if word.startswith("-I"))
        found.setdefault(folder, {}).setdefault(sees, (words, entry["directory"]))
    return {folder: list(kinds.values()) for folder, kinds in found.items()}


def compile_text(command, text, *options):
    """Runs the compiler of `command` over `text`: its result, with what it printed."""
    words, directory = command
    kept = [word for at, word in enumerate(words)
            if word not in ("-c", "-o", "-MD") and words[at - 1] not in ("-o", "-c", "-MF", "-MT")
            and word not in ("-MF", "-MT")]
    return subprocess.run([*kept, *options, "-x", "c++", "-"], input=text, cwd=directory,
                          capture_output=True, text=True, check=False)


def headers_of(name):
    if name.endswith(".h"):
        assert name == DPDK or os.path.exists(os.path.join(ROOT, name)), f"{name} has moved"
        return [name]
    found = glob.glob(os.path.join(ROOT, name, "**" if name == "bench" else "", "*.h"),
                      recursive=True)
    return [os.path.relpath(path, ROOT) for path in found if not path.endswith("-inl.h")]


def found_by(command, headers):
    text = "".join(f'#if __has_include("{name}")\nfound {name}\n#endif\n' for name in headers)
    done = compile_text(command, text, "-E", "-P")
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith("found ")]


class StrayIncludes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = commands()

    def test_no_folder_finds_a_header_that_it_must_not_include(self):
        for folder, forbidden in STRAYS.items():
            headers = [header for name in forbidden for header in headers_of(name)]
            self.assertGreater(len(headers), len(forbidden), folder)
            for command in self.commands[folder]:
                with self.subTest(folder=folder):
                    self.assertEqual(found_by(command, headers), [])

    def test_a_folder_finds_its_own_headers(self):
        for folder in STRAYS:
            own = headers_of(folder)
            with self.subTest(folder=folder):
                self.assertIn(own, [found_by(command, own) for command in self.commands[folder]])

    def test_a_stray_include_does_not_compile_and_a_proper_one_does(self):
        command = self.commands["aggregator/jobs"][0]
        proper = compile_text(command, '#include "aggregator/core/shard.h"\n', "-fsyntax-only")
        self.assertEqual(proper.returncode, 0, proper.stderr)
        stray = compile_text(command, '#include "dataplane/core/steer.h"\n', "-fsyntax-only")
        self.assertNotEqual(stray.returncode, 0)
        self.assertIn("No such file or directory", stray.stderr)

    def test_every_folder_of_the_product_has_its_floor_above(self):
        product = {folder for folder in self.commands
                   if folder.startswith(("aggregator", "dataplane", "client", "config"))}
        self.assertEqual(product - set(STRAYS) - {"client/transport", "client/transport/dpdk"},
                         set(), "say in STRAYS what it must not include")


if __name__ == "__main__":
    sys.exit(unittest.main())
