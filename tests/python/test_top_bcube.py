"""`python3 -m sluice top` at one of a BCube's switches: lanes by thread, stage and level."""

import re

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from top_page import page

from sluice import _top_model, _top_text


def _scrape(time_s, steps, **values):
    """Of an appliance with these jobs, given the step that each is in."""
    text = page(job="other")
    for name, step in steps.items():
        lines = page(step=step, job=name, **values).splitlines(keepends=True)
        text += "".join(line for line in lines if line.startswith("sluice_job_"))
    return _top_model.Scrape(text_string_to_metric_families(text), time_s)


def _lanes(step, spare=1):
    """At a switch of level 1 of BCube(n, 2)."""
    return {"cnn.meeting": 2, "cnn.survey": 1 + (spare > 1), "cnn.vote": spare, "cnn.spare": spare,
            "cnn.t0.s1.turn": step, "cnn.t1.s0.up": step, "cnn.t1.s0.down": step}


def _text(view, rows=None):
    console = Console(markup=False, emoji=False, highlight=False, width=100)
    with console.capture() as captured:
        console.print(_top_text.frame(view, 100, rows))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_jobs_of_a_bcube_are_one_with_the_level_that_their_names_tell():
    view = _top_model.view(_scrape(104, _lanes(31), missing=()), _scrape(100, _lanes(11)))
    assert [job.name for job in view.jobs] == ["other"]
    cube, = view.cubes
    assert (cube.name, cube.level, cube.levels) == ("cnn", 1, 2)
    assert [(lane.thread, lane.stage, lane.way) for lane in cube.lanes] == [
        (0, 1, "turn"), (1, 0, "up"), (1, 0, "down")]
    text = _text(view)
    assert "cnn  BCube, level 1 of 2  4 of 5 servers of the switch" in text
    assert re.search(r"^ +1 +0 +down +31 +5 +150 ms +rank 3 +785 ms$", text, re.M), text
    assert "stood in" not in text and "meeting" not in text


def test_a_lane_says_whom_its_oldest_chunk_waits_for():
    view = _top_model.view(_scrape(104, _lanes(31)), _scrape(100, _lanes(11)))
    for rows in (None, 24):
        assert re.search(r"^ +0 +1 +turn .* waits for rank 3$", _text(view, rows), re.M)


def test_a_switch_says_that_it_stands_in_for_another_and_that_it_has():
    now = _top_model.view(_scrape(104, _lanes(31, spare=15)), _scrape(100, _lanes(11, spare=5)))
    assert "has stood in for another switch of its level: 14 steps, now, 2.5 steps/s" in _text(now)
    then = _top_model.view(_scrape(104, _lanes(31, spare=15)), _scrape(100, _lanes(11, spare=15)))
    assert "has stood in for another switch of its level: 14 steps, not now" in _text(then)


def test_with_three_levels_a_switch_s_threads_are_in_three_stages():
    for level in range(3):
        steps = {"cnn.meeting": 2}
        for thread in range(3):
            stage = (level - thread) % 3
            ways = ("turn",) if stage == 2 else ("up", "down")
            steps |= {f"cnn.t{thread}.s{stage}.{way}": 9 for way in ways}
        cube, = _top_model.view(_scrape(1, steps), _scrape(0, steps)).cubes
        assert (cube.level, cube.levels, len(cube.lanes)) == (level, 3, 5)


def test_a_job_that_is_named_alike_is_a_job():
    now = _scrape(1, {"cnn.t0.s1.turn": 3, "cnn.spare": 4})
    view = _top_model.view(now, now)
    assert not view.cubes and len(view.jobs) == 3
