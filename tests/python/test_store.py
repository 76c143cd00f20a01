"""sluice.Store over an appliance inside this process: one thread a rank."""

import pytest

import sluice
from inproc import address, on_threads  # noqa: F401 - a fixture
from sluice import trace

np = pytest.importorskip("numpy")

LAYERS = [[("weight", 40_000), ("bias", 3)], [("head", 500)]]


def on_all_ranks(work, count, address, **options):  # noqa: F811
    """work(store) for each rank, as on_threads() does it."""
    def rank_main(rank):
        with sluice.Store(LAYERS, address, rank=rank, world_size=count, run_id=1,
                          **options) as store:
            return work(store)
    return on_threads(rank_main, count)


def arrays(value):
    return [[np.full(count, value, np.float32) for _, count in layer] for layer in LAYERS]


def initialise(store, values):
    if store.rank == 0:
        for layer, each in enumerate(values):
            store.initialise(layer, each)


def pulled(store, copies):
    for layer, each in enumerate(copies):
        store.pull(layer, each)
    for layer in range(store.layer_count):
        store.wait_pull(layer, 30)


def pushed(store, deltas, rate=0.0):
    for layer in reversed(range(store.layer_count)):
        store.push(layer, deltas[layer], rate)
    for layer in range(store.layer_count):
        store.wait_push(layer, 30)


@pytest.mark.parametrize("bound", [0, 2, None])
def test_own_pushes_are_in_every_read_and_the_others_within_the_bound(address, bound):  # noqa: F811
    def work(store):
        copies = arrays(-1)
        initialise(store, arrays(0))
        for iteration in range(1, 16):
            pulled(store, copies)
            own = iteration - 1
            need = 0 if bound is None else max(0, own - bound)
            for value in np.unique(np.concatenate([each for layer in copies for each in layer])):
                counts = int(value) % 32, int(value) // 32
                assert counts[store.rank] == own and counts[1 - store.rank] >= need
                assert bound != 0 or counts[1 - store.rank] == own
            pushed(store, arrays(2 * 32.0 ** store.rank))  # a push counts 1/n
        store.barrier(30)  # who leaves makes the pushes of the other count more
        return store.clocks(1)

    for clocks in on_all_ranks(work, 2, address, bound=bound):
        assert clocks.pushed == 15 and clocks.held >= (14 if bound == 0 else 0)


def test_adam_at_the_store_is_that_of_the_mean(address):  # noqa: F811
    torch = pytest.importorskip("torch")
    modern = int(torch.__version__.split(".")[0]) >= 2

    def work(store):
        copies, random = arrays(0), np.random.default_rng(store.rank)
        initialise(store, arrays(0.5))
        for _ in range(20):
            pulled(store, copies)
            pushed(store, [[random.standard_normal(count).astype(np.float32)
                            for _, count in layer] for layer in LAYERS], 0.01)
        pulled(store, copies)
        return copies[1][0]

    first, second = on_all_ranks(work, 2, address, update="adam", adam_lerp=modern)
    parameter = torch.nn.Parameter(torch.full((500,), 0.5))
    optimizer = torch.optim.Adam([parameter], lr=0.01)
    randoms = [np.random.default_rng(rank) for rank in range(2)]
    for _ in range(20):
        drawn = [[random.standard_normal(count).astype(np.float32) for layer in LAYERS
                  for _, count in layer][-1] for random in randoms]
        parameter.grad = torch.from_numpy((drawn[0] + drawn[1]) / np.float32(2))
        optimizer.step()
    assert (first == second).all()
    ulps = np.abs(first.view(np.int32) - parameter.detach().numpy().view(np.int32))
    assert ulps.max() <= (0 if not modern else 40)  # 2 an update, README of aggregator/store


def test_requests_may_be_ordered_in_three_ways_and_ranks_may_differ(address):  # noqa: F811
    def rank_main(rank):
        options = {} if rank == 0 else {"requests": ("fifo", "filo")[rank - 1]}
        with sluice.Store(LAYERS, address, rank=rank, world_size=3, run_id=1, **options) as store:
            copies = arrays(-1)
            initialise(store, arrays(0))
            for iteration in range(1, 6):
                pulled(store, copies)
                assert (copies[0][0] == 2 * (iteration - 1)).all()
                pushed(store, arrays(2))
            return store.schedule_plan()

    for plan, name in zip(on_threads(rank_main, 3), ("stalest", "fifo", "filo")):
        assert plan.startswith(name + ": ")


