"""`python3 -m sluice top` at a BCube's switches, one or all: its jobs there by thread and stage."""

import contextlib
import re
import socket
import time

import pytest

from test_top import Served, Terminal, run_top
from tiers import within
from top_page import frame, page, printed, scraped, shown, view

from sluice.bcube import Leg
from sluice.launch import free_port


def _page(steps, other="other", ranks=None, **values):
    """Of an appliance with these jobs, given the step that each is in; a switch with five ports, or
    so many."""
    text = page(job=other)
    for name, step in steps.items():
        lines = page(step=step, job=name, **values).splitlines(keepends=True)
        if ranks:
            lines = [line for line in lines if not (rank := re.search(r'rank="(\d+)"', line))
                     or int(rank[1]) < ranks]
            lines = [re.sub(r"^(sluice_job_(?:world_size|members)\S+) .*", rf"\1 {ranks}", line)
                     for line in lines]
        text += "".join(line for line in lines if line.startswith("sluice_job_"))
    return text


def _scrape(time_s, steps, **values):
    return scraped(_page(steps, **values), time_s)


def _lanes(step, spare=1):
    """At a switch of level 1 of BCube(n, 2)."""
    return {"cnn.meeting": 2, "cnn.survey.2": 1 + (spare > 1), "cnn.vote.2": spare,
            "cnn.spare.2": spare, "cnn.t0.s1.turn": step, "cnn.t1.s0.up": step,
            "cnn.t1.s0.down": step}


@pytest.mark.parametrize("leg", [
    Leg("cnn", "up", 0, 1), Leg("cnn", "turn", 12, 3), Leg("cnn", "down", 1, 0),
    Leg("cnn", "meeting"), Leg("cnn", "survey", switch=2), Leg("cnn", "vote", switch=10),
    Leg("cnn", "spare", switch=0), Leg("cnn.t1.v2", "up", 0, 0), Leg("a.t0.s0.up", "meeting")])
def test_the_name_of_a_leg_says_all_that_it_was_made_of(leg):
    assert Leg.of(str(leg)) == leg


@pytest.mark.parametrize("name", ["cnn", "cnn.t0.s1", "cnn.t0.s1.over", ".meeting", "cnn.spare",
                                  "cnn.meeting.1", "cnn.t.s.up", "cnn.t0.s1.up.2"])
def test_other_names_are_no_leg_s(name):
    assert Leg.of(name) is None


def test_jobs_of_a_bcube_are_one_with_the_level_that_their_names_tell():
    found = view(_scrape(104, _lanes(31), missing=()), _scrape(100, _lanes(11)))
    assert [job.name for job in found.jobs] == ["other"]
    cube, = found.cubes
    assert (cube.name, cube.level, cube.levels) == ("cnn", 1, 2)
    assert [(leg.thread, leg.stage, leg.way) for leg in cube.legs] == [
        (0, 1, "turn"), (1, 0, "up"), (1, 0, "down")]
    text = printed(found)
    assert "cnn  BCube(5, 2)  1 of 10 switches answer here" in text
    assert re.search(r"^ +1-3  box +31 +5 +150 ms .*  4 of 5 workers are here$", text, re.M), text
    assert re.search(r"^ +1 +0  down +1 +31 +5 +150 ms +worker 18 +785 ms$", text, re.M), text
    assert "stood in" not in text and "meeting" not in text


@pytest.mark.parametrize("columns, rows", [(100, None), (80, 24)])
def test_a_leg_says_whom_its_oldest_chunk_waits_for(columns, rows):
    text = printed(view(_scrape(104, _lanes(31)), _scrape(100, _lanes(11))), columns, rows)
    assert re.search(r"^ +0 +1  turn .* worker 18 .* MISSING$", text, re.M), text


@pytest.mark.parametrize("before, said", [
    (5, "1-2: 14 steps, 2.5 steps/s, 4 of 5 workers are here, stands in for 1-2"),
    (15, "1-2: 14 steps, not now, 4 of 5 workers are here")])
def test_a_switch_says_that_it_stands_in_for_another_and_that_it_has(before, said):
    text = printed(view(_scrape(104, _lanes(31, spare=15), missing=()),
                        _scrape(100, _lanes(11, spare=before))), 180)
    assert re.search(rf"has stood in for {said}$", text, re.M), text


