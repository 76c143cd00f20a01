"""`top` at the pages of a BCube's real appliances, by the names of the legs' jobs, which the client
gives them (client/bcube/relay_legs.cc). Without appliances: at the workers' pages."""

import re
import sys
import time

import pytest
from cube import CubeLab
from lab import missing
from workers import BUILD, command, wait_joined, wait_until

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
pytest.importorskip("rich")
prometheus = pytest.importorskip("prometheus_client.parser")

from rich.console import Console  # noqa: E402
from sluice import _top_model, _top_pages, _top_view  # noqa: E402
from sluice.bcube import Leg  # noqa: E402

JOB = "cnn.t1.v2"  # as if it were half a lane's name
PLACES = [(level, switch) for level in range(2) for switch in range(2)]
# Of the switches of a level: thread, stage, way. Thread t begins at level t and turns at its last.
LEGS = {0: [(0, 0, "up"), (0, 0, "down"), (1, 1, "turn")],
         1: [(0, 1, "turn"), (1, 0, "up"), (1, 0, "down")]}


# Takes steps until it is stopped.
WORKER = """
import time, numpy, sluice
with sluice.Job([("weight", 4000, "float32")]) as job:
    weight = numpy.zeros(4000, numpy.float32)
    while True:
        job.submit("weight", weight)
        job.wait_step()
        time.sleep(0.02)
"""


def test_without_appliances_the_workers_pages_are_one_job_and_show_its_detours():
    with CubeLab(2, 2, plain_network=True, detours=True, mode="plain") as cube:
        workers = [cube.popen(rank, [sys.executable, "-B", "-c", WORKER], env={
            "SLUICE_ADDRESS": cube.url, "SLUICE_SECRET": "lab", "SLUICE_JOB": JOB,
            "SLUICE_METRICS": "0.0.0.0:9600", "RANK": str(rank), "WORLD_SIZE": "4"})
            for rank in range(4)]
        pages = [f"10.99.0.{rank + 10}:9600" for rank in range(4)]

        def shown():
            command = [sys.executable, "-B", "-m", "sluice", "top", "--once", "--interval", "0.3"]
            asking = cube.popen(0, [*command, *pages], env={"COLUMNS": "120"}, stdout=-1, text=True)
            return asking.communicate(timeout=300)[0]

        wait_until(lambda: f"{JOB}  BCube(2, 2)  4 of 4 workers answer here" in shown(), 300,
                   "pages of all workers")
        text = shown()
        for rank, page in enumerate(pages):
            assert re.search(rf"^ +{rank}  {page} +\d+ .*b/s ", text, re.M), text
        for thread, stage, level in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
            assert re.search(rf"^ +{thread} +{stage} +{level} .*b/s ", text, re.M), text
        assert "detoured" not in text
        cube.switch(1, 0, up=False)
        wait_until(lambda: re.search(r"^ +0 +1 +1 .* lanes detoured$", shown(), re.M), 300,
                   "lanes of level 1 on another switch")
        text = shown()
        assert re.search(r"^ +1 +0 +1 .* lanes detoured$", text, re.M), text
        assert not re.search(r"^ +[01] +[01] +0 .* detoured$", text, re.M), text
        assert [worker.poll() for worker in workers] == [None] * 4, "one has failed"


def scrape(cube, level, switch):
    families = prometheus.text_string_to_metric_families(cube.page(level, switch))
    return _top_pages.Scrape(list(families), time.monotonic())


def view_since(cube, before, place):
    return _top_model.view(_top_pages.Span(scrape(cube, *place), before[place]))


@pytest.fixture(scope="module")
def training():
    """A BCube(2, 2) whose four workers take steps all the time."""
    with CubeLab(2, 2, detours=True) as cube:
        cube.start_appliances(BUILD)
        workers = []
        for rank in range(cube.workers):
            line = command(cube.url, rank, cube.workers, job=JOB, steps=1_000_000, tensors=2,
                           elems=2_000, pause_ms=20)
            workers.append(cube.popen(rank, line, stdout=-1, stderr=-1, text=True))
        for worker in workers:
            wait_joined(worker)
        yield cube
        assert [worker.poll() for worker in workers] == [None] * 4, "one has failed"


