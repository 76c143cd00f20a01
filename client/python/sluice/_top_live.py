"""What `top` does: scrapes, remembers some seconds of it, and draws by rich. Main thread; a thread
more for each answer that is awaited, so that no appliance holds up another, or the keys.

Imports rich and prometheus_client, which only `top` needs.
"""

import collections
import contextlib
import http.client
import os
import queue
import re
import select
import shutil
import signal
import sys
import termios
import threading
import time
import tty
import urllib.error
import urllib.parse
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group
from rich.segment import SegmentLines
from rich.text import Text

from sluice import _top_boxes, _top_model, _top_text, _top_workers

_TIMEOUT_S = 3.0
_WINDOW_S = 10.0  # rates are about this long, or a few intervals when those are longer
_MAX_BYTES = 64 << 20
_TICK_S = 0.25  # a resized window, or an answer, is drawn after this
_PATIENCE_S = 5.0  # a name is looked up, too, and bytes may come one by one
_POLL_S = 0.02

_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_KEYS = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1,
         b"\x1b[5~": -10, b"\x1b[6~": 10, b" ": 10}


class Unusable(Exception):
    """The endpoint does not answer with Sluice's metrics; the text says what to do."""

    def __init__(self, url, what, hint):
        super().__init__(f"{url}: {what}: {hint}")
        self.what, self.hint = what, hint


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
            "127.0.0.1:9464), or the SLUICE_METRICS of a worker? On another machine give its "
            "address: python3 -m sluice top HOST:PORT")
    try:
        with opener.open(url, timeout=timeout_s) as answer:
            body = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        raise Unusable(url, f"the server answers {error.code} {error.reason}", hint) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        raise Unusable(url, f"no answer ({reason})", hint) from None
    if len(body) > _MAX_BYTES:
        raise Unusable(url, f"the page is larger than {_MAX_BYTES >> 20} MiB", hint)
    try:
        families = list(text_string_to_metric_families(body.decode("utf-8")))
    except (ValueError, LookupError) as error:
        raise Unusable(url, f"not a page of metrics ({error}), it begins with {body[:40]!r}",
                       hint) from None
    scrape = _top_model.Scrape(families, time.monotonic())
    if "sluice_jobs" not in scrape.samples and not _is_workers(scrape):
        raise Unusable(url, "metrics of something else, without sluice_jobs or sluice_worker_jobs",
                       hint)
    return scrape


def _is_workers(scrape):
    return "sluice_worker_jobs" in scrape.samples


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
            kind = _top_workers if _is_workers(self._scrapes[-1]) else _top_model
            self._view = kind.view(self._scrapes[-1], self._scrapes[0])
        return self._view


def _restarted(scrape, before):
    """Whether counters of the appliance, or of a worker's job, began again."""
    now, then = (sum(one.rows("sluice_lcore_loops_total", "lcore").values()) +
                 sum(one.rows("sluice_worker_packets_sent_total", "job", "rank").values())
                 for one in (scrape, before))
    return now < then


class Asked:
    """An appliance, what it has said, and the one answer that may be under way. Main thread."""

    def __init__(self, url, window_s):
        self.url = url
        self._name = urllib.parse.urlsplit(url).netloc.removesuffix(":9464") or url
        self._history = History(window_s)
        self._answers = queue.SimpleQueue()  # from the thread that asks
        self._since_s = None  # the answer under way
        self._heard_s = time.monotonic()
        self.error = None  # the last answer was none

    def ask(self):
        if self._since_s is None:
            self._since_s = time.monotonic()
            threading.Thread(target=self._fetch, daemon=True).start()

    def _fetch(self):
        try:
            self._answers.put(fetch(self.url))
        except Unusable as error:
            self._answers.put(error)

    def take(self):
        """Whether something has changed."""
        overdue = self._since_s is not None and time.monotonic() - self._since_s > _PATIENCE_S
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            if not overdue or self.error is not None:
                return False
            answer = Unusable(self.url, f"no answer in {_PATIENCE_S:.0f} s", "it goes on asking")
        else:
            self._since_s = None
        self.error = answer if isinstance(answer, Unusable) else None
        if self.error is None:
            self._history.add(answer)
            self._heard_s = answer.time_s
        return True

    @property
    def awaited(self):
        """It has not said anything, right or wrong, about the last question."""
        return self._since_s is not None and self.error is None

    def box(self):
        return _top_boxes.Box(self._name, self._history.view(),
                              self.error.what if self.error else "",
                              time.monotonic() - self._heard_s)


