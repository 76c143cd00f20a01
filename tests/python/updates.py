"""The distance of the store's optimizers from PyTorch's, one update at a time.

Gradients depend on parameters, so over many updates the last bits grow to any size. Each update is
therefore compared alone: PyTorch's begins at what the store had.
"""

import torch


def allowed_ulps(kind, at="store"):
    """PyTorch 2 takes roots for Adam that are not rounded correctly; all else is to the bit."""
    modern = int(torch.__version__.split(".", maxsplit=1)[0]) >= 2
    return 2 if modern and kind == "adam" and at == "store" else 0


def ulps_apart(found, wanted, rate):
    """The greatest distance of two parameters, in units of the last place of PyTorch's, or of the
    rate, the size of an update of Adam's, where that is greater."""
    found, wanted = found.detach(), wanted.detach()
    size = wanted.abs().clamp(min=rate)
    ulp = torch.nextafter(size, torch.full_like(size, float("inf"))) - size
    return ((found.double() - wanted.double()).abs() / ulp.double()).max().item()