@pytest.fixture(scope="module")
def views(training):
    """Of each switch, by level and number, with rates over some steps."""
    def have_stepped(least):
        steps = [int(step) for place in PLACES for step in re.findall(
            r'^sluice_job_step{job="[^"]*\.s\d\..*} (\d+)$', training.page(*place), re.M)]
        return len(steps) == 3 * len(PLACES) and min(steps) > least and max(steps)

    wait_until(lambda: have_stepped(5), 300, "steps of all legs")
    before = {place: scrape(training, *place) for place in PLACES}
    last = have_stepped(5)
    wait_until(lambda: have_stepped(last + 5), 300, "more steps of all legs")
    return {place: view_since(training, before, place) for place in PLACES}


@pytest.mark.parametrize("level, switch", PLACES)
def test_legs_of_a_real_switch_have_level_thread_stage_and_way(views, level, switch):
    view = views[level, switch]
    assert view.jobs == [], "each of its jobs is the BCube's"
    cube, = view.cubes
    assert (cube.name, cube.level, cube.levels) == (JOB, level, 2)
    assert [(leg.thread, leg.stage, leg.way) for leg in cube.legs] == LEGS[level]
    for leg in cube.legs:
        assert leg.job.state == "running" and leg.job.step > 5 and leg.job.step_rate > 0
        assert (leg.job.members, leg.job.world_size) == (2, 2)
    assert (cube.meeting.members, cube.meeting.world_size) == (2, 2)


def whole(views_by_place):
    """What `top` shows of these appliances; of one without a view, that it does not answer."""
    boxes = [_top_model.Page(f"box{level}{switch}", view, "" if view else "no answer", 9)
             for (level, switch), view in views_by_place.items()]
    console = Console(markup=False, emoji=False, highlight=False, width=120)
    with console.capture() as captured:
        console.print(_top_view.frame(boxes, 120))
    return captured.get()


def test_the_pages_of_all_switches_are_one_job_that_knows_its_switches_and_workers(training, views):
    text = whole(views)
    assert f"{JOB}  BCube(2, 2)  4 of 4 switches answer here" in text
    for level, switch in PLACES:
        row = re.search(rf"^ +{level}-{switch}  box{level}{switch} +\d+ .* worker (\d)  ", text,
                        re.M)
        assert row and int(row[1]) in training.cube.servers_of(level, switch), text
        for thread, stage, way in LEGS[level]:
            assert re.search(rf"^ +{thread} +{stage}  {way} +{level} +\d+ ", text, re.M), text


def test_top_at_one_real_switch_shows_level_thread_stage_and_way(training):
    text = training.run_at_switch(1, 0, [sys.executable, "-B", "-m", "sluice", "top", "--once",
                                         "--interval", "0.5"])
    assert f"{JOB}  BCube(2, 2)  1 of 4 switches answer here" in text
    assert re.search(r"^ +1-0 ", text, re.M) and "workers are here" not in text
    for thread, stage, way in LEGS[1]:
        assert re.search(rf"^ +{thread} +{stage}  {way} +1 +\d+ ", text, re.M), text


@pytest.mark.parametrize("place", PLACES)
def test_the_names_of_all_jobs_at_a_real_switch_are_those_of_legs(training, place):
    names = [name for name, in scrape(training, *place).rows("sluice_job_members", "job")]
    assert len(names) == 7, names  # three sums, the meeting, and three for the standby
    for name in names:
        assert str(Leg.of(name)) == name and Leg.of(name).job == JOB


def test_a_real_switch_that_stands_in_for_another_is_shown_as_such(training):
    # The last one here: a switch is lost.
    training.boxes[1, 0].kill()
    left = [place for place in PLACES if place != (1, 0)]
    before = {place: scrape(training, *place) for place in left}

    def view(place):
        return view_since(training, before, place)

    wait_until(lambda: (spare := view((1, 1)).cubes[0].spare) and spare.step > 5, 300,
               "steps at the switch that stands in")
    views = {place: view(place) for place in left}
    assert [each.jobs for each in views.values()] == [[]] * 3
    assert views[1, 1].cubes[0].stands_in_for == 0
    text = whole(views)
    assert re.search(r"^ +1-1  box11 .* has stood in for 1-0: \d+", text, re.M), text
