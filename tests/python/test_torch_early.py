"""StaleSynchronous with push_at='backward': the pushes that leave in a backward, those that wait
for step(), the reasons, and the order."""

import logging

import pytest

import sluice
from inproc import address, on_threads  # noqa: F401 - a fixture
from sluice import trace

torch = pytest.importorskip("torch")
sluice_torch = pytest.importorskip("sluice.torch")

from test_torch_stale import OPTIMIZERS, Odd, backward, batch, bits, network  # noqa: E402

StaleSynchronous = sluice_torch.StaleSynchronous
LAYERS = 4


def train(address, count, push_at, work, make=network, *,  # noqa: F811
          kind="sgd", **options):
    """What work(trained, optimizer, rank) has returned, by rank."""
    models = [make() for _ in range(count)]

    def on_rank(rank):
        optimizer = OPTIMIZERS[kind](models[rank].parameters())
        with StaleSynchronous(models[rank], optimizer, address, rank=rank, world_size=count,
                              push_at=push_at, **options) as trained:
            return work(trained, optimizer, rank)

    return on_threads(on_rank, count, seconds=100)


def plain_loop(steps):
    def work(trained, optimizer, rank):
        history = []
        for step in range(steps):
            optimizer.zero_grad()
            backward(trained.model, rank, step)
            optimizer.step()
            trained.flush()
            history.append(bits(trained.model))
        return history, trained.early_pushes, trained.reason
    return work


