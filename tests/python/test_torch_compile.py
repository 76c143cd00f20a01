"""torch.compile in every place and order: plain DDP's bits with attach() and with overlap().

On a GPT with tied weights, over a job whose results land late: a tensor that compiled code reads
too early is NaN. The backend "eager" runs the traced graphs as they are, so bits must not change.
"""

import contextlib
import functools
import gc

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "compiler"):
    pytest.skip(f"torch.compile needs torch 2, this is {torch.__version__}: ./run test-torch2",
                allow_module_level=True)

import gpt  # noqa: E402
import late_job  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

compiled = functools.partial(torch.compile, backend="eager")
DDP = dict(gradient_as_bucket_view=True, bucket_cap_mb=0.001)


def blocks(net):
    for index, block in enumerate(net.blocks):
        net.blocks[index] = compiled(block)


def blocks_in_place(net):
    for block in net.blocks:
        block.compile(backend="eager")


def forwards(net):
    for block in net.blocks:
        block.forward = compiled(block.forward)


def attach(monkeypatch, net, optimizer, way):
    late_job.group_of_one()
    if way == "plain":
        return DistributedDataParallel(net, **DDP), None
    return late_job.attach(monkeypatch, net, optimizer if way == "overlap" else None)


@contextlib.contextmanager
def no_collection():
    """Dynamo also counts what Python's collector calls in the middle of compiled code: what removes
    dead keys from weak dictionaries, of torch and of earlier tests."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def one_after_the_other(monkeypatch, way, before=None, after=None, call=None, whole=None):
    """before(net) and after(net) surround the wrapping; call(model) is what the loop calls, and
    whole(net) what DDP is given."""
    def wrap(net, optimizer):
        if before:
            before(net)
        model, attachment = attach(monkeypatch, whole(net) if whole else net, optimizer, way)
        if after:
            after(net)
        return call(model) if call else model, model, attachment
    torch._dynamo.reset()
    with no_collection():
        counters.clear()
        found, _state = gpt.train(wrap, 3)
        found["frames"] = counters["frames"]["total"]
    return found


def in_three_ways(monkeypatch, **order):
    ways = {way: one_after_the_other(monkeypatch, way, **order)
            for way in ("plain", "attach", "overlap")}
    for found in ways.values():
        assert found["digest"] == ways["plain"]["digest"]
        assert found["losses"] == ways["plain"]["losses"]
        assert found["counts"] == [6]
        # Around our hook dynamo makes a few functions more of DDP's forward, none of the model's.
        assert found["frames"] <= ways["plain"]["frames"] + (5 if "call" in order else 0)
    assert ways["plain"]["frames"] > 0
    return ways["overlap"]


@pytest.mark.parametrize("order", [dict(before=blocks), dict(before=blocks_in_place),
                                   dict(before=forwards)], ids=["new", "in place", "forward"])
def test_blocks_that_are_compiled_first_overlap(monkeypatch, order):
    found = in_three_ways(monkeypatch, **order)
    assert found["overlapped"] == 5 and found["reason"] is None


@pytest.mark.parametrize("order", [
    dict(after=blocks), dict(after=blocks_in_place), dict(after=forwards), dict(call=compiled),
    dict(call=lambda model: (model.compile(backend="eager"), model)[1]),
    dict(call=lambda model: compiled(lambda *batch: model(*batch)))],
    ids=["blocks", "blocks in place", "forwards", "ddp", "ddp in place", "around ddp"])
def test_what_is_compiled_later_makes_steps_wait_and_says_so(monkeypatch, caplog, order):
    found = in_three_ways(monkeypatch, **order)
    assert found["overlapped"] == 0 and "compile the blocks" in found["reason"]
    line, = (r.getMessage() for r in caplog.records if r.name == "sluice")
    assert found["reason"] in line


def test_a_model_compiled_as_a_whole_waits(monkeypatch):
    found = in_three_ways(monkeypatch, whole=compiled)
    assert found["overlapped"] == 0 and "compiled as a whole" in found["reason"]


def test_blocks_that_are_compiled_in_mid_training_are_seen(monkeypatch):
    def later(model):
        calls = []

        def call(*batch):
            calls.append(None)
            if len(calls) == 4:
                blocks_in_place(model.module)
            return model(*batch)
        return call
    assert in_three_ways(monkeypatch, call=later)["overlapped"] == 2


def test_a_function_compiled_in_the_forward_makes_steps_wait(monkeypatch):
    gelu = compiled(torch.nn.functional.gelu)

    def activations(net):
        monkeypatch.setattr(gpt.F, "gelu", gelu)
    plain = one_after_the_other(monkeypatch, "plain", before=activations)
    found = one_after_the_other(monkeypatch, "overlap", before=activations)
    assert found["digest"] == plain["digest"] and found["counts"] == [6]
    assert found["reason"] and plain["frames"] > 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_optimizer_loses_no_step(monkeypatch, when):
    def run(way):
        torch._dynamo.reset()
        torch.manual_seed(1)
        net = torch.nn.Linear(6, 5)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=True)
        step = compiled(optimizer.step) if when == "before" else None
        model, attachment = attach(monkeypatch, net, optimizer, way)
        step = step or compiled(optimizer.step)
        for _ in range(4):
            model(torch.randn(4, 6)).square().mean().backward()
            step()
            optimizer.zero_grad()
        found = late_job.values(net, optimizer), gpt.counts(optimizer)
        if attachment is not None:
            attachment.detach()
        return found, getattr(attachment, "reason", "")
    (wanted, _), (attached, _), (found, reason) = map(run, ("plain", "attach", "overlap"))
    for values, steps in (attached, found):
        assert late_job.equal(values, wanted[0]) and steps == wanted[1] == [4]
    assert "compile" in reason


def test_zero_grad_in_compiled_code_stays_out_of_it(monkeypatch):
    def run(way):
        torch._dynamo.reset()
        net = torch.nn.Linear(6, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        _model, attachment = attach(monkeypatch, net, optimizer, way)
        with no_collection():
            counters.clear()
            compiled(lambda: optimizer.zero_grad())()
            found = counters["frames"]["total"]
        if attachment is not None:
            attachment.detach()
        return found
    assert run("overlap") == run("plain") > 0
