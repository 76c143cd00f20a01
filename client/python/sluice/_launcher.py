"""Runs the ranks of one run: starts, prints, restarts and stops them. `launch` is around it.

Main thread only. Whatever happens, no process is left behind (_processes.py).
"""

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time

from sluice import errors
from sluice._exit_status import REPORT
from sluice._processes import Child, describe_exit, signal_name, stop_all

_READ_BYTES = 65536
_DRAIN_S = 1.0  # for output that is still in the pipe when a rank has ended
_CAUSE_S = 3.0  # for the end of a rank that another one, whose error this is, has lost
# Before a rank is started again. The appliance gives a rank to another process once the old one was
# silent for 3 s, whether it noticed its death or not.
RESTART_DELAY_S = 4.0


class Printer:
    """Writes lines of several ranks to one stream, each with its rank in front.

    A progress bar redraws its line with carriage returns. On a terminal the latest state of one
    such line stays at the bottom; in a file only its last state is written.
    """

    def __init__(self, stream):
        self._stream = stream
        self._terminal = stream.isatty()
        self._bar = ""

    def line(self, prefix, text):
        clear = "\r\x1b[K" if self._bar else ""
        self._stream.write(f"{clear}{prefix}{text}\n{self._bar}")
        self._stream.flush()

    def bar(self, prefix, text):
        if not self._terminal or not text:
            return
        columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._bar = (prefix + text)[:columns - 1]
        self._stream.write(f"\r\x1b[K{self._bar}")
        self._stream.flush()

    def end_bar(self):
        if self._bar:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._bar = ""


class _Pipe:
    """Splits what a rank writes to one stream into lines and progress bars."""

    def __init__(self, file, printer, prefix, bar_prefix):
        self.file = file
        self.last_line = ""
        self._printer = printer
        self._prefix = prefix
        self._bar_prefix = bar_prefix
        self._rest = b""

    def read(self):
        """Takes what is there. False at the end of the stream."""
        data = os.read(self.file.fileno(), _READ_BYTES)
        if not data:
            if self._rest:
                self._emit(self._rest, final=True)
                self._rest = b""
            return False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._emit(line, final=True)
        if b"\r" in self._rest:
            self._emit(self._rest, final=False)
            self._rest = self._rest[self._rest.rfind(b"\r"):]
        return True

    def _emit(self, raw, final):
        text = raw.decode("utf-8", "replace")
        prefix = self._bar_prefix if "\r" in text else self._prefix
        if "\r" in text:
            text = [part for part in text.split("\r") if part.strip()][-1:]
            text = text[0] if text else ""
            if final:
                self._printer.end_bar()
        if not final:
            self._printer.bar(prefix, text)
        elif text or not raw:
            if not text and not self.last_line:
                return
            self._printer.line(prefix, text)
            self.last_line = text.strip() or self.last_line


class _Rank:
    """One rank of the run: its process of the moment, and how it ended."""

    def __init__(self, rank, command, environment):
        self.rank = rank
        self.command = command
        self.environment = environment
        self.child = None  # None while it waits to be started again
        self.pipes = ()
        self.restarts = 0
        self.start_at = None  # when it waits
        self.status = None  # of its last process, once it will not be started again

    def outcome(self):
        """Words for the rank and how it ended."""
        tries = f" after {_plural(self.restarts, 'restart')}" if self.restarts else ""
        return f"rank {self.rank} ({describe_exit(self.status)}{tries})"


def _plural(count, word):
    return f"{count} {word}{'' if count == 1 else 's'}"


def _named(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank.rank) for rank in ranks)}"


