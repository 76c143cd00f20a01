"""Processes that company.py holds stand still, and stay as a test has left them meanwhile."""
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from company import held

COUNT = """
import itertools, os, sys, threading, time
def count(path):
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    for number in itertools.count():
        os.pwrite(file, b"%020d" % number, 0)
        time.sleep(0.001)
threading.Thread(target=count, args=(sys.argv[1],), daemon=True).start()
count(sys.argv[2])
"""


CHILD = '"$@" & echo $!; wait $!; echo $?'


class Counting:
    """A process of two threads that both count, and its parent: a shell that says how it ended."""

    def __init__(self, directory):
        self.files = [directory / "first", directory / "second"]
        command = [sys.executable, "-c", COUNT, *map(str, self.files)]
        self.parent = subprocess.Popen(["sh", "-c", CHILD, "sh", *command],
                                       stdout=subprocess.PIPE, text=True)
        self.pid = int(self.parent.stdout.readline())
        self.await_progress()

    def numbers(self):
        return [path.read_text() if path.exists() else "" for path in self.files]

    def await_progress(self):
        before = self.numbers()
        while any(new in ("", old) for new, old in zip(self.numbers(), before)):
            time.sleep(0.01)

    def state(self):
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def send(self, kind):
        os.kill(self.pid, kind)

    def end(self):
        """Its status, as a shell has it."""
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        return self.parent.communicate()[0].strip()


@pytest.fixture
def counting(tmp_path):
    counting = Counting(tmp_path)
    yield counting
    if counting.parent.returncode is None:
        counting.end()


def test_a_held_process_stands_still_and_goes_on(counting):
    with held(counting.pid):
        before = counting.numbers()
        time.sleep(0.1)
        assert counting.numbers() == before
    counting.await_progress()


def test_one_that_was_stopped_meanwhile_stays_so(counting):
    with held(counting.pid):
        counting.send(signal.SIGSTOP)
    while counting.state() != "T":
        time.sleep(0.01)
    before = counting.numbers()
    time.sleep(0.1)
    assert counting.numbers() == before and counting.state() == "T"
    counting.send(signal.SIGCONT)
    counting.await_progress()


def test_one_that_was_stopped_before_and_is_continued_meanwhile_goes_on(counting):
    counting.send(signal.SIGSTOP)
    with held(counting.pid):
        counting.send(signal.SIGCONT)
    counting.await_progress()


def test_the_parent_learns_of_the_end_of_one_that_was_killed_meanwhile(counting):
    with held(counting.pid):
        counting.send(signal.SIGKILL)
    assert counting.end() == str(128 + signal.SIGKILL)


def test_one_that_has_ended_is_left_alone(counting):
    counting.end()
    with held(counting.pid):
        pass
