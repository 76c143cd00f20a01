"""`Units`: keeps the residuals of `wire` and `prune` worth the same. For an Attachment.

A residual is a part of a gradient that moves its parameter some steps later, by the rate / loss
scale of that later step. Therefore it is multiplied by unit / unit of the step before, unit = scale
/ rate, before the next gradient is added. `to_be_told` reports at a rank's end what is still kept.
"""
import logging
import sys
import weakref

import torch

from sluice import _torch_share, errors
from sluice._torch_parts import unwrapped

_log = logging.getLogger("sluice")


class Units:
    def __init__(self, job, indices, optimizers, scaler):
        """`indices` maps a parameter to its tensor index. `optimizers` and `scaler` are only
        read."""
        for one in optimizers:
            if not hasattr(one, "param_groups"):
                raise errors.InvalidArgument(
                    f"follow() needs an optimizer, or a list of them, not a {type(one).__name__}")
        if scaler is not None and not hasattr(scaler, "get_scale"):
            raise errors.InvalidArgument(
                f"follow() needs a GradScaler or None, not a {type(scaler).__name__}")
        self._job = job
        self._indices = indices
        # Adam and its kin divide by what they have seen of the gradients: they have no such unit.
        self._optimizers = [one for one in map(unwrapped, optimizers)
                            if not _torch_share.ignores_scale(one)]
        self.scaler = scaler
        self.forget()

    def forget(self):
        """The residuals have the units of the next step already."""
        self._scale = None  # of the last step; None: not known yet
        self._rates = {}  # (optimizer, group) -> that of the last step, where it was not 0

    def update(self):
        """Multiplies residuals between two steps, before gradients of the next one leave."""
        scale = self._scale if self.scaler is None else self.scaler.get_scale() or self._scale
        # At a rate of 0 nothing is worth anything: what is kept waits for the next other one.
        rates = {(number, place): float(group.get("lr", 1)) or self._rates.get((number, place))
                 for number, one in enumerate(self._optimizers)
                 for place, group in enumerate(one.param_groups)}
        if (scale, rates) == (self._scale, self._rates):
            return
        scaled = scale / self._scale if self._scale else 1.0
        slowed = {key: self._rates[key] / rate for key, rate in rates.items()
                  if self._rates.get(key)}
        self._multiply(scaled, slowed)
        self._scale, self._rates = scale, rates

    def _multiply(self, scaled, slowed):
        """Multiplies all residuals by `scaled`, and those of each group by its `slowed`."""
        by_tensor = {self._indices[p]: slowed.get((number, place), 1.0)
                     for number, one in enumerate(self._optimizers)
                     for place, group in enumerate(one.param_groups)
                     for p in group["params"] if p in self._indices}
        kept = [index for index, spec in enumerate(self._job.tensors)
                if spec.name in self._job.rounded]
        factors = {index: by_tensor.get(index, 1.0) for index in kept}
        has_velocity = self._job.residual_floats == 2
        different = set(factors.values())
        if len(different) == 1 and (different == {1.0} or not has_velocity):
            if scaled * min(different) != 1:
                self._job.scale_residuals(scaled * min(different))
            return
        for index, factor in factors.items():
            if scaled * factor == 1 == scaled:
                continue
            count = self._job.tensors[index].elem_count
            values = torch.empty(count * self._job.residual_floats, device="cpu")
            self._job.get_residual(index, values)
            values[:count] *= scaled * factor
            # A velocity is what an optimizer with momentum would keep: no rate is in it.
            values[count:] *= scaled
            self._job.set_residual(index, values)


def to_be_told(owner, job):
    """Returns a function that warns that pruning still keeps a part of this rank's gradients.

    The function warns once, at the latest when `owner` or the process ends. Delivery of that part
    takes one more step, which the other ranks may not take. A failed job gives no warning.
    """
    return weakref.finalize(owner, _tell, job) if job.pruned else lambda: None


def _tell(job):
    if getattr(sys, "last_value", None) is not None:
        return
    try:
        count, norm = job.left_behind()
    except errors.Error:
        return  # it has failed, or ends amid a step: that says more
    if count != 0:
        _log.warning(
            "job '%s' rank %d ends, and %d elements of its gradients (norm %.4g, %d bytes) were "
            "never delivered, which pruning left behind: call flush_residuals() before the last "
            "backward, or save state_dict() for a run that goes on from here",
            job.name, job.rank, count, norm, 4 * count)