def ask_all(asked):
    """Returns when each has answered, or had the time for it."""
    for one in asked:
        one.error = None
        one.ask()
    while True:
        for one in asked:
            one.take()
        if not any(one.awaited for one in asked):
            return
        time.sleep(_POLL_S)


def _first_answers(asked):
    """Unusable when nobody has any."""
    ask_all(asked)
    error = asked[0].error
    if all(one.error is not None for one in asked):
        raise error if len(asked) == 1 else Unusable(
            f"none of {len(asked)} pages answers, the first one, {asked[0].url}",
            error.what, error.hint)


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

    def __init__(self, asked, interval_s, screen):
        self._asked = asked
        self._interval_s = interval_s
        self._screen = screen
        self._offset = 0

    def run(self):
        next_s = time.monotonic() + min(self._interval_s, 1.0)  # rates soon
        drawn = None
        while True:
            if time.monotonic() >= next_s:
                for one in self._asked:
                    one.ask()
                next_s = max(next_s + self._interval_s, time.monotonic())
            if any([one.take() for one in self._asked]):
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

    def _draw(self, size):
        console = self._screen.console
        head = [Text(_heading(self._asked), _top_text.TITLE, no_wrap=True)]
        if len(self._asked) == 1 and self._asked[0].error:
            head.append(Text(f"numbers are {self._asked[0].box().age_s:.0f} s old: "
                             f"{self._asked[0].error}", _top_text.ALARM, no_wrap=True))
        space = max(1, size.height - len(head) - 1)
        options = console.options.update(width=size.width, height=None)
        lines = console.render_lines(_frame(self._asked, size.width, space), options)
        self._offset = min(self._offset, max(0, len(lines) - space))
        more = len(lines) - space - self._offset
        foot = "q quits" + (f"   arrows scroll: {more} lines below" if more > 0 else
                            "   arrows scroll" if self._offset else "")
        lines = lines[self._offset:self._offset + space]
        lines += [[]] * (space - len(lines))
        console.update_screen(Group(*head, SegmentLines(lines, new_lines=True),
                                    Text(foot, _top_text.HEAD)))


def _frame(asked, columns, rows=None):
    boxes = [one.box() for one in asked]
    appliances = [box for box in boxes if isinstance(box.view, _top_model.View)]
    if any(isinstance(box.view, _top_workers.View) for box in boxes):
        others = [box for box in boxes if box not in appliances]
        return Group(_top_workers.frame(others, columns),
                     *([_top_boxes.frame(appliances, columns, rows)] if appliances else ()))
    if len(boxes) == 1:
        return _top_text.frame(boxes[0].view, columns, rows)
    return _top_boxes.frame(boxes, columns, rows)


def _heading(asked):
    span_s = max((box.view.span_s for one in asked if (box := one.box()).view), default=0)
    span = f"  rates over {span_s:.0f} s" if span_s >= 1 else ""
    where = asked[0].url if len(asked) == 1 else f"{len(asked)} pages"
    silent = sum(one.error is not None for one in asked)
    if silent and len(asked) > 1:
        where += f", {silent} unreachable"
    return f"sluice top  {time.strftime('%H:%M:%S')}{span}  {where}"


def once(urls, interval_s, out):
    """Two scrapes, one interval apart, and one frame."""
    asked = [Asked(url, interval_s) for url in urls]
    _first_answers(asked)
    time.sleep(interval_s)
    _first_answers(asked)
    console = _console(file=out, width=shutil.get_terminal_size((100, 0)).columns)
    with console.capture() as captured:
        console.print(_heading(asked))
        console.print(_frame(asked, console.width))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=out)


def watch(urls, interval_s):
    """Draws on the terminal until q."""
    asked = [Asked(url, max(_WINDOW_S, 3 * interval_s)) for url in urls]
    _first_answers(asked)
    with Screen(_console(), sys.stdin) as screen:
        Live(asked, interval_s, screen).run()
