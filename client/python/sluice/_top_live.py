"""What `top` does: scrapes, remembers some seconds of it, and draws by rich. Main thread.

Imports rich and prometheus_client, which only `top` needs.
"""

import collections
import contextlib
import http.client
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.segment import SegmentLines
from rich.text import Text

from sluice import _top_model, _top_text

_TIMEOUT_S = 3.0
_WINDOW_S = 10.0  # rates are about this long, or a few intervals when those are longer
_MAX_BYTES = 64 << 20
_TICK_S = 0.25  # a resized window is redrawn after this

_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_KEYS = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1,
         b"\x1b[5~": -10, b"\x1b[6~": 10, b" ": 10}


class Unusable(Exception):
    """The endpoint does not answer with Sluice's metrics; the text says what to do."""


class Ended(Exception):
    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def fetch(url, timeout_s=_TIMEOUT_S):
    """A Scrape of the endpoint. Blocks for about `timeout_s`; Unusable names the URL and a remedy.

    No proxy is asked: the endpoint is on this network.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    hint = ("is sluiced running, and is this the metrics.address of its configuration (default "
            "127.0.0.1:9464)? On another machine give its address: python3 -m "
            "sluice top HOST:PORT")
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            body = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise Unusable(f"{url}: the server answers {error.code} {error.reason}: {hint}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise Unusable(f"{url}: no answer ({reason}): {hint}") from None
    if len(body) > _MAX_BYTES:
        raise Unusable(f"{url}: the page is larger than {_MAX_BYTES >> 20} MiB: {hint}")
    try:
        families = list(text_string_to_metric_families(body.decode("utf-8")))
    except (ValueError, LookupError) as error:
        raise Unusable(f"{url}: not a page of metrics ({error}), it begins with {body[:40]!r}: "
                       f"{hint}") from None
    scrape = _top_model.Scrape(families, time.monotonic())
    if "sluice_jobs" not in scrape.samples:
        raise Unusable(f"{url}: metrics of something else, without sluice_jobs: {hint}")
    return scrape


class History:
    """The scrapes of the last seconds: rates are about the oldest and the newest of them."""

    def __init__(self, window_s):
        self._window_s = window_s
        self._scrapes = collections.deque()
        self._view = None  # of these scrapes, once it was asked for

    def add(self, scrape):
        if self._scrapes and _restarted(scrape, self._scrapes[-1]):
            self._scrapes.clear()
        self._scrapes.append(scrape)
        self._view = None
        while len(self._scrapes) > 2 and (
                scrape.time_s - self._scrapes[1].time_s >= self._window_s):
            self._scrapes.popleft()

    def view(self):
        """None before the first scrape."""
        if self._view is None and self._scrapes:
            self._view = _top_model.view(self._scrapes[-1], self._scrapes[0])
        return self._view


def _restarted(scrape, before):
    """Whether the appliance's counters began again."""
    now, then = (sum(one.rows("sluice_lcore_loops_total", "lcore").values())
                 for one in (scrape, before))
    return now < then


def _console(**options):
    """A console that prints words as they are: no markup, no emoji, nothing highlighted."""
    return Console(markup=False, emoji=False, highlight=False, **options)


