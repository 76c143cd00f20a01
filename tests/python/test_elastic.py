"""Ranks that torchrun starts on several nodes: one run id a round, for any count of the nodes."""

import datetime
import itertools
import threading

import pytest

import sluice
from inproc import on_threads
from sluice import _elastic

torch = pytest.importorskip("torch")
from torch.distributed import TCPStore  # noqa: E402

pytestmark = pytest.mark.skipif(
    not hasattr(TCPStore, "check"),
    reason=f"torchrun's store needs torch 2, this is {torch.__version__}: ./run test-torch2")
_names = itertools.count()


@pytest.fixture
def agents():
    """The store that torchrun's agents keep; the environment of a worker whose node counts so many
    restarts."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                     timeout=datetime.timedelta(seconds=30))

    def environment(restarts=0):
        return {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port), "TORCHELASTIC_RESTART_COUNT": str(restarts)}
    yield environment
    _elastic._stores.clear()
    del store


def run_ids(environment, world_size, job="job/0"):
    """Of a round: of each rank, on a node whose count is its own."""
    def one(rank):
        _elastic._stores.clear()  # each has a process of its own
        return _elastic.run_id(None, job, rank, world_size, 60.0, environment(rank % 2))
    return on_threads(one, world_size)


def test_each_round_has_one_run_id_of_its_own(agents):
    rounds = [run_ids(agents, 3) for _ in range(4)]
    assert all(len(set(ids)) == 1 for ids in rounds)
    assert len({ids[0] for ids in rounds}) == 4


def test_what_a_round_that_was_killed_has_asked_is_not_taken_for_an_answer(agents):
    """Ranks 1 and 2 of the first round have asked, and its rank 0 never came."""
    for rank in (1, 2):
        with pytest.raises(sluice.TimedOut, match="rank 0 did not tell"):
            _elastic.run_id(None, "job/0", rank, 3, 0.05, agents())
    with pytest.raises(sluice.TimedOut, match=r"ranks \[1, 2\] did not ask"):
        _elastic.run_id(None, "job/0", 0, 3, 0.2, agents())
    assert len(set(run_ids(agents, 3))) == 1


def test_a_given_run_id_asks_nobody_and_a_store_that_is_gone_neither():
    gone = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1"}
    assert _elastic.run_id(7, "job/0", 1, 2, 60.0, gone) == 7
    assert _elastic.run_id(None, "job/0", 1, 2, 60.0, gone) == _elastic.run_id(
        None, "job/0", 0, 2, 60.0, gone)


@pytest.mark.usefixtures("library")
def test_a_job_starts_again_where_the_nodes_counts_differ(agents, monkeypatch):
    for name, value in agents().items():
        monkeypatch.setenv(name, value)
    address = f"inproc://elastic-{next(_names)}"
    counts = threading.local()
    real = _elastic.run_id
    monkeypatch.setattr(_elastic, "run_id", lambda *arguments: real(
        *arguments, agents(counts.restarts)))
    for restarts in range(3):
        def work(rank):
            counts.restarts = restarts * rank  # noqa: B023 - only node 1's workers have failed
            with sluice.Job([("w", 4, "float32")], address, rank=rank, world_size=2) as job:
                return job._asked.run_id
        ids = on_threads(work, 2)
        assert ids[0] == ids[1]
