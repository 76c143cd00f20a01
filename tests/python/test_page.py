"""A worker's own page of metrics, and the view of several in `python3 -m sluice top`."""

import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy
import pytest
import ranks
from inproc import SPECS, address, on_all_ranks  # noqa: F401
from test_bcube_environment import plan  # noqa: F401

import sluice
from sluice import _library, _page, _settings, bcube, errors
from sluice.launch import free_port

pytestmark = pytest.mark.usefixtures("library")
pytest.importorskip("prometheus_client.parser")
pytest.importorskip("rich")

from test_top import run_top  # noqa: E402
from top_page import frame, scraped, shown, view  # noqa: E402


def _fetch(place):
    with urllib.request.urlopen(f"http://{place}/metrics", timeout=10) as answer:
        return answer.read().decode()


# ---- where it is ----

def test_the_local_rank_is_added_to_the_port():
    env = {"SLUICE_METRICS": "0.0.0.0:9600"}
    assert _settings.metrics({}) is None and _settings.metrics({"SLUICE_METRICS": ""}) is None
    assert _settings.metrics(env) == ("0.0.0.0", 9600)
    assert _settings.metrics({**env, "LOCAL_RANK": "3"}) == ("0.0.0.0", 9603)
    assert _settings.metrics({**env, "SLURM_LOCALID": "2"}) == ("0.0.0.0", 9602)
    assert _settings.metrics({"SLUICE_METRICS": "[::1]:80"}) == ("::1", 80)


@pytest.mark.parametrize("text", ["9600", ":9600", "box", "box:", "box:0", "box:65534", "::1:80",
                                  "http://box:9600"])
def test_a_place_that_cannot_be_is_refused_before_the_join(monkeypatch, text):
    monkeypatch.setenv("SLUICE_METRICS", text)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(errors.InvalidArgument,
                       match=f"SLUICE_METRICS='{re.escape(text)}' .* HOST:PORT.* 1 to 65533"):
        sluice.Job(SPECS, "inproc://nowhere", rank=0, world_size=1)


def test_a_port_in_use_or_an_address_of_another_machine_is_a_warning(caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert _page._serve("127.0.0.1", port) is None
    assert _page._serve("192.0.2.1", port) is None
    in_use, foreign = [record.getMessage() for record in caplog.records]
    assert f"SLUICE_METRICS: no page of metrics at 127.0.0.1:{port} (Address already" in in_use
    assert "training goes on" in in_use and "LOCAL_RANK" in in_use
    assert "192.0.2.1" in foreign and "Cannot assign requested address" in foreign


# ---- what is on it ----

@pytest.fixture(scope="module")
def place():
    """Of this process, whose page stays once it is there."""
    return f"127.0.0.1:{free_port()}"


def test_the_page_has_every_counter_of_every_job_while_it_lasts(address, place,  # noqa: F811
                                                               monkeypatch):
    monkeypatch.setenv("SLUICE_METRICS", place)

    def work(job):
        job.end_step()
        job.wait_step()
        job.barrier()
        found, stats = scraped(_fetch(place)), job.stats()
        job.barrier()
        labels = {"job": 'a "b"\\/2', "rank": str(job.rank)}
        for name in ("steps_done", "nil_contributions", "late_chunks"):
            assert found.value(f"sluice_worker_{name}_total", **labels) == stats[name]
            assert found.value(f"sluice_worker_part_{name}_total", **labels, thread="0",
                               level="0") == stats[name]
        for name in ("chunk_bytes", "detoured_lanes"):
            assert found.value(f"sluice_worker_{name}", **labels) == stats[name]
        assert found.value("sluice_worker_running", **labels) == 1
        assert found.value("sluice_worker_world_size", **labels) == 2
        assert found.value("sluice_worker_jobs") == 2
        counters = sum(name.startswith("sluice_worker_part_") for name in found.samples)
        assert counters == len(stats) - 4, "all but those of the transports"

    on_all_ranks(work, 2, address, job='a "b"\\', ordinal=2)
    assert scraped(_fetch(place)).rows("sluice_worker_jobs") == {(): 0}
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://{place}/", timeout=10)


def test_who_is_waited_for_is_named_by_its_rank_also_over_a_bcube(tmp_path):
    pattern = f"inproc://{tmp_path.name}-{{level}}-{{switch}}"
    bcube.write_plan(bcube.Cube(2, 2), "aggregated", pattern, tmp_path)
    known = {}
    named, late = threading.Event(), threading.Event()

    def work(job):
        if job.rank == 3:
            late.wait(300)
        for name, count, _ in SPECS:
            job.submit(name, numpy.ones(count, numpy.float32))
        deadline_s = time.monotonic() + 300
        while job.rank != 3 and not late.is_set() and time.monotonic() < deadline_s:
            known[job.rank] = {int(missing) for missing, in
                               scraped(_page._text([job])).rows("sluice_worker_missing", "missing")}
            if known.get(1) == known.get(2) == {3} and known.get(0) and known[0] <= {1, 2}:
                named.set()
                late.set()
            time.sleep(0.05)
        late.set()
        job.wait_step()
        assert not job._stall()[2]

    on_all_ranks(work, 4, f"bcube://2,2?file={tmp_path}/cube.toml")
    assert named.is_set(), known


def ends_while_it_is_asked(rank, asked):
    """With a child that outlives it, as it leaves the process group."""
    import os
    import time
    import sluice
    job = sluice.Job([("weight", 1000, "float32")], "inproc://ends")
    child = os.fork()
    if child == 0:
        os.setsid()
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)
    while os.getpgid(child) != child:
        time.sleep(0.001)
    print("forked", flush=True)
    end_s = None
    while end_s is None or time.monotonic() < end_s:
        if end_s is None and os.path.exists(asked):
            end_s = time.monotonic() + 0.3
        job.end_step()
        job.wait_step()
    return child


