"""DDP's buckets as a job takes them: what to submit of each, made once and handed over in one call.

DDP gives the hook the same buckets in every backward, each over the same flat tensor. It makes new
ones after the first backward, in the order in which gradients became ready.
"""

import ctypes
import weakref

from sluice import _abi


class Bucket:
    """The tensors of one bucket over `buffer`: `indices` in the job, `addresses` of their
    gradients, which become the averages in place."""

    def __init__(self, buffer, indices, addresses):
        self.buffer = weakref.ref(buffer)
        self.indices = indices
        self.addresses = addresses
        size = ctypes.sizeof(_abi.Submission)
        self._submissions = (_abi.Submission * len(indices))(*(
            (size, index, 1, 0, 0, address, address, None)
            for index, address in zip(indices, addresses)))
        self._said = None  # weight, priorities and stream in the submissions

    def submissions(self, weight, priorities, stream):
        """An array for Job.submit_many(). `priorities`: a tuple by tensor index; `stream`: see
        there."""
        said = self._said
        if said is None or said[0] is not priorities or said[1:] != (weight, stream):
            self._said = priorities, weight, stream
            for submission, index in zip(self._submissions, self.indices):
                submission.weight, submission.priority = weight, priorities[index]
                submission.stream = stream or None
        return self._submissions


class Buckets:
    """Knows DDP's buckets again. `numbers`: id() of a parameter -> tensor index in the job."""

    def __init__(self, numbers):
        self._numbers = numbers
        self._known = {}  # DDP's index of a bucket -> Bucket

    def of(self, bucket, buffer):
        """The Bucket of what DDP gives the hook. Of its parameters those that the job has."""
        known = self._known.get(bucket.index())
        if known is None or known.buffer() is not buffer:
            own = [(self._numbers[id(parameter)], gradient.data_ptr())
                   for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
                   if id(parameter) in self._numbers]
            known = self._known[bucket.index()] = Bucket(
                buffer, [index for index, _ in own], [address for _, address in own])
        return known
