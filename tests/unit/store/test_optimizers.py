"""The store's optimizers against PyTorch's own, on the same gradients, over 100 iterations.

The store gets each worker's gradient, PyTorch the mean of them all: summed in the order of ranks in
float32 and divided. SGD must be PyTorch's to the last bit, Adam that of releases below 2; newer
ones take roots that are not rounded correctly, which moves a parameter by at most 2 ulp an update.
"""
import os
import subprocess

import numpy as np
import pytest
import torch

PROGRAM = os.path.join(os.environ["SLUICE_BUILD"], "tests/unit/store/store_steps")
ITERATIONS, ELEMENTS = 100, 1003  # whole vectors and a rest; a last chunk that is not full
BETAS, EPSILON = (0.9, 0.999), 1e-8
EXACT_ADAM = int(torch.__version__.split(".", maxsplit=1)[0]) < 2


def inputs(workers):
    draws = np.random.default_rng(workers)
    initial = draws.standard_normal(ELEMENTS).astype(np.float32)
    gradients = draws.standard_normal((ITERATIONS, workers, ELEMENTS)).astype(np.float32)
    gradients[3, :, :7] = 0  # zeros of both signs
    gradients[4, :, :7] = -0.0
    rates = [0.1 / (1 + 0.01 * i) for i in range(ITERATIONS)]
    return initial, gradients, rates


def by_store(rule, workers, *, decay=0.0, momentum=0.0, dampening=0.0, nesterov=False):
    initial, gradients, rates = inputs(workers)
    data = initial.tobytes() + b"".join(
        np.float64(rate).tobytes() + each.tobytes() for rate, each in zip(rates, gradients))
    argv = [PROGRAM, rule, workers, ITERATIONS, ELEMENTS, repr(decay), repr(momentum),
            repr(dampening), int(nesterov), *BETAS, EPSILON, int(not EXACT_ADAM)]
    done = subprocess.run([str(word) for word in argv], input=data, capture_output=True,
                          timeout=60, check=True)
    return np.frombuffer(done.stdout, np.float32).reshape(ITERATIONS, ELEMENTS)


def by_torch(make, workers):
    initial, gradients, rates = inputs(workers)
    parameter = torch.from_numpy(initial.copy()).requires_grad_()
    optimizer = make([parameter], lr=rates[0])
    out = []
    for rate, each in zip(rates, gradients):
        total = each[0].copy()
        for other in each[1:]:
            total += other
        parameter.grad = torch.from_numpy(total / np.float32(workers))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        out.append(parameter.detach().numpy().copy())
    return np.stack(out)


SGD = [dict(), dict(decay=0.01), dict(momentum=0.9), dict(momentum=0.9, nesterov=True),
       dict(momentum=0.9, dampening=0.3, decay=0.001)]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("options", SGD, ids=str)
def test_sgd_at_the_store_is_pytorchs_to_the_last_bit(options, workers):
    def make(parameters, lr):
        return torch.optim.SGD(parameters, lr, momentum=options.get("momentum", 0),
                               dampening=options.get("dampening", 0),
                               weight_decay=options.get("decay", 0),
                               nesterov=options.get("nesterov", False))
    ours, theirs = by_store("sgd", workers, **options), by_torch(make, workers)
    assert np.array_equal(ours.view(np.int32), theirs.view(np.int32))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_adam_at_the_store_is_pytorchs(decay, workers):
    def make(parameters, lr):
        return torch.optim.Adam(parameters, lr, betas=BETAS, eps=EPSILON, weight_decay=decay)
    ours, theirs = by_store("adam", workers, decay=decay), by_torch(make, workers)
    if EXACT_ADAM:
        assert np.array_equal(ours.view(np.int32), theirs.view(np.int32))
    ulp = np.spacing(np.maximum(np.abs(theirs), np.float32(0.1)))  # of the rate, where it is small
    updates = np.arange(1, ITERATIONS + 1)[:, None]
    assert (np.abs(ours.astype(np.float64) - theirs) <= 2 * updates * ulp).all()


def test_the_comparison_sees_another_optimizer():
    def make(parameters, lr):
        return torch.optim.SGD(parameters, lr, momentum=0.9001)
    ours, theirs = by_store("sgd", 1, momentum=0.9), by_torch(make, 1)
    assert not np.array_equal(ours.view(np.int32), theirs.view(np.int32))


def test_deltas_are_averaged():
    initial, deltas, _rates = inputs(3)
    expected = initial + (deltas[0, 0] + deltas[0, 1] + deltas[0, 2]) / np.float32(3)
    assert np.array_equal(by_store("delta", 3)[0], expected)
