"""DDP's buckets as a job takes them.

In every backward DDP gives the communication hook the same buckets, each over the same flat tensor.
The arguments of a submission are computed once for each bucket and passed in one call. After the
first backward DDP makes new buckets, in the order in which gradients became ready.
"""

import ctypes
import weakref

from sluice import _abi


class Bucket:
    """The tensors of one bucket. `indices` are their indices in the job, `addresses` the
    addresses of their gradients in `buffer`, `outputs` those where the averages go."""

    def __init__(self, buffer, indices, addresses, outputs):
        self.buffer = weakref.ref(buffer)
        self.indices = indices
        self.addresses = addresses
        size = ctypes.sizeof(_abi.Submission)
        self._submissions = (_abi.Submission * len(indices))(*(
            (size, index, 1, 0, 0, address, output, None)
            for index, address, output in zip(indices, addresses, outputs)))
        self._said = None  # weight, priorities and stream in the submissions

    def submissions(self, weight, priorities, stream):
        """The array that Job.submit_many() takes. `priorities` has one entry for each tensor
        index; `stream` is the address of a CUDA stream, or None."""
        said = self._said
        if said is None or said[0] is not priorities or said[1:] != (weight, stream):
            self._said = priorities, weight, stream
            for submission, index in zip(self._submissions, self.indices):
                submission.weight, submission.priority = weight, priorities[index]
                submission.stream = stream or None
        return self._submissions


class Buckets:
    """The buckets that DDP has used so far. `numbers` maps the id() of a parameter to its tensor
    index in the job. `outputs`: of a tensor index the address for the averages; else they replace
    the gradients."""

    def __init__(self, numbers, outputs=None):
        self._numbers, self._outputs = numbers, outputs
        self._known = {}  # DDP's index of a bucket -> Bucket

    def of(self, bucket, buffer):
        """The Bucket for a GradBucket of DDP. It holds the parameters that the job has."""
        known = self._known.get(bucket.index())
        if known is None or known.buffer() is not buffer:
            own = [(self._numbers[id(parameter)], gradient.data_ptr())
                   for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
                   if id(parameter) in self._numbers]
            indices, addresses = [index for index, _ in own], [address for _, address in own]
            outputs = addresses if self._outputs is None else [
                self._outputs[index] for index in indices]
            known = self._known[bucket.index()] = Bucket(buffer, indices, addresses, outputs)
        return known
