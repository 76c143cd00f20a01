"""`python3 -m sluice top` on served pages: reading, arithmetic, the frame, the terminal."""

import contextlib
import fcntl
import http.server
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

from top_page import page, printed, scrape, scraped, view

from sluice import _top_model, _top_pages, _top_text, top
from sluice.launch import free_port

_TOP = [sys.executable, "-B", "-m", "sluice", "top"]


class Served:
    """An HTTP server on the loopback that answers with `.text`, or with `.status` alone."""

    def __init__(self, text=""):
        outer = self
        self.text, self.status, self.paths = text, 200, []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.paths.append(self.path)
                body = outer.text() if callable(outer.text) else outer.text
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(body.encode("utf-8", "surrogateescape"))

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_exc):
        self._server.shutdown()
        self._server.server_close()


def run_top(*arguments, **environment):
    return subprocess.run([*_TOP, *arguments], capture_output=True, text=True, timeout=300,
                          check=False, env={**os.environ, **environment})


@pytest.mark.parametrize("share, expected", [(0.5, 2.0), (0.75, 3.0), (1.0, 4.0)])
def test_a_quantile_is_linear_within_its_bucket(share, expected):
    assert _top_pages.quantile({1: 0, 2: 2, 4: 4, math.inf: 4}, share) == expected


def test_a_quantile_of_nothing_is_unknown_and_one_beyond_the_buckets_is_the_last_bound():
    assert _top_pages.quantile({1: 0, math.inf: 0}, 0.5) is None
    assert _top_pages.quantile({}, 0.5) is None
    assert _top_pages.quantile({1: 1, math.inf: 9}, 0.5) == 1


def test_rates_are_differences_over_the_time_between_two_scrapes():
    found = view(scrape(104, step=31, late=70, dropped=27, received=3_000_000), scrape(100))
    job = found.jobs[0]
    assert (job.name, job.state, job.step, job.step_rate) == ("digits", "running", 31, 5)
    assert (job.k, job.world_size, job.policy, job.late) == (3, 5, "fixed", "requeue")
    assert (job.noise_scale, job.signs_flipped) == (3.25, 0.49)
    assert job.step_s == pytest.approx(0.15)
    assert (job.missing, job.absent) == ([3], [4])
    slow = job.ranks[0]
    assert (slow.rank, slow.late_rate, slow.requeued_rate) == (3, 10, 5)
    assert slow.gradient_s == 0.9 and slow.behind_s == pytest.approx(0.9 - 0.115)
    assert (slow.steps_back, job.ranks[1].steps_back) == (7, 0)
    assert slow.included == pytest.approx(0.1) and slow.silent and slow.missing
    assert [rank.rank for rank in job.ranks[1:]] == [1, 0, 2], "the latest first"
    assert [rank.included for rank in job.ranks[1:]] == [1, 1, 1]
    assert found.ports[0].rx_bits == 4_000_000 and found.ports[0].drop_rate == 5
    assert [(drop.where, drop.reason, drop.rate) for drop in found.drops] == [
        ("appliance", "late", 10), ("port left", "tail_drop", 5)]


def test_without_an_earlier_scrape_there_are_totals_and_no_rates():
    now = scrape(100)
    job = view(now).jobs[0]
    assert (job.step_rate, job.ranks[0].late_rate, job.ranks[0].late) == (None, None, 30)
    assert job.ranks[0].included == pytest.approx(0.1)


def test_counters_that_began_again_have_no_rate():
    history = _top_pages.History(10)
    history.add(scrape(100, step=500, loops=5000))
    history.add(scrape(102, step=3, loops=10))
    assert _top_model.view(history.span()).jobs[0].step_rate is None
    job = view(scrape(102, step=3), scrape(100, step=500)).jobs[0]
    assert job.step_rate is None and job.ranks[1].included == 1, "a new job under the old name"


def test_history_spans_its_window_and_no_more():
    history = _top_pages.History(10)
    for time_s in range(0, 60, 2):
        history.add(scrape(time_s, step=11 + time_s))
    assert history.span().seconds == 10 and _top_model.view(history.span()).jobs[0].step_rate == 1


def test_without_reports_of_finished_gradients_the_lag_tells_who_is_late():
    now = scrape(100, gradient=None)
    assert view(now).jobs[0].ranks[0].behind_s == pytest.approx(0.005)


def text_of(columns=100, rows=None, **values):
    return printed(view(scrape(104, **{"step": 31, **values}), scrape(100)), columns,
                   rows)