@pytest.mark.parametrize("at", ["worker", "store"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bound_0_has_the_same_bits_wherever_pushes_leave(address, kind, at):  # noqa: F811
    steps = 30
    found = {push_at: train(f"{address}-{push_at}", 3, push_at, plain_loop(steps), kind=kind,
                            optimizer_at=at, reproducible=True)
             for push_at in ("step", "backward")}
    for (late, none, _), (early, count, reason) in zip(found["step"], found["backward"]):
        assert all(map(torch.equal, late, early))
        assert (none, count, reason) == (0, LAYERS * (steps - 1), None)


@pytest.mark.parametrize("at", ["worker", "store"])
@pytest.mark.parametrize("bound", [0, 2])
def test_a_layer_is_counted_before_the_backward_ends(address, bound, at):  # noqa: F811
    def work(trained, optimizer, rank):
        seen = []

        # The first layer's gradient is the last one.
        def late(_gradient):
            if step > 0:
                trained.store.wait_push(LAYERS - 1, 10)
                pushed = [clocks.pushed for clocks in trained.clocks().values()]
                seen.append((pushed[0], pushed[-1]))

        handle = trained.model[0].weight.register_hook(late)
        for step in range(6):
            optimizer.zero_grad()
            backward(trained.model, rank, step)
            optimizer.step()
        handle.remove()
        trained.synchronise(30)
        return seen, bits(trained.model)

    results = train(address, 2, "backward", work, bound=bound, optimizer_at=at)
    for seen, parameters in results:
        assert seen == [(step, step + 1) for step in range(1, 6)]
        assert torch.equal(parameters, results[0][1])


def clipped(optimizer, model, rank, step):
    backward(model, rank, step)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def accumulated(optimizer, model, rank, step):
    backward(model, rank, step)
    backward(model, rank, step + 100)


@pytest.mark.parametrize("at", ["worker", "store"])
@pytest.mark.parametrize("body, text", [
    (clipped, "between backward and step() the gradient of '0.weight' is changed"),
    (accumulated, "more than one backward adds to a gradient before step()")])
def test_loops_that_need_all_gradients_have_them_and_are_told(address, caplog, body,  # noqa: F811
                                                              text, at):
    def work(trained, optimizer, rank):
        for step in range(5):
            optimizer.zero_grad()
            body(optimizer, trained.model, rank, step)
            optimizer.step()
        trained.flush()
        return bits(trained.model), trained.reason, trained.early_pushes

    with caplog.at_level(logging.WARNING, "sluice"):
        found = {push_at: train(f"{address}-{push_at}", 2, push_at, work, optimizer_at=at,
                                reproducible=True)
                 for push_at in ("step", "backward")}
    for (late, none, _), (early, reason, count) in zip(found["step"], found["backward"]):
        assert torch.equal(late, early) and none is None
        assert text in reason and count == 0
    told = [record.message for record in caplog.records if text in record.message]
    assert len(told) == 2 and all("all pushes leave at step()" in each for each in told)


def test_what_a_scaler_changes_leaves_at_step(address):  # noqa: F811
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        pytest.skip("a GradScaler on a CPU needs torch 2")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def work(trained, optimizer, rank):
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            loss = torch.nn.functional.cross_entropy(trained.model(inputs), targets)
            scaler.scale(loss * (float("inf") if step in (0, 2) else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        trained.flush()
        return trained.iterations, trained.reason, bits(trained.model).isfinite().all()

    for at in ("worker", "store"):
        (iterations, reason, finite), = train(f"{address}-{at}", 1, "backward", work,
                                              optimizer_at=at)
        assert iterations == 2 and finite and reason is not None


class Other(torch.optim.SGD):
    """Who knows what it does."""


def test_an_optimizer_that_is_not_run_in_parts_runs_whole(address):  # noqa: F811
    model = network()
    optimizer = Other(model.parameters(), lr=0.1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1,
                          push_at="backward") as trained:
        assert "Other is not known to treat each parameter by itself" in trained.reason
        for step in range(3):
            optimizer.zero_grad()
            backward(model, 0, step)
            optimizer.step()
        assert trained.early_pushes == 0 and trained.iterations == 3


def change_rate(optimizer, model):
    optimizer.param_groups[0]["lr"] = 0.01


def change_data(optimizer, model):
    model[3].weight.grad.data.clamp_(-1e-3, 1e-3)


def go_back_again(optimizer, model):
    backward(model, 0, 7)


@pytest.mark.parametrize("at", ["worker", "store"])
@pytest.mark.parametrize("change, text", [
    (change_rate, "options were changed between backward and step"),
    (change_data, "gradient of '3.weight' was changed between backward and step"),
    (go_back_again, "a second backward before step")])
def test_what_comes_too_late_is_an_error(address, change, text, at):  # noqa: F811
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1, push_at="backward",
                          optimizer_at=at) as trained:
        for step in range(3):
            optimizer.zero_grad()
            backward(model, 0, step)
            optimizer.step()
        optimizer.zero_grad()
        backward(model, 0, 3)
        with pytest.raises(sluice.InvalidArgument, match=text):
            change(optimizer, model)
            optimizer.step()
        trained.store.abort()
        trained._detach()
        trained.store = None


@pytest.mark.parametrize("at", ["worker", "store"])
def test_odd_models_schedules_and_closures(address, at):  # noqa: F811
    def make():
        torch.manual_seed(3)
        return Odd()

    def work(trained, optimizer, rank):
        model = trained.model
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for step in range(8):
            generator = torch.Generator().manual_seed(100 * rank + step)
            tokens = torch.randint(20, (16, 5), generator=generator)

            def closure():
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(tokens), tokens[:, 0])  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
            scheduler.step()
        trained.flush()
        count = trained.early_pushes
        trained.finish()
        closure()  # a plain model again
        optimizer.step()
        return torch.cat([value.flatten() for value in model.parameters()]), count

    found = {push_at: train(f"{address}-{push_at}", 2, push_at, work, make, optimizer_at=at,
                            reproducible=True)
             for push_at in ("step", "backward")}
    for (late, _), (early, count) in zip(found["step"], found["backward"]):
        assert torch.equal(late, early)
        assert count == 3 * 7, "all layers but the one that is not used"


def test_only_step_and_backward_are_known(address):  # noqa: F811
    model = network()
    with pytest.raises(sluice.InvalidArgument, match="'step' or 'backward'"):
        StaleSynchronous(model, torch.optim.SGD(model.parameters(), 0.1), address, rank=0,
                         world_size=1, push_at="moon")


class Backwards(torch.nn.Module):
    """Its layers are registered from the last to the first."""

    def __init__(self):
        super().__init__()
        self.third, self.second = torch.nn.Linear(7, 4), torch.nn.Linear(6, 7)
        self.first = torch.nn.Linear(12, 6)

    def forward(self, x):
        return self.third(self.second(self.first(x)))


def test_the_front_of_the_model_is_what_forward_needs_first(address, tmp_path):  # noqa: F811
    model = Backwards()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1,
                          trace=str(tmp_path)) as trained:
        for step in range(5):
            optimizer.zero_grad()
            backward(model, 0, step)
            optimizer.step()
        trained.flush()
    priorities = {}
    for event in trace.merge(tmp_path).events:
        if "staleness" in event.get("args", {}):
            found = priorities.setdefault(event["args"]["step"], {})
            found[event["args"]["tensor"]] = event["args"]["priority"]
    assert priorities[1] == {0: 0, 2: 1, 4: 2}, "as registered: third, second, first"
    assert all(priorities[step] == {0: 2, 2: 1, 4: 0} for step in range(3, 6)), priorities
