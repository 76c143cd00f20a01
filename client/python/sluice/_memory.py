"""Where an array's bytes are: NumPy arrays, torch tensors, byte buffers and raw addresses.

Neither NumPy nor torch is imported: arrays speak for themselves through __array_interface__ or
data_ptr().
"""

import ctypes
import math
import sys

from sluice import errors

# NumPy has no bfloat16, so its 16 bits may come as any 2-byte integer.
_TYPESTRS = {"float32": ("<f4",), "float16": ("<f2",), "bfloat16": ("<u2", "<i2", "|V2")}


def _bad(what, text):
    return errors.InvalidArgument(f"{what} {text}")


def _torch_facts(tensor, what, device=None):
    if tensor.device.type != "cpu" and (tensor.device.type, tensor.device.index) != ("cuda",
                                                                                     device):
        mine = "the host's memory" if device is None else f"that and of cuda:{device}"
        raise _bad(what, f"is on {tensor.device}, but this is for {mine}: pass tensor.cpu(), or "
                         "give the job memory='device' and the device")
    if not tensor.is_contiguous():
        raise _bad(what, "is not contiguous: pass tensor.contiguous()")
    return tensor.data_ptr(), tensor.numel(), str(tensor.dtype).replace("torch.", "")


def _array_facts(array, what, writable):
    facts = array.__array_interface__
    address, readonly = facts["data"]
    if readonly and writable:
        raise _bad(what, "is read-only")
    flags = getattr(array, "flags", None)
    contiguous = flags.c_contiguous if flags is not None else facts.get("strides") is None
    if not contiguous:
        raise _bad(what, "is not contiguous: pass numpy.ascontiguousarray(array)")
    count = math.prod(facts["shape"])
    return address, count, facts["typestr"]


def stream_of(what, *buffers):
    """The stream that torch gives the work of these tensors to; None: they are in the host's
    memory. Raises InvalidArgument when some are and some are not."""
    places = {(buffer.device.type, buffer.device.index) if hasattr(buffer, "data_ptr") else
              ("cpu", None) for buffer in buffers if buffer is not None}
    if len(places) > 1:
        raise _bad(what, "has input and output in different places: "
                         f"{' and '.join(sorted(kind for kind, _ in places))}")
    (kind, index), = places or {("cpu", None)}
    if kind == "cpu":
        return None
    return sys.modules["torch"].cuda.current_stream(index).cuda_stream


def element_pointer(buffer, elem_count, dtype, what, writable, device=None):
    """The address of `elem_count` elements of `dtype` ('float32', 'float16', 'bfloat16').

    `buffer` is a NumPy array, a torch tensor on the CPU or on CUDA device `device`, or an int: an
    address that the caller answers for. Raises InvalidArgument naming `what`, the value and the
    expectation.
    """
    if isinstance(buffer, int):
        if buffer == 0:
            raise _bad(what, "is the address 0")
        return buffer
    if hasattr(buffer, "data_ptr"):
        address, count, found = _torch_facts(buffer, what, device)
        matches = found == dtype
    elif hasattr(buffer, "__array_interface__"):
        address, count, found = _array_facts(buffer, what, writable)
        matches = found in _TYPESTRS[dtype]
    else:
        raise _bad(what, f"is a {type(buffer).__name__}; give a NumPy array, a torch tensor or an "
                         "address")
    if not matches:
        raise _bad(what, f"has elements of type {found}, but the tensor was registered as {dtype}")
    if count != elem_count:
        raise _bad(what, f"has {count} elements, but the tensor was registered with {elem_count}")
    return address


def byte_range(buffer, what, device=None):
    """(address, bytes, keep-alive) of a writable contiguous buffer of any element type, a torch
    tensor also on CUDA device `device`."""
    if hasattr(buffer, "data_ptr"):
        address, count, _ = _torch_facts(buffer, what, device)
        return address, count * buffer.element_size(), buffer
    try:
        view = memoryview(buffer)
    except TypeError:
        raise _bad(what, f"is a {type(buffer).__name__}; give a bytearray, a NumPy array or a "
                         "torch tensor") from None
    if view.readonly:
        raise _bad(what, "is read-only; give a bytearray or a writable array")
    if not view.c_contiguous:
        raise _bad(what, "is not contiguous: pass numpy.ascontiguousarray(array)")
    if view.nbytes == 0:
        raise _bad(what, "is empty")
    anchor = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(anchor), view.nbytes, anchor
