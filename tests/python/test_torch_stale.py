"""StaleSynchronous over an appliance inside this process: one thread a rank."""

import copy
import time

import pytest

import sluice
from inproc import address, on_all_ranks, on_threads  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")
sluice_torch = pytest.importorskip("sluice.torch")

from updates import allowed_ulps, ulps_apart  # noqa: E402

StaleSynchronous = sluice_torch.StaleSynchronous


def network(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.ReLU(), torch.nn.LayerNorm(40),
                               torch.nn.Linear(40, 500), torch.nn.Tanh(), torch.nn.Linear(500, 4))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 12, generator=generator)
    return inputs, inputs.reshape(8, 4, 3).sum(2).argmax(1)


def backward(model, rank, step):
    inputs, targets = batch(rank, step)
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss.item()


def loss_of(model):
    """On samples that nobody trains on."""
    with torch.no_grad():
        return sum(torch.nn.functional.cross_entropy(model(inputs), targets).item()
                   for inputs, targets in (batch(99, step) for step in range(30)))


def bits(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def on_ranks(work, count, models):
    """work(rank, model) for each rank, as on_threads() does it."""
    return on_threads(lambda rank: work(rank, models[rank]), count, seconds=100)


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9,
                                                   nesterov=True, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
STEPS = 100


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bound_0_at_the_store_is_the_synchronous_job(address, kind, count):  # noqa: F811
    models = [network() for _ in range(count)]

    def stale(rank, model):
        optimizer = OPTIMIZERS[kind](model.parameters())
        with StaleSynchronous(model, optimizer, address, rank=rank, world_size=count,
                              optimizer_at="store", reproducible=True) as trained:
            history = [bits(model)]
            for step in range(STEPS):
                optimizer.zero_grad()
                backward(model, rank, step)
                optimizer.step()
                trained.flush()
                history.append(bits(model))
            assert trained.iterations == STEPS
            return history

    found = on_ranks(stale, count, models)
    reference = [network() for _ in range(count)]
    specs = [(name, p.numel(), "float32") for name, p in reference[0].named_parameters()]

    def synchronous(job):
        model = reference[job.rank]
        optimizer = OPTIMIZERS[kind](model.parameters())
        history = [bits(model)]
        for step in range(STEPS):
            torch.nn.utils.vector_to_parameters(found[0][step].clone(), model.parameters())
            optimizer.zero_grad()
            backward(model, job.rank, step)
            for name, parameter in model.named_parameters():
                job.submit(name, parameter.grad)
            job.wait_step(30)
            optimizer.step()
            history.append(bits(model))
        return history

    expected = on_all_ranks(synchronous, count, address + "-sums", specs, reproducible=True)
    for each in found:
        assert all(map(torch.equal, each, found[0]))
    rate = OPTIMIZERS[kind]([torch.zeros(1)]).defaults["lr"]
    assert max(ulps_apart(mine, wanted, rate)
               for mine, wanted in zip(found[0], expected[0])) <= allowed_ulps(kind)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bound_0_at_the_worker_is_the_mean_of_what_optimizers_change(address, kind):  # noqa: F811
    count = 3
    models = [network() for _ in range(count)]

    def stale(rank, model):
        optimizer = OPTIMIZERS[kind](model.parameters())
        with StaleSynchronous(model, optimizer, address, rank=rank, world_size=count,
                              reproducible=True) as trained:
            for step in range(STEPS):
                optimizer.zero_grad()
                backward(model, rank, step)
                optimizer.step()
            trained.flush()
            return bits(model)

    found = on_ranks(stale, count, models)
    kept = [parameter.detach().clone() for parameter in network().parameters()]
    replicas = [network() for _ in range(count)]
    optimizers = [OPTIMIZERS[kind](model.parameters()) for model in replicas]
    with torch.enable_grad():
        for step in range(STEPS):
            sums = None
            for rank, (model, optimizer) in enumerate(zip(replicas, optimizers)):
                with torch.no_grad():
                    for parameter, value in zip(model.parameters(), kept):
                        parameter.copy_(value)
                optimizer.zero_grad()
                backward(model, rank, step)
                optimizer.step()
                with torch.no_grad():
                    deltas = [parameter - value
                              for parameter, value in zip(model.parameters(), kept)]
                sums = deltas if sums is None else [a + b for a, b in zip(sums, deltas)]
            kept = [value + each / count for value, each in zip(kept, sums)]
    expected = torch.cat([value.flatten() for value in kept])
    for each in found:
        assert torch.equal(each, expected)


@pytest.mark.parametrize("at", ["worker", "store"])
@pytest.mark.parametrize("bound", [1, 3, None])
def test_bounded_staleness_trains_and_keeps_to_the_bound(address, bound, at):  # noqa: F811
    count, steps = 3, 80
    models = [network() for _ in range(count)]

    def stale(rank, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        before = loss_of(model)
        with StaleSynchronous(model, optimizer, address, bound=bound, rank=rank, world_size=count,
                              optimizer_at=at) as trained:
            for step in range(steps):
                optimizer.zero_grad()
                backward(model, rank, step)
                own = trained.iterations
                assert own == step
                for clocks in trained.clocks().values():
                    assert bound is None or clocks.held >= own - bound
                optimizer.step()
                if rank == 2:
                    time.sleep(0.002)
            trained.synchronise(30)
            assert sum(trained.staleness.values()) == 4 * (steps + 2)
            assert min(trained.staleness) == 0 and max(trained.staleness) <= (bound or steps)
            return bits(model), loss_of(model) / before

    results = on_ranks(stale, count, models)
    for found, left in results:
        assert torch.equal(found, results[0][0])
        assert left < 0.5


def test_who_is_lost_holds_nobody_up(address):  # noqa: F811
    models = [network() for _ in range(3)]

    def stale(rank, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with StaleSynchronous(model, optimizer, address, rank=rank, world_size=3) as trained:
            for step in range(30):
                if rank == 1 and step == 5:
                    trained.store.abort()
                    raise KeyboardInterrupt
                optimizer.zero_grad()
                backward(model, rank, step)
                optimizer.step()
            trained.flush()
            return bits(model)

    def guarded(rank, model):
        try:
            return stale(rank, model)
        except KeyboardInterrupt:
            return None

    first, lost, last = on_ranks(guarded, 3, models)
    assert lost is None and torch.equal(first, last)


@pytest.mark.parametrize("lost", [0, 1])
def test_buffers_are_averaged_over_those_that_are_left(address, lost):  # noqa: F811
    models = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
              for _ in range(3)]
    for rank, (_, norm) in enumerate(models):
        norm.running_mean.copy_(torch.tensor([2.0 ** rank, 10.0 * rank]))
        norm.num_batches_tracked.fill_(100 + rank)

    def stale(rank, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trained = StaleSynchronous(model, optimizer, address, rank=rank, world_size=3)
        trained.store.barrier()
        if rank == lost:
            return trained.__exit__(KeyboardInterrupt, None, None)
        for _ in range(2):  # the loss has not used up the first call alone
            trained.average_buffers(30)
        trained.finish()

    on_ranks(stale, 3, models)
    left = [rank for rank in range(3) if rank != lost]
    mean = torch.tensor([2.0 ** left[0] + 4, 10.0 * left[0] + 20]) / 2
    for rank in left:
        assert torch.equal(models[rank][1].running_mean, mean)
        assert models[rank][1].num_batches_tracked == 100 + left[0]


class Odd(torch.nn.Module):
    """Tied weights, attention (whose children are never called), a layer that is not used, running
    statistics."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(8)
        self.unused = torch.nn.Linear(3, 3)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.attention(x, x, x)[0].mean(1)
        return self.head(self.norm(x))


def test_odd_models_clipping_accumulation_and_schedules(address):  # noqa: F811
    torch.manual_seed(3)
    first = Odd()
    models = [first, copy.deepcopy(first)]

    def stale(rank, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
        trained = StaleSynchronous(model, optimizer, address, rank=rank, world_size=2,
                                   reproducible=True)
        assert [layer.name for layer in trained._layers] == ["embed", "attention", "norm", "unused"]
        after = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
        for step in range(20):
            optimizer.zero_grad()
            for part in range(2):
                generator = torch.Generator().manual_seed(100 * rank + 2 * step + part)
                tokens = torch.randint(20, (16, 5), generator=generator)
                loss = torch.nn.functional.cross_entropy(model(tokens), tokens[:, 0])
                (loss / 2).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            after.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
        own = model.norm.running_mean.clone()
        trained.average_buffers(30)
        saved = {key: value.clone() for key, value in trained.state_dict().items()}
        trained.finish()
        backward_after = model(torch.randint(20, (4, 5)))  # a plain model again
        backward_after.sum().backward()
        optimizer.step()
        return own, saved, loss.item()

    (own, left, loss), (other, right, _) = on_ranks(stale, 2, models)
    assert not torch.equal(own, other) and loss < 4
    for key in left:
        assert torch.equal(left[key], right[key]), key
    Odd().load_state_dict(left)


def test_a_closure_and_an_evaluation_between_steps(address):  # noqa: F811
    models = [network() for _ in range(2)]

    def stale(rank, model):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with StaleSynchronous(model, optimizer, address, bound=2, rank=rank, world_size=2) as each:
            for step in range(10):
                def closure():
                    optimizer.zero_grad()
                    return backward(model, rank, step)  # noqa: B023
                assert optimizer.step(closure) > 0
                model.eval()
                with torch.inference_mode():
                    model(batch(rank, step)[0])
                assert not any(layer.pulling for layer in each._layers)
                model.train()
            each.synchronise(30)
            return bits(model)

    first, second = on_ranks(stale, 2, models)
    assert torch.equal(first, second)


def test_a_scaler_that_skips_a_step_pushes_nothing(address):  # noqa: F811
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        pytest.skip("a GradScaler on a CPU needs torch 2")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1) as trained:
        for step in range(4):
            optimizer.zero_grad()
            inputs, targets = batch(0, step)
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss * (float("inf") if step == 2 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        trained.flush()
        assert trained.iterations == 3 and bits(model).isfinite().all()


def refusals():
    odd = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    sparse = torch.nn.Embedding(3, 3, sparse=True)
    sgd = torch.optim.SGD
    yield odd, sgd(odd.parameters(), 0.1), {}, "parameter '1.weight' has type float64"
    yield sparse, sgd(sparse.parameters(), 0.1), {}, "sparse gradients"
    elsewhere = torch.nn.Linear(2, 2, device="meta")
    yield elsewhere, sgd(elsewhere.parameters(), 0.1), {}, "parameter 'weight' is on meta"
    for options, text in ((dict(bound=-1), "bound=-1"), (dict(wire="int8"), "travel as float32"),
                          (dict(prune="static"), "are sent whole"),
                          (dict(policy="goodput"), "instead of policy goodput"),
                          (dict(optimizer_at="moon"), "'worker' or 'store'")):
        model = network()
        yield model, sgd(model.parameters(), 0.1), options, text
    for make, bound, text in (
            (lambda p: torch.optim.AdamW(p), 0, "runs SGD and Adam, not AdamW"),
            (lambda p: torch.optim.Adam(p, amsgrad=True), 0, "no amsgrad=True"),
            (lambda p: torch.optim.Adam(p), 1, "Adam's moments"),
            (lambda p: sgd(p, 0.1, weight_decay=0.1), 1, "once a worker instead"),
            (lambda p: sgd([{"params": list(p)[:1], "momentum": 0.5},
                            {"params": list(p), "momentum": 0.9}], 0.1), 0, "differ in momentum")):
        model = network()
        yield model, make(model.parameters()), dict(optimizer_at="store", bound=bound), text
    model, other = network(), torch.nn.Linear(2, 2)
    yield (model, sgd([*model.parameters(), *other.parameters()], 0.1), {},
           "a parameter that is not the model's")


@pytest.mark.parametrize("index", range(14))
def test_what_does_not_work_is_refused_by_name(address, index):  # noqa: F811
    model, optimizer, options, text = list(refusals())[index]
    with pytest.raises((sluice.InvalidArgument, sluice.Refused), match=text):
        StaleSynchronous(model, optimizer, address, rank=0, world_size=1, **options)
    assert "step" not in vars(optimizer)


def test_parameters_that_are_used_past_their_module_are_noticed(address):  # noqa: F811
    class Past(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x):
            return torch.nn.functional.linear(self.first(x), self.second.weight)

    model = Past()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1) as trained:
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(sluice.InvalidArgument, match="module 'second' has gradients"):
            optimizer.step()
        trained.flush()
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch.compile needs torch 2")
def test_what_is_compiled_is_refused(address):  # noqa: F811
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(sluice.InvalidArgument, match="compiled"):
        StaleSynchronous(torch.compile(model), optimizer, address, rank=0, world_size=1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1):
        backward(model, 0, 0)
        model.compile(backend="eager")
        with pytest.raises(sluice.InvalidArgument, match="was compiled meanwhile"):
            optimizer.step()
