"""The operators' views, over a real appliance and a real job: `top`, and the Grafana dashboard.

The dashboard's queries run on a real Prometheus server that scrapes the appliance: names that do
not exist, labels that do not match and panels without data are found without Grafana.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import ROOT
from ranks import Ranks

from prometheus_client.parser import text_string_to_metric_families

from sluice import _top_model, _top_pages
from sluice._processes import Child, stop_all
from sluice.launch import free_port

DASHBOARD = ROOT / "config" / "deploy" / "grafana-dashboard.json"
WORKERS = 3
_METRIC = re.compile(r"\bsluice_[a-z0-9_]+")
_VARIABLES = {"$instance": ".*", "$job": ".*", "$__rate_interval": "6s", "$__range": "1m"}
# Panels that show nothing while all is well, or that only policies fill that do not run here.
_MAY_BE_EMPTY = {
    "Missing from the oldest open chunk", "Gradient noise scale", "Signs flipped",
    "Packets of no use, by reason", "Frames dropped at ports, by reason",
    "The appliance's own datagrams lost, by reason", "Frames dropped and marked, by class"}


def slow_third(rank, stop):
    """Steps until the file `stop` exists; rank 2 takes long over each."""
    import time
    from pathlib import Path
    import numpy
    from sluice import Job
    gradient = numpy.ones(20000, numpy.float32)
    done = numpy.zeros(1, numpy.float32)
    with Job([("weight", 20000, "float32"), ("done", 1, "float32")]) as job:
        while done[0] == 0:  # all ranks end at the same step
            time.sleep(0.3 if rank == 2 else 0.01)
            job.submit("weight", gradient)
            done[0] = 1 if rank == 0 and Path(stop).exists() else 0
            job.submit("done", done)
            job.wait_step(timeout=300)
    return True


def fastest_two(rank, stop):
    """Steps until the file `stop` exists; rank 2 is too slow to be in any sum, but stays."""
    import time
    from pathlib import Path
    import numpy
    from sluice import Job, errors
    gradient = numpy.ones(20000, numpy.float32)
    with Job([("weight", 20000, "float32")]) as job:
        while not Path(stop).exists():
            time.sleep(0.4 if rank == 2 else 0.05)
            try:
                job.submit("weight", gradient)
                job.wait_step(timeout=1)
            except errors.Error:  # it has fallen out of the window, or the others have ended
                pass
    return True


def stale_by_two(rank, stop):
    """Iterates over a store of three layers until `stop` exists; rank 2 holds the others up."""
    import time
    from pathlib import Path
    import numpy
    import sluice
    layers = [[(f"layer{index}", 5000)] for index in range(3)]
    copies = [numpy.zeros(5000, numpy.float32) for _ in layers]
    delta = numpy.ones(5000, numpy.float32)
    with sluice.Store(layers, bound=2) as store:
        for layer, copy in enumerate(copies):
            if rank == 0:
                store.initialise(layer, [copy])
                store.wait_push(layer)
            store.pull(layer, [copy])
        while not Path(stop).exists():
            for layer in range(3):
                store.wait_pull(layer)
            time.sleep(0.3 if rank == 2 else 0.01)
            for layer in range(3):
                store.wait_push(layer)
                store.push(layer, [delta])
                store.pull(layer, [copies[layer]])
    return True


@contextlib.contextmanager
def running_job(name, function, box, folder):
    """The box's metrics address, while the ranks of a job run on it."""
    stop = folder / "stop"
    with Ranks(function, WORKERS, folder, box=box, arguments={"stop": str(stop)},
               environment={"SLUICE_JOB": name}) as ranks:
        address = f"127.0.0.1:{box.metrics_port}"
        deadline = time.monotonic() + 300
        while f'sluice_job_running{{job="{name}"}} 1' not in page(address):
            assert time.monotonic() < deadline, ranks.output(0)
            time.sleep(0.1)
        yield address
        stop.touch()
        for outcome in ranks.finish():
            assert outcome.status == 0, outcome.output


@pytest.fixture(scope="module")
def fastest(fastest_appliance, tmp_path_factory):
    """The metrics address of an appliance on which a job with k = 2 of 3, 'fastest', runs."""
    folder = tmp_path_factory.mktemp("fastest")
    with running_job("fastest", fastest_two, fastest_appliance, folder) as address:
        yield address


@pytest.fixture(scope="module")
def watched(appliance, tmp_path_factory):
    """The metrics address of an appliance, on which a job of WORKERS ranks, 'watched', runs."""
    folder = tmp_path_factory.mktemp("watched")
    with running_job("watched", slow_third, appliance, folder) as address:
        yield address


@pytest.fixture(scope="module")
def stored(lossy_appliance, tmp_path_factory):
    """The metrics address of an appliance with a parameter store of WORKERS ranks, 'stored'."""
    folder = tmp_path_factory.mktemp("stored")
    with running_job("stored", stale_by_two, lossy_appliance, folder) as address:
        yield address


