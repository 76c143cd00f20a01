"""What StaleSynchronous does not work with is refused, or noticed, by name."""

import pytest

import sluice
from inproc import address  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")
sluice_torch = pytest.importorskip("sluice.torch")

StaleSynchronous = sluice_torch.StaleSynchronous


def network():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def refusals():
    odd = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    sparse = torch.nn.Embedding(3, 3, sparse=True)
    sgd = torch.optim.SGD
    yield odd, sgd(odd.parameters(), 0.1), {}, "parameter '1.weight' has type float64"
    yield sparse, sgd(sparse.parameters(), 0.1), {}, "sparse gradients"
    elsewhere = torch.nn.Linear(2, 2, device="meta")
    yield elsewhere, sgd(elsewhere.parameters(), 0.1), {}, "parameter 'weight' is on meta"
    for options, text in ((dict(bound=-1), "bound=-1"), (dict(wire="int8"), "travel as float32"),
                          (dict(prune="static"), "leaves whole"),
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
        parameters = list(model.parameters())
        yield model, make(iter(parameters)), dict(optimizer_at="store", bound=bound), text
    model = network()
    other = torch.nn.Linear(2, 2)
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


def test_what_is_compiled_is_refused(address):  # noqa: F811
    if not hasattr(torch, "compile"):
        pytest.skip("torch.compile needs torch 2")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(sluice.InvalidArgument, match="compiled"):
        StaleSynchronous(torch.compile(model), optimizer, address, rank=0, world_size=1)


def test_a_model_that_is_compiled_later_is_noticed(address):  # noqa: F811
    if not hasattr(torch, "compile"):
        pytest.skip("torch.compile needs torch 2")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with StaleSynchronous(model, optimizer, address, rank=0, world_size=1):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        model(torch.ones(1, 2))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        model.compile(backend="eager")
        with pytest.raises(sluice.InvalidArgument, match="was compiled meanwhile"):
            optimizer.step()
        assert all(map(torch.equal, model.parameters(), before))
