"""The state that travels to a rank: values come back bit for bit, and run no code."""

import collections
import struct

import pytest

torch = pytest.importorskip("torch")

from sluice import _torch_state, errors  # noqa: E402 - after the check for torch


def test_every_value_comes_back_as_it_was():
    tree = {
        "scalars": [1, -2.5, float("inf"), 1e-320, 0.1, None, True, "x\0\u20ac"],
        "betas": (0.9, 0.999), 3: {"nested": ({},)}, "milestones": collections.Counter({5: 2}),
        "strided": torch.randn(3, 4).t(), "channels": torch.randn(2, 3, 4, 4).contiguous(
            memory_format=torch.channels_last), "one": torch.tensor(7), "none": torch.empty(0, 3),
        "mask": torch.tensor([True, False])}
    for name in ("float64", "float16", "bfloat16", "complex64", "complex128"):
        tree[name] = torch.randn(5, dtype=torch.float64).to(getattr(torch, name))
    for name in ("int64", "int32", "int16", "int8", "uint8"):
        tree[name] = torch.arange(100, 105).to(getattr(torch, name))
    tree["nan"] = torch.tensor([0x7FC01234, 0x7F800001, -1]).to(torch.int32).view(torch.float32)
    data = _torch_state.encode(tree)
    found = _torch_state.decode(data)
    assert list(found) == list(tree)
    for key, value in tree.items():
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype and found[key].shape == value.shape
            assert _torch_state.raw(found[key]).tobytes() == _torch_state.raw(value).tobytes(), key
        else:
            assert found[key] == value and type(found[key]) is type(value)
    assert _torch_state.encode(found) == data


def test_an_optimizer_goes_on_from_a_state_as_if_nothing_had_happened():
    def run(steps, state=None):
        torch.manual_seed(1)
        parameter = torch.nn.Parameter(torch.randn(50))
        optimizer = torch.optim.AdamW([{"params": [parameter], "lr": 0.1}], betas=(0.8, 0.9))
        if state is not None:
            tree = _torch_state.decode(state)
            parameter.data.copy_(tree["p"])
            optimizer.load_state_dict(tree["o"])
        for step in steps:
            parameter.grad = torch.full((50,), float(step)).sin()
            optimizer.step()
        return _torch_state.encode({"p": parameter.detach(), "o": optimizer.state_dict()})

    assert run(range(3, 9), run(range(3))) == run(range(9))


@pytest.mark.parametrize("value, place", [
    ({"a": [1, object()]}, r"state\['a'\]\[1\] is a object"),
    ({"f": print}, r"state\['f'\] is a builtin_function_or_method"),
    ([torch.eye(2).to_sparse()], r"state\[0\] is a tensor")])
def test_what_cannot_be_sent_is_named(value, place):
    with pytest.raises(errors.InvalidArgument, match=place):
        _torch_state.encode(value)


def test_bytes_that_are_no_state_are_refused():
    good = _torch_state.encode({"t": torch.ones(100)})
    cut, grown = good[:-64], bytearray(good)
    struct.pack_into("<Q", grown, 8, 1 << 40)
    wrong = bytearray(good).replace(b"float32", b"floatxx")
    for bad in (bytearray(), bytearray(b"x" * 100), cut, grown, wrong):
        with pytest.raises(errors.InvalidArgument, match="no state of this version"):
            _torch_state.decode(bad)