def page(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=300) as answer:
        return answer.read().decode()


def families_on(address):
    """The type of each family on the page, by the name that its rows have."""
    return {family.name + "_total" * (family.type == "counter"): family.type
            for family in text_string_to_metric_families(page(address))}


def dashboard_queries():
    """(panel, query) of every target, and those that fill the variables."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]


def families_of(query, families):
    """The families that a query names; a histogram is queried by its parts."""
    for name in _METRIC.findall(query):
        base = re.sub("_(bucket|sum|count)$", "", name)
        yield name, base if families.get(base) == "histogram" else name


def test_the_dashboard_is_json_that_grafana_can_import():
    dashboard = json.loads(DASHBOARD.read_text())
    assert dashboard["title"] == "Sluice" and dashboard["schemaVersion"] >= 36
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", "works with any data source"
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert {name for name in used if not name.startswith("__")} <= variables


def test_every_metric_that_the_dashboard_queries_is_on_the_page(watched):
    families = families_on(watched)
    assert len(families) > 40
    queries = list(dashboard_queries())
    assert len(queries) > 25
    for title, query in queries:
        named = list(families_of(query, families))
        assert named, f"{title} queries nothing of ours: {query}"
        for name, family in named:
            assert family in families, f"{title}: {name} is not on the page"


def test_every_metric_that_top_reads_is_on_the_page(watched):
    names = set()

    class Noted(_top_pages.Scrape):
        def rows(self, name, *keys):
            names.add(name.removesuffix("_bucket"))
            return super().rows(name, *keys)

        def value(self, name, default=None, **labels):
            found = super().value(name, default, **labels)
            return 1 if name == "sluice_job_oldest_pull_seconds" else found  # a store's, too

    now = Noted(text_string_to_metric_families(page(watched)), 0)
    assert _top_model.view(_top_pages.Span(now, now)).jobs
    assert len(names) > 25
    assert not names - set(families_on(watched))


def test_the_page_says_what_every_packet_was_good_for(watched):
    uses = {sample.labels["reason"]: sample.labels["use"]
            for family in text_string_to_metric_families(page(watched))
            for sample in family.samples if sample.name == "sluice_packets_total"}
    assert set(uses.values()) == {"useful", "useless", "foreign", "malformed"}
    assert (uses["folded"], uses["bad_chunk"]) == ("useful", "malformed")
    assert r'use!=\"useful\"' in DASHBOARD.read_text()


def frame_where(address, holds, *arguments):
    """The first frame of which that holds: on a busy machine rates and waits of a few seconds are
    not always those of the ranks' sleeps."""
    command = [sys.executable, "-B", "-m", "sluice", "top", address, "--once", *arguments]
    # Newer pytests import readline, which tells processes that they have 80 columns.
    options = {"env": {**os.environ, "COLUMNS": "100"}, "capture_output": True, "text": True}
    deadline = time.monotonic() + 300
    while True:
        done = subprocess.run(command, timeout=300, check=False, **options)
        assert done.returncode == 0, done.stderr
        if holds(done.stdout):
            return done.stdout
        assert time.monotonic() < deadline, done.stdout


def paced(text):
    """That the steps a second are those of ranks of which one sleeps 0.3 s in each step."""
    return any(0.1 < float(rate) < 4 for rate in re.findall(r"  ([\d.]+) steps/s", text))


def test_top_shows_the_running_job_and_who_is_late(watched):
    def late(text):
        return re.findall(r"^ +(\d) +- +[\d.]+ ([mu]?s)", text, re.M)

    text = frame_where(watched, lambda text: (
        paced(text) and "oldest open chunk waits for rank 2\n" in text
        and late(text)[:1] in ([("2", "ms")], [("2", "s")])), "--interval", "3")
    head = re.search(r"^watched  running  3 of 3 ranks  step (\d+)  [\d.]+ steps/s  step p50 "
                     r"[\d.]+ m?s$", text, re.M)
    assert head and int(head[1]) > 1, text
    assert "k 3 of 3   policy sync" in text
    assert {rank for rank, _ in late(text)} == {"0", "1", "2"}
    assert re.search(r"^worker0 +up +[\d.]+ [kM]b/s", text, re.M), text
    assert re.search(r"^worker3 +down +0 b/s", text, re.M), text


def waits_of(text):
    """The share of the time for which a store's rank is suspended, in per cent, by rank."""
    return {int(rank): int(share)
            for rank, share in re.findall(r"^ +([0-2]) +\d +(\d+) % ", text, re.M)}


def others_wait_for_rank_2(text):
    """Of a store: the two fast ranks wait nearly always, not always, and rank 2 for nobody."""
    waits = waits_of(text)
    return ("least clock: rank 2\n" in text and "p99 2 " in text and len(waits) == WORKERS
            and min(waits[0], waits[1]) > 50 > waits[2])


