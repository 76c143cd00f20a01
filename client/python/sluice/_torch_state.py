"""A replica's state as bytes: a header of JSON and the raw memory of its tensors. No pickle.

What another rank sends must not be able to run code here, so the format holds values only: None,
bool, int, float, str, list, tuple, dict, Counter and dense tensors, which arrive on the CPU. Equal
trees give equal bytes, and every number comes back bit for bit.

    8 bytes magic · u64 length of the header · header · tensors, each at a multiple of 64
"""

import collections
import json
import struct

import torch

from sluice import errors

_MAGIC = b"SLUICE1\n"
_ALIGN = 64
_PLAIN = (type(None), bool, int, float, str)
_DTYPES = {str(dtype).replace("torch.", ""): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128)}
_ELEMENT = {torch.float64: torch.int64, torch.complex64: torch.int64, torch.float32: torch.int32,
            torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.bool: torch.uint8}


def raw(tensor):
    """The tensor's elements, in logical order, as a flat uint8 array of NumPy (a copy only when the
    tensor is not contiguous)."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.dtype == torch.complex128:
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(_ELEMENT.get(flat.dtype, flat.dtype)).numpy().view("uint8")


def _aligned(size):
    return -(-size // _ALIGN) * _ALIGN


class _Writer:
    def __init__(self):
        self.tensors = []
        self.facts = []
        self.bytes = 0

    def node(self, value, path):
        if type(value) in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if type(value) in (list, tuple):
            items = [self.node(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return {"list" if type(value) is list else "tuple": items}
        if isinstance(value, dict):
            kind = {dict: "dict", collections.OrderedDict: "dict", collections.defaultdict: "dict",
                    collections.Counter: "counter"}.get(type(value))
            if kind:
                return {kind: [[self.node(key, path), self.node(item, f"{path}[{key!r}]")]
                               for key, item in value.items()]}
        raise errors.InvalidArgument(
            f"{path} is a {type(value).__name__}, which a rank cannot send to another one: "
            "numbers, text, lists, dicts and tensors can be sent")

    def _tensor(self, tensor, path):
        name = str(tensor.dtype).replace("torch.", "")
        if (tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided
                or name not in _DTYPES):
            raise errors.InvalidArgument(
                f"{path} is a tensor of type {name} on {tensor.device}, {tensor.layout}: only "
                "dense tensors of the CPU or a CUDA device can be sent to another rank")
        size = tensor.numel() * tensor.element_size()
        self.facts.append([name, list(tensor.shape), self.bytes])
        self.tensors.append((self.bytes, size, tensor))
        self.bytes += _aligned(size)
        return {"tensor": len(self.facts) - 1}


def encode(tree):
    """`tree` as a bytearray. Raises InvalidArgument, naming the place, for what does not fit in."""
    writer = _Writer()
    root = writer.node(tree, "state")
    header = json.dumps({"tensors": writer.facts, "root": root}, separators=(",", ":")).encode()
    start = _aligned(len(_MAGIC) + 8 + len(header))
    data = bytearray(start + writer.bytes)
    struct.pack_into("<8sQ", data, 0, _MAGIC, len(header))
    data[16:16 + len(header)] = header
    view = memoryview(data)
    for offset, size, tensor in writer.tensors:
        if size:
            view[start + offset:start + offset + size] = memoryview(raw(tensor))
    return data


def _read(node, tensors):
    if not isinstance(node, dict):
        return node
    (kind, value), = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "list":
        return [_read(item, tensors) for item in value]
    if kind == "tuple":
        return tuple(_read(item, tensors) for item in value)
    if kind in ("dict", "counter"):
        pairs = {_read(key, tensors): _read(item, tensors) for key, item in value}
        return collections.Counter(pairs) if kind == "counter" else pairs
    raise ValueError(f"unknown kind {kind!r}")


def decode(data):
    """The tree in `data` (a bytearray), with tensors of its own.

    Raises InvalidArgument when the bytes are not of this format.
    """
    try:
        magic, length = struct.unpack_from("<8sQ", data)
        if magic != _MAGIC:
            raise ValueError("it does not start as a state does")
        header = json.loads(bytes(data[16:16 + length]))
        start = _aligned(16 + length)
        tensors = []
        for name, shape, offset in header["tensors"]:
            count = torch.Size(shape).numel()
            if count == 0:
                tensors.append(torch.empty(shape, dtype=_DTYPES[name]))
                continue
            flat = torch.frombuffer(data, dtype=_DTYPES[name], count=count, offset=start + offset)
            tensors.append(flat.reshape(shape).clone())
        return _read(header["root"], tensors)
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError, struct.error) as error:
        raise errors.InvalidArgument(
            f"{len(data)} bytes that another rank sent are no state of this version: "
            f"{error}") from None
