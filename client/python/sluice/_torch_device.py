"""Where a model's gradients lie: in the host's memory, or on one CUDA device.

Results come back into the device's memory before a wait for them returns, and nothing is put into
its streams that waits for the network. The hook itself waits for nothing; attach() waits at the end
of backward(), out of which errors come, overlap() before a layer's next forward.
"""

import torch

from sluice import errors


class Device:
    """The CUDA device that has a model's parameters."""

    def __init__(self, device):
        self._device = device
        self.index = device.index

    def stream(self):
        """The address of what this thread gives its work to; read when a gradient is submitted."""
        return torch.cuda.current_stream(self._device).cuda_stream

    def future(self):
        return torch.futures.Future(devices=[self._device])


def device_of(named):
    """The Device of all these (name, parameter); None: they are in the host's memory. Raises
    InvalidArgument, with names, for several devices and for other kinds of them."""
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