def test_a_wait_for_others_times_out_and_names_them(address):  # noqa: F811
    def work(store):
        copies = arrays(0)
        initialise(store, arrays(0))
        pulled(store, copies)
        if store.rank == 0:
            pushed(store, arrays(2))
            store.pull(0, copies[0])
            with pytest.raises(sluice.TimedOut, match="layer 0 is needed with clock 1"):
                store.wait_pull(0, 0.3)
            assert "layer 0" in store.describe_stall()
        store.barrier(30)
        if store.rank == 1:
            pushed(store, arrays(2))
        store.barrier(30)

    on_all_ranks(work, 2, address, bound=0)


@pytest.mark.parametrize("options, text", [
    (dict(bound=-1), "bound=-1"),
    (dict(update="adagrad"), "update='adagrad'"),
    (dict(requests="filofax"), "did you mean 'filo'"),
    (dict(update="adam", bound=1), "Adam's moments"),
    (dict(update="sgd", bound=1, weight_decay=0.1), "once a worker instead"),
    (dict(wire="int8"), "travel as float32"),
    (dict(prune="static"), "are sent whole"),
    (dict(averaging="sum"), "averaging"),
])
def test_what_cannot_be_is_refused_with_the_reason(address, options, text):  # noqa: F811
    with pytest.raises((sluice.InvalidArgument, sluice.Refused), match=text):
        sluice.Store(LAYERS, address, rank=0, world_size=1, **options)


def test_arrays_of_another_kind_are_refused_by_name(address):  # noqa: F811
    with sluice.Store(LAYERS, address, rank=0, world_size=1) as store:
        for layer, values, text in ((0, [np.zeros(3, np.float32)], "1 arrays for 2"),
                                    (1, [np.zeros(3, np.float32)], "'head' has 3 elements"),
                                    (1, [np.zeros(500)], "'head' has elements of type <f8"),
                                    (2, [], "layer 2 does not exist")):
            with pytest.raises(sluice.InvalidArgument, match=text):
                store.initialise(layer, values)
        with pytest.raises(sluice.InvalidArgument, match="pull it first"):
            store.push(1, arrays(0)[1])


def test_the_trace_has_each_layers_iterations_and_their_staleness(address, tmp_path):  # noqa: F811
    def work(store):
        copies = arrays(-1)
        initialise(store, arrays(0))
        for _ in range(5):
            pulled(store, copies)
            pushed(store, arrays(1))
        pulled(store, copies)
        return store.stats()

    stats = on_all_ranks(work, 2, address, bound=1, trace=str(tmp_path))
    assert all(each["suspended_ns"] > 0 for each in stats)
    assert all(each["oldest_request_iterations"] == 0 for each in stats), "nothing waits any more"
    merged = trace.merge(tmp_path)
    assert merged.ranks == [0, 1] and merged.steps == [1, 2, 3, 4, 5, 6]
    spans = [event for event in merged.events if "staleness" in event.get("args", {})]
    assert len(spans) == 2 * 2 * 6  # ranks, layers, iterations
    assert {span["args"]["tensor"] for span in spans} == {0, 2}, "a layer's first tensor"
    for span in spans:
        assert 0 <= span["args"]["staleness"] <= 1
        assert span["args"]["packets"] > 0 and span["dur"] > 0
        assert span["args"]["clock"] >= span["args"]["step"] - 2
        assert span["args"]["parked"] >= 0
        assert 0 <= span["args"]["oldest_request_iterations"] <= 1
        assert 0 <= span["args"]["suspended_us"]
        inside = [event for event in merged.events
                  if event["ph"] == "X" and event["tid"] == span["tid"] and event is not span
                  and event["args"]["step"] == span["args"]["step"]]
        assert any(event["name"].startswith("waits for its clock") for event in inside)
    told_us = sum(span["args"]["suspended_us"] for span in spans)
    assert 0 < told_us <= sum(each["suspended_ns"] for each in stats) / 1000 + 0.001 * len(spans)


def test_a_description_says_what_a_join_must_say(address):  # noqa: F811
    def work(store):
        return store.describe()

    about = on_all_ranks(work, 2, address, bound=None, chunk_bytes=512)[0]
    assert about["layers"] == [[("weight", 40_000), ("bias", 3)], [("head", 500)]]
    assert (about["world_size"], about["bound"], about["chunk_bytes"]) == (2, None, 512)
