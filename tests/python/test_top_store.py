"""The lines of `python3 -m sluice top` about a parameter store."""

import re

from top_page import page, printed, scraped, view

STORE = """
sluice_job_least_clock{job="digits"} 28
sluice_job_greatest_clock{job="digits"} 31
sluice_job_clock{job="digits",rank="0"} 31
sluice_job_clock{job="digits",rank="1"} 30
sluice_job_clock{job="digits",rank="2"} 28
sluice_job_clock{job="digits",rank="3"} 31
sluice_job_suspended_seconds_total{job="digits",rank="0"} 12
sluice_job_suspended_seconds_total{job="digits",rank="2"} 3
sluice_job_oldest_request_iterations{job="digits",rank="0"} 0
sluice_job_oldest_request_iterations{job="digits",rank="2"} 3
sluice_job_oldest_pull_seconds{job="digits"} 0.35
sluice_job_parked_pulls{job="digits",layer="0"} 2
sluice_job_parked_pulls{job="digits",layer="3"} 5
sluice_job_parked_pulls{job="digits",layer="4"} 0
sluice_job_pull_wait_seconds_bucket{job="digits",le="0.1"} 0
sluice_job_pull_wait_seconds_bucket{job="digits",le="0.2"} 10
sluice_job_pull_wait_seconds_bucket{job="digits",le="+Inf"} 10
sluice_job_staleness_iterations_bucket{job="digits",le="0"} 1
sluice_job_staleness_iterations_bucket{job="digits",le="1"} 80
sluice_job_staleness_iterations_bucket{job="digits",le="3"} 99
sluice_job_staleness_iterations_bucket{job="digits",le="+Inf"} 100
"""


def test_a_parameter_store_shows_its_clocks_and_who_is_waited_for():
    text = page(step=29, gradient=None, missing=(), k=0) + STORE
    found = view(scraped(text))
    store = found.jobs[0].store
    assert (store.least, store.greatest, store.parked) == (28, 31, 7)
    assert store.layers == [(3, 5), (0, 2)] and store.staleness == (1, 3)
    assert [rank.steps_back for rank in sorted(found.jobs[0].ranks)] == [0, 1, 3, 0]
    frame = printed(found)
    assert ("store   clocks 28 to 31   staleness at read p50 1, p99 3   "
            "parked pulls wait p50 150 ms") in frame
    assert ("7 pulls of blocks parked, the oldest for 350 ms (layer 3: 5, 0: 2); least clock: "
            "rank 2") in frame
    assert "oldest open chunk" not in frame


def test_clocks_of_six_digits_leave_room_for_the_wait_in_100_columns():
    text = page(step=29, gradient=None, missing=(), k=0) + re.sub(
        r"(_clock{.*}) (\d+)", r"\1 1000\2", STORE)
    frame = printed(view(scraped(text)))
    assert re.search("clocks 100028 to 100031 .* parked pulls wait p50 150 ms$", frame, re.M), frame


def test_a_store_without_workers_is_kept():
    text = re.sub(r".*(rank=|least_clock|greatest_clock|parked_pulls).*\n", "",
                  page(step=32, gradient=None, missing=(), k=0) + STORE)
    text = text.replace('sluice_job_members{job="digits"} 4', 'sluice_job_members{job="digits"} 0')
    frame = printed(view(scraped(text)))
    assert "digits  running  0 of 5 ranks  step 32" in frame
    assert "no worker is left: the parameters are kept for those to come" in frame
    assert "waits for" not in frame and "gone or finished: ranks 0-4" in frame


def test_a_stores_ranks_show_how_long_they_wait_and_how_old_their_requests_are():
    def waited(seconds, time_s):
        return scraped(page(step=29, gradient=None, missing=(), k=0) + STORE.replace(
            'rank="0"} 12', f'rank="0"}} {seconds}'), time_s)

    found = view(waited(13.5, 102), waited(12, 100))
    ranks = {rank.rank: rank for rank in found.jobs[0].ranks}
    assert (ranks[0].suspended, ranks[2].suspended, ranks[1].suspended) == (0.75, 0, None)
    assert (ranks[0].oldest_request, ranks[2].oldest_request) == (0, 3)
    frame = printed(found)
    assert re.search(r"^ *rank +steps back +suspended +oldest request +silent", frame, re.M), frame
    assert re.search(r"^ *2 +3 +0 % +3 +10 ms", frame, re.M), frame
    assert re.search(r"^ *0 +0 +75 % +0 +10 ms", frame, re.M), frame
    assert re.search(r"^ *rank +steps back +suspended$", printed(found, 50), re.M)