def test_the_frame_says_who_is_late_and_by_how_much():
    text = text_of(late=70)
    assert "digits  running  4 of 5 ranks  step 31  5 steps/s  step p50 150 ms" in text
    assert "k 3 of 5   policy fixed, late gradients requeued   noise scale 3.2" in text
    assert "signs flipped 49 %" in text
    assert "oldest open chunk waits for rank 3" in text
    assert "gone or finished: rank 4" in text
    row = next(line for line in text.split("\n") if line.startswith("   3"))
    assert row.split("  ")[-1] == "MISSING, silent"
    assert "900 ms" in row and "785 ms" in row and "10 %" in row and "4.20 s" in row
    assert re.search(r"appliance +late +70 +10/s", text)
    assert re.search(r"left +up .* 12$", text, re.M)


def test_a_narrow_frame_is_no_wider_than_asked_and_keeps_the_alarm():
    text = text_of(columns=60)
    assert max(map(len, text.split("\n"))) <= 60
    assert "MISSING, silent" in text and "785 ms" in text


@pytest.mark.parametrize("rows", [10, 16, 24])
def test_a_small_window_shows_the_latest_ranks_and_counts_the_rest(rows):
    text = text_of(rows=rows)
    assert re.search(r"^ +3 .*MISSING", text, re.M)
    shown = len(re.findall(r"^ {3}\d ", text, re.M))
    assert shown >= 3
    assert shown == 4 or f"{4 - shown} rank more, less late" in text


def test_no_job_and_no_drop_are_said():
    nothing = scraped("sluice_jobs 0\n")
    text = printed(view(nothing), 80)
    assert "no job" in text and "no packet dropped" in text


@pytest.mark.parametrize("seconds, text", [
    (None, "-"), (4e-6, "4 us"), (0.0012, "1.2 ms"), (0.25, "250 ms"), (1.25, "1.25 s"),
    (42, "42.0 s"), (150, "2 min"), (7300, "2 h")])
def test_durations_have_the_unit_that_fits(seconds, text):
    assert _top_text.duration(seconds) == text


@pytest.mark.parametrize("value, text", [
    (None, "-"), (0, "0"), (2.5, "2.5"), (999, "999"), (1250, "1.25 k"), (31e6, "31.0 M")])
def test_numbers_have_three_digits(value, text):
    assert _top_text.number(value) == text


def test_ranks_are_shown_as_ranges():
    assert _top_text.ranks_text([0, 1, 2, 5, 9, 10]) == "0-2, 5, 9-10"
    assert _top_text.ranks_text(range(0, 1000, 2), most=3) == "0, 2, 4 and 497 more"


@pytest.mark.parametrize("address, url", [
    ("box", "http://box:9464/metrics"), ("box:9000", "http://box:9000/metrics"),
    ("[::1]", "http://[::1]:9464/metrics"), ("[::1]:80", "http://[::1]:80/metrics"),
    ("http://box:1/", "http://box:1/metrics"), ("https://box/x/metrics", "https://box/x/metrics")])
def test_addresses_become_urls(address, url):
    assert top.metrics_url(address) == url


@pytest.mark.parametrize("arguments, words", [
    (["udp://10.0.0.1"], "udp:// is not where metrics are"), (["box:x"], "'x' is not a port"),
    (["box:70000"], "not a port"), (["a", "--url", "http://b"], "give one of them"),
    (["--interval", "0"], "0.1 to 3600")])
def test_a_wrong_command_line_is_explained(arguments, words):
    done = run_top(*arguments)
    assert done.returncode == 2 and words in done.stderr and not done.stdout


def test_an_endpoint_that_does_not_answer_is_named_with_a_remedy():
    address = f"127.0.0.1:{free_port()}"
    done = run_top(address)
    assert done.returncode == 1
    assert f"http://{address}/metrics: no answer (Connection refused)" in done.stderr
    assert "metrics.address" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text, status, words", [
    ("", 404, "answers 404"), ("<html>", 200, "it begins with b'<html>'"),
    ("node_load1 3\n", 200, "without sluice_jobs"), ("a 1\udcff\n", 200, "can't decode byte 0xff")])
def test_an_endpoint_of_something_else_is_said_to_be_so(text, status, words):
    with Served(text) as server:
        server.status = status
        done = run_top(server.address, "--once")
    assert done.returncode == 1 and words in done.stderr and "Traceback" not in done.stderr


