"""Stores that outlive their workers, or do not, over an appliance inside this process."""

import contextlib

import pytest

import sluice
from inproc import address, on_threads  # noqa: F401 - a fixture
from sluice import _store_command

np = pytest.importorskip("numpy")


@contextlib.contextmanager
def lasting(address):  # noqa: F811
    """The appliance at the address is there between the runs of a test."""
    with sluice.Job([("x", 1, "float32")], address, job="holder", rank=0, world_size=1, run_id=1):
        yield


def one_run(address, run_id, layers=(("w", 500),), world_size=2, **options):  # noqa: F811
    """Two workers add 1 each time; returns whether they found a store, and its first value."""
    def work(rank):
        with sluice.Store([list(layers)], address, job="kept", bound=1, rank=rank,
                          world_size=world_size, run_id=run_id, **options) as store:
            kept, values = store.kept, [np.zeros(count, np.float32) for _, count in layers]
            if rank == 0:
                store.initialise(0, values)
                store.wait_push(0, 30)
            store.barrier(30)
            store.pull(0, values)
            store.wait_pull(0, 30)
            store.push(0, [np.ones(count, np.float32) for _, count in layers])
            store.wait_push(0, 30)
            store.barrier(30)
            store.pull(0, values)
            store.wait_pull(0, 30)
            store.barrier(30)
            return kept, float(values[0][0])
    return on_threads(work, world_size)


def test_a_kept_store_gives_way_only_to_who_says_so(address):  # noqa: F811
    with lasting(address):
        assert one_run(address, 1) == [(False, 1)] * 2
        for other, words in (({"layers": (("v", 500),)}, "first that differs is tensor 0 'v'"),
                             ({"world_size": 3}, "world size 3, job 'kept' has world size 2"),
                             ({"keep": False}, "keep 'end'")):
            with pytest.raises(sluice.Refused, match=words):
                one_run(address, 2, **other)
        assert one_run(address, 3) == [(True, 2)] * 2, "nothing has been lost"
        assert one_run(address, 4, layers=(("v", 500),), keep="anew") == [(False, 1)] * 2


def test_save_and_load_destroy_nothing(address, tmp_path):  # noqa: F811
    target = f"{address}/kept"
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_text('{"layers": [[["w", 500]]], "world_size": 2, "bound": 1}')
    wrong.write_text('{"layers": [[["w", 600]]], "world_size": 2, "bound": 1}')
    with lasting(address):
        with pytest.raises(sluice.Refused, match="no store is kept under job 'kept'"):
            _store_command.save(target, tmp_path / "no.npz", right, run_id=9)
        assert one_run(address, 1) == [(False, 1)] * 2
        with pytest.raises(sluice.Refused, match="tensor 0 'w' here"):
            _store_command.save(target, tmp_path / "no.npz", wrong, run_id=10)
        assert _store_command.save(target, tmp_path / "one.npz", right, run_id=11) == 1
        about = _store_command._store_file.read(tmp_path / "one.npz")[0]
        np.savez(tmp_path / "other.npz", w=np.zeros(500, np.float32), sluice_store=np.frombuffer(
            str({**about, "bound": 7}).replace("'", '"').replace("False", "false")
            .replace("None", "null").encode(), np.uint8))
        with pytest.raises(sluice.Refused, match="bound 7.*bound 1"):
            _store_command.load(target, tmp_path / "other.npz", run_id=12)
        assert one_run(address, 2) == [(True, 2)] * 2


@pytest.mark.parametrize("options, again", [({}, False), ({"job": "mine"}, True),
                                            ({"keep": True}, True),
                                            ({"job": "mine", "keep": False}, False)])
def test_a_second_run_goes_on_only_where_that_was_asked_for(address, options,  # noqa: F811
                                                            again):
    torch = pytest.importorskip("torch")
    stale_synchronous = pytest.importorskip("sluice.torch").StaleSynchronous

    def run(run_id):
        model = torch.nn.Linear(3, 2)
        with stale_synchronous(model, torch.optim.SGD(model.parameters(), lr=0.1), address, rank=0,
                               world_size=1, run_id=run_id, **options) as stale:
            begun = stale.iterations
            model(torch.ones(1, 3)).sum().backward()
            stale.optimizer.step()
            return begun

    with lasting(address):
        assert run(1) == 0
        assert run(2) == (1 if again else 0)