def test_with_three_levels_a_switch_s_threads_are_in_three_stages():
    for level in range(3):
        steps = {"cnn.meeting": 2}
        for thread in range(3):
            stage = (level - thread) % 3
            ways = ("turn",) if stage == 2 else ("up", "down")
            steps |= {f"cnn.t{thread}.s{stage}.{way}": 9 for way in ways}
        cube, = view(_scrape(1, steps), _scrape(0, steps)).cubes
        assert (cube.level, cube.levels, len(cube.legs)) == (level, 3, 5)


def test_a_job_that_is_named_alike_is_a_job():
    found = view(_scrape(1, {"cnn.t0.s1.turn": 3, "cnn.spare.1": 4}))
    assert not found.cubes and len(found.jobs) == 3


# ---- several appliances ----

_N = 3  # BCube(3, 2)


def _switch_page(level, index, step, *, stands_in=0, **values):
    """Of the switch that stands in for the one before it in its level, if it does."""
    lost = (index - 1) % _N
    steps = {"cnn.meeting": 2, f"cnn.survey.{lost}": 1 + bool(stands_in),
             f"cnn.vote.{lost}": 1 + stands_in, f"cnn.spare.{lost}": 1 + stands_in}
    for thread in range(2):
        stage = (level - thread) % 2
        for way in ("turn",) if stage == 1 else ("up", "down"):
            steps[f"cnn.t{thread}.s{stage}.{way}"] = step
    return _page(steps, ranks=_N, **{"missing": (), "gradient": None, **values})