def test_top_shows_a_running_store_and_for_whom_the_others_wait(stored):
    text = frame_where(stored, lambda text: paced(text) and others_wait_for_rank_2(text),
                       "--interval", "3")
    head = re.search(r"^stored  running  3 of 3 ranks  step (\d+)  [\d.]+ steps/s$", text, re.M)
    assert head and int(head[1]) > 1, text
    store = re.search(r"^  store   clocks (\d+) to (\d+)   staleness at read p50 2, p99 2   "
                      r"parked pulls wait p50 [\d.]+ [mu]?s$", text, re.M)
    assert store and int(store[1]) == int(head[1]) - 1, text
    assert int(store[2]) - int(store[1]) in (2, 3), text
    assert re.search(r"pulls? of blocks parked, the oldest for [\d.]+ [mu]?s .*; "
                     r"least clock: rank 2$", text, re.M), text
    behind = dict(re.findall(r"^ +(\d) +(\d+) +\d+ % +[0-3] +[\d.]+ [mu]?s$", text, re.M))
    assert set(behind) == {"0", "1", "2"} and behind["2"] in ("2", "3"), text


@pytest.fixture(scope="module")
def prometheus(watched, fastest, stored, tmp_path_factory):
    """A query function of a server that has scraped the appliances for some seconds."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed (apt install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(
        (ROOT / "config/deploy/prometheus.yml").read_text()
        .replace("127.0.0.1:9464", f'{watched}", "{fastest}", "{stored}')
        .replace("scrape_interval: 5s", "scrape_interval: 1s"))
    port = free_port()
    log = open(folder / "log", "w+b")
    server = Child(["prometheus", f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}"],
                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def query(text):
        url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise  # it is still starting
            raise AssertionError(f"{text}: {error.read().decode()}") from None

    try:
        deadline = time.monotonic() + 300
        while True:
            try:
                if len(query("count_over_time(sluice_jobs[1m]) >= 6")) == 3:
                    break
            except OSError:
                pass  # it is still starting
            assert server.poll() is None and time.monotonic() < deadline, (
                (folder / "log").read_text())
            time.sleep(0.2)
        yield query
    finally:
        stop_all([server])
        log.close()


def test_top_shows_k_and_how_far_a_straggler_is_behind(fastest):
    def holds(text):  # the first two steps are those of all ranks
        row = re.search(r"^ +2 +[\d.]+ m?s +[\d.]+ m?s +(\d+) .* 0 % ", text, re.M)
        return row and int(row[1]) > 4

    text = frame_where(fastest, holds)
    assert "k 2 of 3   policy fixed, late gradients requeued" in text
    assert re.search(r"^ +[01] .* 100 % ", text, re.M), text


def test_top_shows_how_stale_a_store_is_read_and_who_is_waited_for(stored):
    text = frame_where(stored, others_wait_for_rank_2)
    clocks = re.search(r"^  store   clocks (\d+) to (\d+)   staleness at read p50 2, "
                       r"p99 2   parked pulls wait p50 [\d.]+ m?s", text, re.M)
    assert clocks and 0 < int(clocks[2]) - int(clocks[1]) <= 3, text
    assert re.search(r"^  \d+ pulls? of blocks parked, the oldest for [\d.]+ [mu]?s "
                     r"\(layer [0-2]: ", text, re.M), text
    assert re.search(r"^ +2 +[1-3] +\d+ % +[0-3] ", text, re.M), text


def test_every_panel_has_data_of_a_running_job(prometheus):
    empty = {}
    for title, query in dashboard_queries():
        if title.startswith("variable "):
            continue
        for variable, value in _VARIABLES.items():
            query = query.replace(variable, value)
        rows = prometheus(query)
        if not rows:
            empty[title] = query
        for row in rows:
            value = float(row["value"][1])
            assert 0 <= value < 1e15, f"{title}: {row}"
    assert set(empty) <= _MAY_BE_EMPTY, empty


def test_the_panels_name_the_slow_rank(prometheus):
    queries = dict(dashboard_queries())

    def rows(title, job="watched"):
        query = queries[title]
        for variable, value in _VARIABLES.items():
            query = query.replace(variable, value)
        return {row["metric"]["rank"]: float(row["value"][1]) for row in prometheus(query)
                if row["metric"]["job"] == job}

    deadline = time.monotonic() + 300
    while "2" not in rows("Missing from the oldest open chunk"):
        assert time.monotonic() < deadline, rows("Missing from the oldest open chunk")
        time.sleep(0.5)
    lag = rows("Lag behind the first finisher, p50")
    assert len(lag) == WORKERS and max(lag, key=lag.get) == "2" and lag["2"] > 0.2
    included = rows("Share of the sums that a rank is in")
    assert all(0.5 < share <= 1 for share in included.values()) and len(included) == WORKERS
    for title in ("Behind the middle rank", "Gradient time D", "Steps behind"):
        behind = rows(title, "fastest")
        assert max(behind, key=behind.get) == "2" and len(behind) == WORKERS, (title, behind)
    included = rows("Share of the sums that a rank is in", "fastest")
    assert included["2"] < 0.5 < included["0"]
