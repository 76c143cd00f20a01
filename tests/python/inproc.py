"""Jobs over an appliance inside this process: one thread a rank."""

import itertools
import threading

import pytest

import sluice

_names = itertools.count()
SPECS = [("weight", 1000, "float32"), ("bias", 7, "float32")]


@pytest.fixture
def address():
    return f"inproc://job-{next(_names)}"


def on_threads(work, count, seconds=60):
    """work(rank) on a thread for each rank; returns the results, raises the first error."""
    results, failures = [None] * count, []

    def rank_main(rank):
        try:
            results[rank] = work(rank)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]
    return results


def on_all_ranks(work, count, address, specs=SPECS, **options):
    """work(job) for each rank, as on_threads() does it."""
    def rank_main(rank):
        with sluice.Job(specs, address, rank=rank, world_size=count, run_id=1, **options) as job:
            return work(job)
    return on_threads(rank_main, count)
