"""`python3 -m sluice top`: a live view of jobs, from the /metrics of appliances or workers alone.

Shows each job's step rate, k, who is late and by how much, whom the oldest open chunk waits for,
drops by reason, and the ports; of several appliances those of a BCube as one job, and who does not
answer; of workers (SLUICE_METRICS) a job by worker, and by thread and level. On a terminal it
redraws until q; into a file or a pipe it prints one frame. Needs rich and prometheus_client
(Debian: python3-rich, python3-prometheus-client), which nothing else does.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty

DEFAULT_ADDRESS = "127.0.0.1:9464"
_WINDOW_S = 10.0  # rates are about this long, or a few intervals when those are longer
_TICK_S = 0.25  # a resized window, or an answer, is drawn after this

_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
_KEYS = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1,
         b"\x1b[5~": -10, b"\x1b[6~": 10, b" ": 10}


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


def add_arguments(parser):
    parser.add_argument("address", nargs="*", metavar="ADDRESS",
                        help="HOST or HOST:PORT of an appliance's metrics, its metrics.address "
                             f"(default {DEFAULT_ADDRESS}), or of a worker's, its "
                             "SLUICE_METRICS; several are shown as one")
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
        print(f"sluice top: {' '.join(options.address)} and --url {options.url}: give one of "
              "them", file=sys.stderr)
        return 2
    try:
        from sluice import _top_pages, _top_view  # noqa: F401
    except ImportError as error:
        print(f"sluice top needs {error.name}: apt install python3-rich python3-prometheus-client, "
              "or pip install rich prometheus-client", file=sys.stderr)
        return 1
    try:
        urls = [metrics_url(address) for address in
                options.address or [options.url or DEFAULT_ADDRESS]]
        for index, url in enumerate(urls):
            if url in urls[:index]:
                raise ValueError(f"{options.address[index]}: {url} is given twice")
        if sys.stdout.isatty() and not options.once and os.environ.get("TERM") != "dumb":
            _watch(urls, options.interval)
        else:
            _once(urls, options.interval, sys.stdout)
        return 0
    except ValueError as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 2
    except _top_pages.Unusable as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except _Ended as ended:
        return ended.status


def _once(urls, interval_s, out):
    """Two scrapes, one interval apart, and one frame."""
    from sluice import _top_pages, _top_view
    pages = _top_pages.Pages(urls, interval_s)
    pages.ask_all()
    time.sleep(interval_s)
    pages.ask_all()
    console = _top_view.new_console(file=out, width=shutil.get_terminal_size((100, 0)).columns)
    with console.capture() as captured:
        console.print(_top_view.heading(pages))
        console.print(_top_view.frame(pages.shown(), console.width))
    print("\n".join(line.rstrip() for line in captured.get().splitlines()), file=out)


def _watch(urls, interval_s):
    """Draws on the terminal until q."""
    from rich.live import Live

    from sluice import _top_pages, _top_view
    pages = _top_pages.Pages(urls, max(_WINDOW_S, 3 * interval_s))
    pages.ask_all()
    screen = _top_view.Screen(pages)
    live = Live(screen, console=_top_view.new_console(), screen=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False)
    with _Terminal(live, sys.stdin) as terminal:
        next_s = time.monotonic() + min(interval_s, 1.0)  # rates soon
        drawn = None
        while True:
            if time.monotonic() >= next_s:
                pages.ask()
                next_s = max(next_s + interval_s, time.monotonic())
            size = live.console.size
            if pages.take() or drawn != size or terminal.changed:
                terminal.changed, drawn = False, size
                live.refresh()
            for key in terminal.keys(max(0.0, min(_TICK_S, next_s - time.monotonic()))):
                if key in (b"q", b"Q"):
                    return
                if key in _KEYS:
                    screen.scroll(_KEYS[key])
                    drawn = None


class _Terminal:
    """The terminal while a rich Live is on it: its keys, without echo, and its signals."""

    def __init__(self, live, keyboard):
        self._live = live
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
        self._live.start()
        self.changed = True

    def _give_back(self):
        with contextlib.suppress(OSError):
            self._live.stop()
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

    def keys(self, timeout_s):
        """The keys that were pressed, as bytes each; an empty list when none came in time."""
        if self._keyboard is None:
            time.sleep(timeout_s)
            return []
        if not select.select([self._keyboard], [], [], timeout_s)[0]:
            return []
        return _KEY.findall(os.read(self._keyboard.fileno(), 256)) or [b"q"]  # hung up