def _box(level, index, problem="", **values):
    """As it was and four seconds later, twenty steps on."""
    stood = values.pop("stands_in", 0)
    scrapes = [scraped(_switch_page(level, index, step, stands_in=count, **values), time_s)
               for step, count, time_s in ((31, stood, 104), (11, stood // 2, 100))]
    return shown(f"sw{level}{index}", view(*scrapes), problem, 12 if problem else 0)


def _all_but(*others):
    return [others[[box.name for box in others].index(f"sw{level}{index}")]
            if f"sw{level}{index}" in [box.name for box in others] else _box(level, index)
            for level in range(2) for index in range(_N)]


def test_switches_of_a_bcube_are_one_job_and_know_which_they_are():
    text = frame(_all_but(), 120)
    assert "cnn  BCube(3, 2)  6 of 6 switches answer here" in text
    for level in range(2):
        for index in range(_N):
            assert re.search(rf"^ +{level}-{index}  sw{level}{index} +31 +5 ", text, re.M)
    for lane in ("0 +0  up +0", "0 +1  turn +1", "0 +0  down +0", "1 +0  up +1", "1 +1  turn +0"):
        assert re.search(rf"^ +{lane} +31 +5 +150 ms", text, re.M), lane
    assert "stands in" not in text and "unreachable" not in text
    assert "other at sw12  running  4 of 5 ranks" in text, "ordinary jobs are there, too"
    assert re.search(r"sw00, appliance +late +30", text)


def test_who_is_waited_for_is_named_by_its_rank_in_the_bcube():
    # Switch 2 of level 1 joins workers 2, 5 and 8; of its threads all wait for place 1.
    for rows in (None, 24):
        text = frame(_all_but(_box(1, 2, missing=(1,))), 120, rows)
        assert re.search(r"^ +1-2  sw12 .* worker 5 .*waits for worker 5 in thread 0, stage 1$",
                         text, re.M), text
        assert re.search(r"^ +1 +0  up +1 .*worker 5 at sw12 .*MISSING$", text, re.M)
        assert len(re.findall(r" at sw12 .*MISSING$", text, re.M)) == 3, "three sums pass it"


def test_which_switch_stands_in_for_which_is_said_at_both():
    text = frame(_all_but(_box(0, 1, "no answer (Connection refused)"),
                          _box(0, 2, stands_in=14)), 160)
    assert "5 of 6 switches answer here" in text
    assert re.search(r"^ +0-1  sw01 .*unreachable for 12.0 s, 0-2 stands in for it$", text, re.M)
    assert re.search(r"^ +0-2  sw02 .* stands in for 0-1$", text, re.M)
    assert text.startswith("sw01: no answer (Connection refused), numbers are 12.0 s old\n")
    assert "other at sw01: unreachable" in text and "other at sw02  running" in text


@pytest.mark.parametrize("gone", [None, '"cnn.meeting"'])
def test_a_job_that_has_ended_is_said_to_have(gone):
    def scrape(time_s, level, index):
        lines = re.sub(r'^(sluice_job_(?:running|members){job="cnn[^}]*}) .*', r"\1 0",
                       _switch_page(level, index, 31), flags=re.M).splitlines(keepends=True)
        return scraped("".join(line for line in lines if not (
            "cnn" in line and "rank=" in line or gone and gone in line)), time_s)

    views = [view(scrape(104, level, index), scrape(100, level, index))
             for level in range(2) for index in range(_N)]
    text = frame([shown(f"sw{at}", each) for at, each in enumerate(views)], 120)
    assert len(re.findall(r"^ +[01]-[0-2]  sw\d +31 .*  ended$", text, re.M)) == 6, text
    assert len(re.findall(r"^ +[01] +[01]  (?:up|turn|down) .*  ended$", text, re.M)) == 6, text
    assert "workers are here" not in text and "cnn." not in text
    assert len(re.findall(r"  ended$", printed(views[0]), re.M)) == 4


def test_of_an_appliance_that_has_never_answered_there_is_a_row():
    text = frame([_box(0, 0), shown("gone", None, "no answer (timed out)", 3)], 120)
    assert text.startswith("gone: no answer (timed out), never seen\n")
    assert "cnn  BCube(3, 2)  1 of 6" in text


def test_without_names_that_tell_a_worker_is_a_place_at_the_switch():
    steps = {"cnn.meeting": 2, "cnn.t0.s1.turn": 9, "cnn.t1.s0.up": 9}
    text = frame([shown("a", view(_scrape(1, steps), _scrape(0, steps))), _box(0, 0)], 120)
    assert re.search(r"^ +1-\?  a +9 .* place 3 .*waits for place 3 in thread", text, re.M)
    assert "4 of 5 workers" in text


@pytest.mark.parametrize("columns", [80, 100])
def test_several_appliances_fit_a_narrow_window(columns):
    lines = frame(_all_but(_box(0, 1, "no answer (Connection refused)"),
                            _box(1, 2, missing=(1,))), columns).split("\n")
    assert max(map(len, lines)) <= columns
    assert any(re.search(r"^ +1-2  sw12 +31 .*worker 5 ", line) for line in lines)
    assert not any("\u2026" in line for line in lines), "nothing is cut short"


@contextlib.contextmanager
def _mute():
    """The address of something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "127.0.0.1:%d" % server.getsockname()[1]


def test_an_appliance_that_hangs_holds_up_neither_the_others_nor_the_keys():
    with Served() as server, _mute() as mute:
        server.text = lambda: _switch_page(0, 1, len(server.paths) + 10)
        with Terminal(server.address, mute, "--interval", "0.2", lines=60,
                      columns=150) as terminal:
            terminal.wait_for("1 of 6 switches")
            terminal.wait_for("no answer (timed out)")
            before, began = len(server.paths), time.monotonic()
            while len(server.paths) < before + 4:
                terminal.read()
                assert time.monotonic() < began + 300
            within(time.monotonic() - began, 2, "a hanging one is asked for 3 s")
            terminal.press(b"q")
            pressed = time.monotonic()
            assert terminal.end(300) == 0
            within(time.monotonic() - pressed, 2)


def test_into_a_pipe_several_appliances_are_one_frame_though_one_is_away():
    away = f"127.0.0.1:{free_port()}"
    with Served() as one, Served() as two:
        one.text = lambda: _switch_page(0, 1, 10 * len(one.paths))
        two.text = lambda: _switch_page(1, 0, 10 * len(two.paths))
        done = run_top(one.address, away, two.address, "--interval", "0.3", COLUMNS="150")
    assert done.returncode == 0, done.stderr
    assert "3 pages, 1 unreachable" in done.stdout and "2 of 6 switches" in done.stdout
    assert re.search(rf"^{away}: no answer .Connection refused", done.stdout, re.M)


def test_appliances_of_which_none_answers_or_one_is_given_twice_are_refused():
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    done = run_top(*addresses)
    assert done.returncode == 1 and "none of 2 pages answers" in done.stderr
    done = run_top("box", "a", "box:9464")
    assert done.returncode == 2
    assert "box:9464: http://box:9464/metrics is given twice" in done.stderr