class Launcher:
    """The ranks of one run, from start to end. Main thread only; leaves no process behind."""

    def __init__(self, commands, environments, *, ranks, stdout=None, stderr=None,
                 keep_going=False, restart=0, restart_delay_s=RESTART_DELAY_S, grace_s=5.0,
                 limit_s=None, bar_prefix=True, stop_signal=None):
        self._ranks = [_Rank(*row) for row in zip(ranks, commands, environments)]
        self._keep_going = keep_going
        self._restart = restart
        self._restart_delay_s = restart_delay_s
        self._grace_s = grace_s
        self._limit_s = limit_s
        self._signal = None
        self._stop_signal = stop_signal  # what ranks get for any signal; None: the same one
        self._children = []  # all that were ever started
        self._reports = None  # the folder where each process says which exception ends it
        self._selector = selectors.DefaultSelector()
        self._err = Printer(stderr or sys.stderr)
        self._out = Printer(stdout or sys.stdout)
        self._bar_prefix = bar_prefix
        self.failure = ""  # one line, once a rank has failed
        self.stopped_by = None  # number of the signal that ended the run

    def run(self):
        """Returns 0 when every rank has finished, else the status of the first one that failed
        for good (128 + number for a signal; 124 when the ranks ran longer than `limit_s`)."""
        handlers = {number: signal.signal(number, self._on_signal)
                    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        with tempfile.TemporaryDirectory(prefix="sluice-launch-") as self._reports:
            try:
                for rank in self._ranks:
                    self._start(rank)
                return self._watch()
            finally:
                stop_all(self._children, grace_s=self._grace_s)
                self._drain(time.monotonic() + _DRAIN_S)
                self._out.end_bar()
                self._err.end_bar()
                self._selector.close()
                for child in self._children:
                    child.popen.stdout.close()
                    child.popen.stderr.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)

    def _on_signal(self, number, _frame):
        self._signal = number

    def _start(self, rank):
        environment = {**rank.environment, "SLUICE_RESTART_COUNT": str(rank.restarts),
                       REPORT: self._report_of(rank)}
        rank.child = Child(rank.command, env=environment, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._children.append(rank.child)
        prefix = f"[{rank.rank}] "
        bar_prefix = prefix if self._bar_prefix else ""
        popen = rank.child.popen
        rank.pipes = (_Pipe(popen.stdout, self._out, prefix, bar_prefix),
                      _Pipe(popen.stderr, self._err, prefix, bar_prefix))
        for pipe in rank.pipes:
            self._selector.register(pipe.file, selectors.EVENT_READ, pipe)

    def _read_once(self, timeout_s):
        for key, _ in self._selector.select(timeout_s):
            if not key.data.read():
                self._selector.unregister(key.fileobj)

    def _drain(self, deadline):
        while self._selector.get_map() and time.monotonic() < deadline:
            self._read_once(0.05)

    def _watch(self):
        failed = []  # ranks that will not be started again, in the order of their ends
        waited = False  # for those who were about to end by themselves
        deadline = None if self._limit_s is None else time.monotonic() + self._limit_s
        while any(rank.status is None for rank in self._ranks):
            if self._signal is not None:
                return self._interrupt()
            if deadline is not None and time.monotonic() > deadline:
                self.failure = f"not finished after {self._limit_s:.0f} s; stopped"
                return 124
            if self._selector.get_map():
                self._read_once(0.1)
            else:
                time.sleep(0.05)
            for rank in self._ranks:
                if rank.status is not None:
                    continue
                if rank.child is None:
                    if time.monotonic() >= rank.start_at:
                        self._start(rank)
                    continue
                status = rank.child.poll()
                if status is None:
                    continue
                if status == 0:
                    rank.status = 0
                    continue
                if not waited and self._has_lost_another(rank):
                    waited = True
                    self._await_ends(_CAUSE_S)
                    break  # all of them, in their order
                self._on_failure(rank, status)
                if rank.status is not None:
                    failed.append(rank)
                    if not self._keep_going and not waited:
                        break
            if failed and not self._keep_going:
                break
        self._conclude(failed)
        if not failed:
            return 0
        return failed[0].status if failed[0].status > 0 else 128 - failed[0].status

    def _has_lost_another(self, rank):
        """Would be stopped before it says why it ends, if it takes longer for that."""
        if self._keep_going or rank.restarts < self._restart:
            return False
        try:
            with open(self._report_of(rank)) as file:
                return file.read() == errors.PeerLost.__name__
        except FileNotFoundError:
            return False

    def _report_of(self, rank):
        return os.path.join(self._reports, f"{rank.rank}.{rank.restarts}")

    def _await_ends(self, limit_s):
        """Of all ranks, or a signal."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self._signal is None:
            if all(child.poll() is not None for child in self._children):
                break
            self._read_once(0.05) if self._selector.get_map() else time.sleep(0.05)

    def _on_failure(self, rank, status):
        """Says what happened to a rank, and plans its restart or gives it up."""
        self._drain(time.monotonic() + 0.2)
        out, err = (pipe.last_line for pipe in rank.pipes)
        self.failure = f"rank {rank.rank} (pid {rank.child.pid}) {describe_exit(status)}"
        text = self.failure + (f": {err or out}" if err or out else "")
        others = [other for other in self._ranks if other.status is None and
                  other.child is not None and other.child.poll() is None]
        if rank.restarts < self._restart:
            rank.restarts += 1
            rank.child = None
            rank.start_at = time.monotonic() + self._restart_delay_s
            text += (f"; restarting it in {self._restart_delay_s:g} s "
                     f"({rank.restarts} of {self._restart})")
        else:
            rank.status = status
            if others:
                text += "; still running: " if self._keep_going else "; stopping "
                text += _named(others)
        self._err.end_bar()
        self._err.line("sluice launch: ", text)

    def _conclude(self, failed):
        """The closing line of a run that could go on without a rank."""
        restarted = [rank for rank in self._ranks if rank.restarts]
        if not (failed and self._keep_going or restarted):
            return
        finished = [rank for rank in self._ranks if rank.status == 0]
        text = f"{len(finished)} of {_plural(len(self._ranks), 'rank')} finished"
        again = [rank for rank in restarted if rank.status == 0]
        if again:
            text += "; restarted: " + ", ".join(
                f"rank {rank.rank} ({_plural(rank.restarts, 'time')})" for rank in again)
        if failed:
            # The others may have failed for want of the first.
            text += f"; failed: {failed[0].outcome()}"
            later = sorted(failed[1:], key=lambda rank: rank.rank)
            text += ", then " * bool(later) + ", ".join(rank.outcome() for rank in later)
        self._err.end_bar()
        self._err.line("sluice launch: ", text)

    def _interrupt(self):
        number, self._signal = self._signal, None
        self.stopped_by = number
        self._err.end_bar()
        self._err.line("sluice launch: ", f"{signal_name(number)}: stopping all ranks")
        for child in self._children:
            child.send(self._stop_signal or number)
        self._await_ends(self._grace_s)
        return 128 + number
