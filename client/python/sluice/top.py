"""`python3 -m sluice top`: a live view of an appliance's jobs, from its /metrics alone.

Shows each job's step rate, k, who is late and by how much, whom the oldest open chunk waits for,
drops by reason, and the ports. On a terminal it redraws until q; into a file or a pipe it prints
one frame. Plain ANSI, no curses: it needs no terminal description, so it works over ssh too.
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

from sluice import _exposition, _top_model, _top_text

DEFAULT_ADDRESS = "127.0.0.1:9464"
_TIMEOUT_S = 3.0
_WINDOW_S = 10.0  # rates are about this long, or a few intervals when those are longer
_MAX_BYTES = 64 << 20
_TICK_S = 0.25  # a resized window is redrawn after this

_STYLES = {_top_text.TITLE: "\x1b[1m", _top_text.HEAD: "\x1b[2m", _top_text.ALARM: "\x1b[31m"}
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_KEYS = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1,
         b"\x1b[5~": -10, b"\x1b[6~": 10, b" ": 10}


class Unusable(Exception):
    """The endpoint does not answer with Sluice's metrics; the text says what to do."""


class _Ended(Exception):
    def __init__(self, number):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def metrics_url(address):
    """The URL for 'host', 'host:port', '[v6]:port' or a URL; ValueError says what is wrong."""
    if "://" in address:
        if not address.startswith(("http://", "https://")):
            scheme = address.partition("://")[0]
            raise ValueError(f"{address}: {scheme}:// is not where metrics are: give HOST:PORT of "
                             "metrics.address in the appliance's configuration")
        bare = address.count("/") == 2 or address.endswith("/") and address.count("/") == 3
        return address.rstrip("/") + "/metrics" if bare else address
    host, _, port = address.rpartition(":")
    if not host or address.endswith("]"):
        host, port = address, DEFAULT_ADDRESS.rpartition(":")[2]
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address}: {port!r} is not a port: give HOST:PORT, for example "
                         f"{DEFAULT_ADDRESS}")
    return f"http://{host}:{port}/metrics"


def fetch(url, timeout_s=_TIMEOUT_S):
    """A Scrape of the endpoint. Blocks for about `timeout_s`; Unusable names the URL and a remedy.

    No proxy is asked: the endpoint is on this network.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    hint = ("is sluiced running, and is this the metrics.address of its configuration (default "
            f"{DEFAULT_ADDRESS})? On another machine give its address: python3 -m "
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
        samples = _exposition.parse(body.decode("utf-8"))
    except ValueError as error:
        raise Unusable(f"{url}: not a page of metrics: {error}: {hint}") from None
    if "sluice_jobs" not in samples:
        raise Unusable(f"{url}: metrics of something else, without sluice_jobs: {hint}")
    return _top_model.Scrape(samples, time.monotonic())


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


class Screen:
    """The terminal while `top` draws on it: alternate screen, no echo. A context manager."""

    def __init__(self, out, keyboard):
        self._out = out
        self._keyboard = keyboard if keyboard.isatty() else None
        self._saved = None
        self._plain = "NO_COLOR" in os.environ
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
        self._out.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        self._out.flush()
        self.changed = True

    def _give_back(self):
        with contextlib.suppress(OSError):
            self._out.write("\x1b[0m\x1b[?25h\x1b[?1049l")
            self._out.flush()
        if self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._saved)

    def _end(self, number, _frame):
        raise _Ended(number)

    def _stop(self, _number, _frame):
        """Ctrl-Z: gives the terminal back, stops, and takes it again when continued."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()

    def size(self):
        return shutil.get_terminal_size()

    def draw(self, lines, size):
        text = "\x1b[H"
        for line in lines[:size.lines]:
            style = "" if self._plain else _STYLES.get(line.style, "")
            text += f"{style}{line.text[:size.columns]}{style and chr(27) + '[0m'}\x1b[K\r\n"
        self._out.write(text.removesuffix("\r\n") + "\x1b[J")
        self._out.flush()

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
            size = self._screen.size()
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
        view = self._history.view()
        head = [_top_text.Line(_heading(self._url, view), _top_text.TITLE)]
        if self._problem:
            head.append(_top_text.Line(self._problem, _top_text.ALARM))
        space = max(1, size.lines - len(head) - 1)
        lines = _top_text.frame(view, size.columns, space)
        self._offset = min(self._offset, max(0, len(lines) - space))
        more = len(lines) - space - self._offset
        foot = "q quits" + (f"   arrows scroll: {more} lines below" if more > 0 else
                            "   arrows scroll" if self._offset else "")
        lines = lines[self._offset:self._offset + space]
        lines += [_top_text.Line("")] * (space - len(lines))
        self._screen.draw(head + lines + [_top_text.Line(foot, _top_text.HEAD)], size)


def _heading(url, view):
    span = f"  rates over {view.span_s:.0f} s" if view.span_s >= 1 else ""
    return f"sluice top  {time.strftime('%H:%M:%S')}{span}  {url}"


def _once(url, interval_s, out):
    """Two scrapes, one interval apart, and one frame."""
    history = History(interval_s)
    history.add(fetch(url))
    time.sleep(interval_s)
    history.add(fetch(url))
    view = history.view()
    print(_heading(url, view), file=out)
    for line in _top_text.frame(view, shutil.get_terminal_size((100, 0)).columns):
        print(line.text.rstrip(), file=out)


def add_arguments(parser):
    parser.add_argument("address", nargs="?", metavar="ADDRESS",
                        help="HOST or HOST:PORT of the appliance's metrics, its metrics.address "
                             f"(default {DEFAULT_ADDRESS})")
    parser.add_argument("--url", help="the whole URL, when something stands before the appliance")
    parser.add_argument("--interval", type=float, default=2.0, metavar="S",
                        help="seconds between scrapes (default 2)")
    parser.add_argument("--once", action="store_true",
                        help="print one frame as text, with rates over one interval")


def run(options):
    if not 0.1 <= options.interval <= 3600:
        print(f"sluice top: --interval {options.interval:g}: give 0.1 to 3600 seconds",
              file=sys.stderr)
        return 2
    if options.address and options.url:
        print(f"sluice top: {options.address} and --url {options.url}: give one of them",
              file=sys.stderr)
        return 2
    try:
        url = metrics_url(options.url or options.address or DEFAULT_ADDRESS)
        live = sys.stdout.isatty() and not options.once and os.environ.get("TERM") != "dumb"
        if not live:
            _once(url, options.interval, sys.stdout)
            return 0
        first = fetch(url)
        with Screen(sys.stdout, sys.stdin) as screen:
            Live(url, options.interval, screen).run(first)
        return 0
    except ValueError as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 2
    except Unusable as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except _Ended as ended:
        return ended.status
