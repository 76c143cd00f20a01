"""The memory that holds a model's gradients: the host's, or that of one CUDA device.

A wait returns after the results are in the device's memory; no stream of the device ever waits for
the network. The communication hook does not block. attach() waits at the end of backward(), which
raises errors; overlap() waits before the next forward of a layer.
"""

import torch

from sluice import errors


class Device:
    """The CUDA device that has a model's parameters."""

    def __init__(self, device):
        self._device = device
        self.index = device.index

    def stream(self):
        """The address of the CUDA stream that this thread gives its work to. It is read at each
        submission."""
        return torch.cuda.current_stream(self._device).cuda_stream

    def future(self):
        return torch.futures.Future(devices=[self._device])


def device_of(named):
    """The Device of these (name, parameter) pairs; None if they are in the host's memory.

    Raises InvalidArgument, with names, for parameters on several devices or on other kinds of
    device.
    """
    first = None
    for key, parameter in named:
        place = parameter.device
        if place.type not in ("cpu", "cuda"):
            raise errors.InvalidArgument(
                f"parameter '{key}' is on {place}: Sluice sums what is in the host's memory or on "
                "a CUDA device; move the model to one of them")
        if first is None:
            first = key, place
        elif place != first[1]:
            raise errors.InvalidArgument(
                f"parameter '{first[0]}' is on {first[1]} and '{key}' on {place}: a model's "
                "gradients must be on one device; give each part a DistributedDataParallel of its "
                "own, and attach() each")
    return Device(first[1]) if first is not None and first[1].type == "cuda" else None


def current():
    """The index of the CUDA device that this process uses, by torch.cuda.set_device() or else the
    first; None where it has used none so far."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def settle(tensors):
    """Blocks until the work that this thread has given to the devices of these tensors is done."""
    for device in {tensor.device for tensor in tensors if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
