"""`GroupAttachment`: an Attachment whose steps go over the process group while no box answers."""

import torch

from sluice import _torch_agreement, errors
from sluice._torch_attachment import Attachment
from sluice._torch_buckets import Buckets
from sluice._torch_fallback import Fallback, ProcessGroup
from sluice._values import checked_weight


def checked_fallback(fallback, after_s, is_solo, optimizer):
    """Whether there is one. Raises InvalidArgument for what cannot be."""
    if fallback not in (None, "group"):
        raise errors.InvalidArgument(
            f"fallback={fallback!r}: must be 'group', for steps over the process group while no "
            "box answers, or None")
    if fallback is None:
        return False
    if is_solo:
        raise errors.InvalidArgument(
            "fallback='group' on a solo_group(): such a group cannot add up what k < n ranks have. "
            "Wrap the model without process_group, with policy='sync', or leave fallback out")
    if optimizer is not None:
        raise errors.InvalidArgument(
            "fallback='group' with overlap(): its steps do not end with backward. Use attach()")
    if not isinstance(after_s, (int, float)) or not 0.1 <= after_s <= 86_400:
        raise errors.InvalidArgument(
            f"fallback_after={after_s!r}: must be seconds, from 0.1 to 86400")
    return True


def _refuse(job, device, backend):
    """Raises InvalidArgument where the group could not end a step of this job."""
    why = None
    if backend != "gloo":
        why = f"the process group's backend for the CPU is {backend}, and must be gloo"
    elif device is not None:
        why = "the gradients are on a CUDA device"
    elif job.rounded:
        why = "residuals are the job's: use wire='float32' and prune='off'"
    elif job.policy.averaging == "sum":
        why = "averaging='sum'"
    if why is not None:
        job.close()
        raise errors.InvalidArgument(f"fallback='group' cannot be: {why}")


class GroupAttachment(Attachment):
    """The Attachment that attach(fallback='group') returns.

    is_away  whether the next step goes over the process group; `job` is closed then. Equal on all
             ranks, but in the step in which it begins, which some may have had from the box.
    """

    def __init__(self, job, named, group, weight, device, after_s, patience_s, join):
        _refuse(job, device, _torch_agreement.backends_of(group).get("cpu"))
        super().__init__(job, named, group, weight, device)
        flat = {p.dtype: 0 for p in self._parameters}
        for p in self._parameters:
            flat[p.dtype] += p.numel()
        flat = {dtype: torch.zeros(count, dtype=dtype) for dtype, count in flat.items()}
        places, self._results = dict.fromkeys(flat, 0), []  # by tensor index, in `flat`
        for p in self._parameters:
            begin = places[p.dtype]
            places[p.dtype] = begin + p.numel()
            self._results.append(flat[p.dtype][begin:begin + p.numel()])
        outputs = [result.data_ptr() for result in self._results]
        self._buckets = Buckets(self._numbers, outputs)
        self._targets = []  # (result, where DDP wants it) of this backward
        self._lost = None  # the job's error, before its step was waited for
        self._fallback = Fallback(ProcessGroup(group, job.label, patience_s), job, join,
                                  list(flat.values()), after_s, patience_s)

    @property
    def is_away(self):
        return self._fallback.is_away

    def stats(self):
        """The counters of the present membership, as a dict, and `group_steps`: how many steps went
        over the process group since attach(). While they do there is nothing else."""
        counters = {} if self.is_away else self.job.stats()
        return {**counters, "group_steps": self._fallback.group_steps}

    def _check_job(self):
        try:
            if not self.is_away:
                super()._check_job()
        except errors.Error as error:
            if not self._fallback.stops(error):
                raise

    def _submit(self, bucket, buffer):
        begin, size = buffer.data_ptr(), buffer.element_size()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            if id(parameter) in self._numbers:
                place = (gradient.data_ptr() - begin) // size
                self._targets.append((self._results[self._numbers[id(parameter)]],
                                      buffer[place:place + gradient.numel()]))
        try:
            if not self.is_away and self._lost is None:
                return super()._submit(bucket, buffer)
        except errors.Error as error:
            if not self._fallback.stops(error):
                raise
            self._lost = error
            return None
        if self._weight != 1:
            buffer.mul_(self._weight)
        return None

    def _begin_backward(self):
        self._targets, self._lost = [], None
        super()._begin_backward()

    def _end_backward(self):
        self._fallback.end_step([buffer for _, buffer in self._pending],
                                checked_weight(self._weight), self._take_results)
        self.job = self._fallback.job

    def _take_results(self):
        for result, target in self._targets:
            target.copy_(result)

    def _abandon(self, kind, value, trace):
        self._fallback.end()
        super()._abandon(kind, value, trace)

    def _end(self, leave):
        self._fallback.end()
        super()._end((lambda: None) if self.is_away else leave)