class Screen:
    """The terminal while `top` draws on it: alternate screen, no echo. A context manager."""

    def __init__(self, console, keyboard):
        self.console = console
        self._keyboard = keyboard if keyboard.isatty() else None
        self._saved = None
        self.changed = False  # the screen was taken away, or lost what was on it

    def __enter__(self):
        self._handlers = {number: signal.signal(number, handler) for number, handler in (
            (signal.SIGTERM, self._end), (signal.SIGHUP, self._end), (signal.SIGTSTP, self._stop))}
        self._take()
        return self

    def __exit__(self, *_exc):
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _take(self):
        if self._keyboard is not None:
            self._saved = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self.console.set_alt_screen(True)
        self.console.show_cursor(False)
        self.changed = True

    def _give_back(self):
        with contextlib.suppress(OSError):
            self.console.show_cursor(True)
            self.console.set_alt_screen(False)
        if self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)

    def _end(self, number, _frame):
        raise Ended(number)

    def _stop(self, _number, _frame):
        """Ctrl-Z: gives the terminal back, stops, and takes it again when continued."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()

    def keys(self, timeout_s):
        """The keys that were pressed, as bytes each; an empty list when none came in time."""
        if self._keyboard is None:
            time.sleep(timeout_s)
            return []
        if not select.select([self._keyboard], [], [], timeout_s)[0]:
            return []
        return _KEY.findall(os.read(self._keyboard.fileno(), 256)) or [b"q"]  # hung up


class Live:
    """Scrapes and draws until q. Main thread."""

    def __init__(self, url, interval_s, screen):
        self._url = url
        self._interval_s = interval_s
        self._screen = screen
        self._history = History(max(_WINDOW_S, 3 * interval_s))
        self._problem = ""
        self._answered_s = time.monotonic()
        self._offset = 0

    def run(self, first):
        self._history.add(first)
        next_s = first.time_s + min(self._interval_s, 1.0)  # rates soon
        drawn = None
        while True:
            if time.monotonic() >= next_s:
                self._scrape()
                next_s = max(next_s + self._interval_s, time.monotonic())
                drawn = None
            size = self._screen.console.size
            if drawn != size or self._screen.changed:
                self._screen.changed = False
                self._draw(size)
                drawn = size
            for key in self._screen.keys(max(0.0, min(_TICK_S, next_s - time.monotonic()))):
                if key in (b"q", b"Q"):
                    return
                if key in _KEYS:
                    self._offset = max(0, self._offset + _KEYS[key])
                    drawn = None

    def _scrape(self):
        try:
            self._history.add(fetch(self._url))
            self._problem = ""
            self._answered_s = time.monotonic()
        except Unusable as error:
            age_s = time.monotonic() - self._answered_s
            self._problem = f"numbers are {age_s:.0f} s old: {error}"

    def _draw(self, size):
        console, view = self._screen.console, self._history.view()
        head = [Text(_heading(self._url, view), _top_text.TITLE, no_wrap=True)]
        if self._problem:
            head.append(Text(self._problem, _top_text.ALARM, no_wrap=True))
        space = max(1, size.height - len(head) - 1)
        options = console.options.update(width=size.width, height=None)
        lines = console.render_lines(_top_text.frame(view, size.width, space), options)
        self._offset = min(self._offset, max(0, len(lines) - space))
        more = len(lines) - space - self._offset
        foot = "q quits" + (f"   arrows scroll: {more} lines below" if more > 0 else
                            "   arrows scroll" if self._offset else "")
        lines = lines[self._offset:self._offset + space]
        lines += [[]] * (space - len(lines))
        console.update_screen(Group(*head, SegmentLines(lines, new_lines=True),
                                    Text(foot, _top_text.HEAD)))


def _heading(url, view):
    span = f"  rates over {view.span_s:.0f} s" if view.span_s >= 1 else ""
    return f"sluice top  {time.strftime('%H:%M:%S')}{span}  {url}"


def once(url, interval_s, out):
    """Two scrapes, one interval apart, and one frame."""
    history = History(interval_s)
    history.add(fetch(url))
    time.sleep(interval_s)
    history.add(fetch(url))
    view = history.view()
    console = _console(file=out, width=shutil.get_terminal_size((100, 0)).columns)
    with console.capture() as captured:
        console.print(_heading(url, view))
        console.print(_top_text.frame(view, console.width))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=out)


def watch(url, interval_s):
    """Draws on the terminal until q."""
    first = fetch(url)
    with Screen(_console(), sys.stdin) as screen:
        Live(url, interval_s, screen).run(first)
