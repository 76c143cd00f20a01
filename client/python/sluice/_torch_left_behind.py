"""`LeftBehind`: says at a rank's end what residuals still hold. For an Attachment."""

import logging
import math
import sys
import weakref

import torch

from sluice import errors

_log = logging.getLogger("sluice")


class LeftBehind:
    """tell() warns, once and at the latest when this object or the process ends, that pruning still
    keeps a part of this rank's gradients: to deliver it takes a step, which the other ranks may not
    take any more. Silent where the job has failed."""

    def __init__(self, job):
        self._flushed = []
        self.tell = (weakref.finalize(self, _tell, job, self._flushed) if job.pruned
                     else lambda: None)

    def flushed(self):
        self._flushed.append(True)


def _tell(job, flushed):
    if getattr(sys, "last_value", None) is not None or (flushed and job.is_narrow):
        return  # what rounding keeps is never nothing
    count, squares = 0, 0.0
    try:
        job.check()
        for index in job.pruned:
            elem_count = job.tensors[index].elem_count
            values = torch.empty(elem_count * job.residual_floats, device="cpu")
            job.get_residual(index, values)
            kept = values[:elem_count]  # behind them is a velocity, of what was delivered too
            count += int(torch.count_nonzero(kept))
            squares += float(kept.double().square().sum())
    except errors.Error:
        return  # it has failed, or ends amid a step: that says more
    if count != 0:
        _log.warning(
            "job '%s' rank %d ends, and %d elements of its gradients (norm %.4g, %d bytes) were "
            "never delivered, which pruning left behind: call flush_residuals() before the last "
            "backward, or save state_dict() for a run that goes on from here",
            job.name, job.rank, count, math.sqrt(squares), 4 * count)