def test_into_a_pipe_it_prints_one_frame_without_escapes_and_asks_no_proxy():
    with Served() as server:
        server.text = lambda: page(step=10 * len(server.paths) + 1, late=30 * len(server.paths))
        start_s = time.monotonic()
        done = run_top(server.address, "--interval", "0.5", COLUMNS="100",
                       http_proxy="http://127.0.0.1:1")
        took_s = time.monotonic() - start_s
    assert done.returncode == 0, done.stderr
    assert server.paths == ["/metrics"] * 2
    assert "\x1b" not in done.stdout
    rate = float(re.search(r"([\d.]+) steps/s", done.stdout)[1])
    assert 10 / took_s < rate <= 20, "ten steps in half a second, or longer on a busy machine"


class Terminal:
    """`top` on a pseudo terminal; what is on its screen as lines."""

    def __init__(self, *arguments, lines=24, columns=80, **environment):
        self._master, slave = pty.openpty()
        self._slave = slave
        self.resize(lines, columns)
        self.before = termios.tcgetattr(slave)
        environment = {**os.environ, "TERM": "xterm", **environment}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        self.process = subprocess.Popen([*_TOP, *arguments], stdin=slave, stdout=slave,
                                        stderr=slave, env=environment, start_new_session=True)
        self.bytes = b""

    def resize(self, lines, columns):
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, timeout_s=0.1):
        with contextlib.suppress(OSError):
            while select.select([self._master], [], [], timeout_s)[0]:
                self.bytes += os.read(self._master, 65536)
        return self.bytes.decode()

    def screen(self):
        rows = self.read().split("\x1b[H")[-1].split("\n")
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", row).rstrip() for row in rows]

    def wait_for(self, text, timeout_s=300):
        deadline = time.monotonic() + timeout_s
        while not any(text in line for line in self.screen()):
            assert time.monotonic() < deadline, f"never {text!r} in:\n" + "\n".join(self.screen())

    def press(self, keys):
        os.write(self._master, keys)

    def end(self, timeout_s=300):
        """The exit status; the terminal must be as it was."""
        status = self.process.wait(timeout_s)
        assert self.read().count("\x1b[?1049h") == self.read().count("\x1b[?1049l") > 0
        assert self.read().endswith("\x1b[?25h\x1b[?1049l")
        assert termios.tcgetattr(self._slave) == self.before
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


def test_on_a_terminal_it_redraws_follows_its_size_and_scrolls():
    with Served() as server:
        server.text = lambda: page(step=len(server.paths) + 10)
        with Terminal(server.address, "--interval", "0.2") as terminal:
            terminal.wait_for("waits for rank 3")
            terminal.wait_for("step 14")
            assert len(terminal.screen()) == 24
            terminal.resize(10, 60)
            terminal.wait_for("arrows scroll")
            assert len(terminal.screen()) == 10
            assert not any("buffers" in line for line in terminal.screen())
            terminal.press(b"\x1b[6~\x1b[6~\x1b[A")
            terminal.wait_for("port")
            terminal.press(b"j")
            terminal.wait_for("buffers 40 of")
            terminal.press(b"q")
            assert terminal.end() == 0


def test_it_keeps_the_last_numbers_while_the_endpoint_is_away():
    with Served(page()) as server:
        with Terminal(server.address, "--interval", "0.2", columns=200) as terminal:
            terminal.wait_for("waits for rank 3")
            server.status = 500
            terminal.wait_for("s old: http://" + server.address)
            terminal.wait_for("waits for rank 3")
            server.status = 200
            deadline = time.monotonic() + 300
            while any(" s old: " in line for line in terminal.screen()):
                assert time.monotonic() < deadline


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_gives_the_terminal_back(number, status):
    with Served(page()) as server, Terminal(server.address) as terminal:
        terminal.wait_for("digits")
        terminal.process.send_signal(number)
        assert terminal.end() == status


def test_ctrl_z_gives_the_terminal_back_and_going_on_takes_it_again():
    # In a session of its own the kernel does not stop it: it goes on at once.
    with Served(page()) as server, Terminal(server.address, "--interval", "0.2") as terminal:
        terminal.wait_for("digits")
        before = len(terminal.read())
        terminal.process.send_signal(signal.SIGTSTP)
        deadline = time.monotonic() + 30
        while not re.search(r"\x1b\[\?1049l.*\x1b\[\?1049h.*digits", terminal.read()[before:],
                            re.DOTALL):
            assert time.monotonic() < deadline
        terminal.press(b"q")
        assert terminal.end() == 0


def test_colours_mark_alarms_unless_they_are_unwanted():
    with Served(page()) as server:
        with Terminal(server.address) as terminal:
            terminal.wait_for("digits")
            assert "\x1b[31m  oldest open chunk waits for rank 3" in terminal.read()
        with Terminal(server.address, NO_COLOR="1") as terminal:
            terminal.wait_for("digits")
            assert "\x1b[31m" not in terminal.read()
