"""Says at a rank's end what pruning still keeps of its gradients. For an Attachment."""

import logging
import sys
import weakref

from sluice import errors

_log = logging.getLogger("sluice")


def to_be_told(owner, job):
    """Returns a function that warns, once and at the latest when `owner` or the process ends, that
    pruning still keeps a part of this rank's gradients: to deliver it takes a step, which the other
    ranks may not take any more. Silent where the job has failed."""
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