def test_a_process_ends_while_it_is_asked_and_its_child_does_not_keep_the_port(tmp_path):
    port = free_port()
    asked = tmp_path / "asked"
    with ranks.Ranks(ends_while_it_is_asked, 1, tmp_path, arguments={"asked": str(asked)},
                     environment={"SLUICE_METRICS": f"127.0.0.1:{port}"}) as run:
        run.wait_for(0, "forked")
        pages = 0
        while run.children[0].poll() is None:
            try:
                pages += "sluice_worker_jobs" in _fetch(f"127.0.0.1:{port}")
                asked.touch()
            except OSError:  # it is about to end
                time.sleep(0.001)
        outcome, = run.finish()
    try:
        assert outcome.status == 0 and pages > 0, outcome.output
        with socket.create_server(("127.0.0.1", port)):
            pass
    finally:
        os.kill(outcome.value, signal.SIGKILL)


# ---- top ----

class _Fake:
    """Of BCube(2, 2), `steps` steps after its start."""

    label, world_size, _library = "cnn", 4, property(lambda _self: _library.load())

    def __init__(self, rank, steps, missing=(), stalled_s=0.0, again=0, detoured=0, works=True,
                 parts=4):
        self.rank, self._stalled, self._works = rank, (stalled_s, "", set(missing)), works
        self._part = {"steps_done": steps, "bytes_sent": steps * 1000, "retransmissions": again,
                      "bytes_received": steps * 2000, "detoured_lanes": detoured}
        self._parts = parts

    def _stall(self):
        return self._stalled

    def check(self):
        if not self._works:
            raise errors.PeerLost("gone")

    def stats(self):
        return {name: value if name == "steps_done" else value * self._parts
                for name, value in self._part.items()}

    def part_stats(self):
        return [{"thread": index // 2, "level": index % 2, **self._part}
                for index in range(self._parts)]


def _box(rank, problem="", steps=30, **values):
    """As it was and four seconds later."""
    pages = [scraped(_page._text([_Fake(rank, number, **values)]), time_s)
             for number, time_s in ((steps, 104), (10, 100))]
    return shown(f"w{rank}:9600", view(*pages), problem, 12)


def test_workers_of_a_bcube_are_one_job_by_worker_thread_and_level():
    text = frame([_box(rank) for rank in range(4)], 120)
    assert text.startswith("cnn  BCube(2, 2)  4 of 4 workers answer here\n")
    for rank in range(4):
        assert re.search(rf"^ +{rank}  w{rank}:9600 +30 +5  160 kb/s  320 kb/s +0 +0$", text, re.M)
    for thread, stage, level in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        assert re.search(rf"^ +{thread} +{stage} +{level}  40.0 kb/s  80.0 kb/s  120 kB +0 +0  -$",
                         text, re.M), text
    assert "waits" not in text and "unreachable" not in text


def test_retransmissions_and_detours_are_said_by_worker_thread_and_level():
    text = frame([_box(0), _box(1, again=7), _box(2, detoured=1)], 120)
    assert re.search(r"^ +1  w1:9600 .* 28 +0$", text, re.M), text
    assert re.search(r"^ +2  w2:9600 .* 4 lanes detoured$", text, re.M), text
    assert re.search(r"^ +1 +0 +1 .* 7 +0  rank 1  1 lane detoured$", text, re.M), text


@pytest.mark.parametrize("columns", [80, 120])
def test_who_waits_for_whom_and_who_does_not_answer(columns):
    text = frame([_box(0, missing=[2], stalled_s=3.1), _box(1, problem="no answer (timed out)"),
                   _box(2), _box(3, works=False),
                   shown("away:9600", None, "no answer (refused)", 3)], columns)
    assert text.startswith("w1:9600: no answer (timed out), numbers are 12.0 s old\n"
                           "away:9600: no answer (refused), never seen\n"
                           "cnn  BCube(2, 2)  3 of 4 workers answer here\n")
    assert re.search(r"^ +0 .*  waits for 2, 3.10 s$", text, re.M), text
    assert re.search(r"^ +1 .*  unreachable for 12.0 s$", text, re.M), text
    assert re.search(r"^ +2 .*  is waited for$", text, re.M), text
    assert re.search(r"^ +3 .*  has failed or left$", text, re.M), text
    assert max(map(len, text.split("\n"))) <= columns and "\u2026" not in text


def test_of_an_ordinary_job_there_is_one_part():
    text = frame([_box(0, parts=1)], 120)
    assert text.startswith("cnn  1 of 4 workers answer here\n")
    assert len(re.findall(r"^ +0 +0 +0 +40.0 kb/s", text, re.M)) == 1, text


def trains_until_it_is_told(rank, stop):
    import os
    import time
    import numpy
    import sluice
    with sluice.Job([("weight", 1000, "float32")]) as job:
        weight = numpy.zeros(1000, numpy.float32)
        stopped = numpy.zeros(1, numpy.uint8)
        while not stopped[0]:
            job.submit("weight", weight)
            job.wait_step()
            stopped[0] = os.path.exists(stop)
            job.broadcast(stopped)
            time.sleep(0.01)
        return job.stats()["steps_done"]


def test_top_shows_a_bcube_without_appliances_by_its_workers_pages(plan, tmp_path):  # noqa: F811
    port, stop = free_port(), tmp_path / "stop"
    pages = [f"127.0.0.1:{port + rank}" for rank in range(4)]
    with ranks.Ranks(trains_until_it_is_told, 4, tmp_path, arguments={"stop": str(stop)},
                     environment={"SLUICE_ADDRESS": f"bcube://2,2?file={plan}",
                                  "SLUICE_SECRET": "cube", "SLUICE_JOB": "cnn",
                                  "SLUICE_METRICS": pages[0]}) as run:
        for page in pages:
            end_s = time.monotonic() + 300
            while time.monotonic() < end_s:
                try:
                    _fetch(page)
                    break
                except OSError:
                    time.sleep(0.05)
        done = run_top(*pages, f"127.0.0.1:{free_port()}", "--interval", "0.5", COLUMNS="120")
        stop.touch()
        outcomes = run.finish()
    assert [outcome.status for outcome in outcomes] == [0] * 4, outcomes
    assert done.returncode == 0, done.stderr
    assert "cnn  BCube(2, 2)  4 of 4 workers answer here" in done.stdout, done.stdout
    assert "5 pages, 1 unreachable" in done.stdout and "never seen" in done.stdout
    for rank, page in enumerate(pages):
        assert re.search(rf"^ +{rank}  {page} +\d+ +[\d.]+ .*b/s ", done.stdout, re.M), done.stdout
    for thread, stage, level in ((0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)):
        assert re.search(rf"^ +{thread} +{stage} +{level} .*b/s ", done.stdout, re.M), done.stdout
