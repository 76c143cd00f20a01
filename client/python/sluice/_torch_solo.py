"""`solo_group()` and `SoloAttachment`: DDP in a job whose steps may be complete without this
rank.

In a stock process group DDP's own messages (buffers, maps of used parameters) block until all ranks
send them, so one frozen rank would stop all, whatever k is. A group of one rank never blocks. Its
replicas agree here on gradients that some ranks or no rank has, on buffers, and on the end of
training. `_torch_loop` decides what this rank does in each step and runs the optimizer.
"""

import contextlib
import os

import torch
import torch.distributed as dist

from sluice import _settings, _torch_end, errors
from sluice._torch_attachment import Attachment

_LEAST_URGENT = 255
_members = {}  # group -> (rank, world size) in the job


@contextlib.contextmanager
def _loopback():
    """Names the loopback interface for Gloo, which opens a network device even for one rank. The
    host's own name may not resolve."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    if before is None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]


def solo_group(rank=None, world_size=None):
    """Returns DDP's process group for a job whose steps may be complete without some of the
    ranks.

        model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
        attachment = sluice.torch.attach(model, policy="fixed", k=6)
        loop = sluice.torch.Loop(attachment, optimizer)

    rank, world_size  of this process in the job, default RANK and WORLD_SIZE. attach() uses them;
                      inside the group this process is rank 0 of 1.

    The group needs no rendezvous and waits for nobody, so a rank that has died can start again. If
    torch has no default process group yet, this one becomes it; then do not call
    init_process_group(). After init_process_group() the result is a sub-group: all ranks must call
    this function at the same place, and no rank can be restarted.

    Several models may share the group; further calls return the same one. Sluice carries what DDP
    would send through its group: rank 0's parameters and buffers at attach(), and buffers of
    BatchNorm after every step. SyncBatchNorm sees the batch of this rank only.

    Does not block. With SLUICE_DISABLE=1 it returns the ordinary group of all ranks. Raises
    InvalidArgument when rank or world size are not known.
    """
    if _settings.disabled():
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return dist.group.WORLD
    default = dist.group.WORLD if dist.is_initialized() else None
    for group, member in _members.items():
        if member == (_asked(rank, member[0]), _asked(world_size, member[1])):
            return group
    if default is None:
        member = (_settings.integer("RANK", rank), _settings.integer("WORLD_SIZE", world_size))
        with _loopback():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        group = dist.group.WORLD
    else:
        member = (dist.get_rank() if rank is None else int(rank),
                  dist.get_world_size() if world_size is None else int(world_size))
        with _loopback():
            group = dist.new_group([dist.get_rank()], backend="gloo")
    _members[group] = member
    return group


def _asked(value, default):
    return default if value is None else int(value)


def member_of(group):
    """(rank, world size) in the job when `group` came from solo_group(), else None."""
    return _members.get(group)


def extra_tensors(replica):
    """Specs of the tensors after the parameters: parts of buffers, and the End tensor."""
    return [*((part.name, part.values.numel(), "float32", True) for part in replica.parts),
            _torch_end.SPEC]


def _strides(parameter):
    """The strides that DDP gives the gradient of `parameter` inside a bucket."""
    dense = torch.empty_like(parameter, device="meta").stride()
    if dense == parameter.stride():
        return dense
    return torch.empty(parameter.shape, device="meta").stride()


class SoloAttachment(Attachment):
    """A model's membership of a job on a solo_group(); made by attach(), driven by a Loop."""

    def __init__(self, job, named, group, weight, replica, device=None):
        super().__init__(job, named, group, weight, device)
        self.replica = replica
        self.loop = None  # the Loop that drives this, once there is one
        self.accepting = False  # whether a synchronised backward belongs to a step now
        self.submitted = False  # whether this rank has submitted the step that is not applied yet
        self.lost = False  # the step's result is lost to this rank: it must resync
        self.finished = False  # this rank has no more data
        self.all_finished = False  # neither have the ranks in the last applied step
        self._layouts = [_strides(p) for p in self._parameters]
        self._own = [None] * len(named)  # memory for results beside DDP's buckets
        self._outputs = [None] * len(named)  # where the step's results are
        self._used = set()  # parameters with a gradient of this rank for the next submission
        self._ending = _torch_end.End(job.rank)
        for index in range(len(named), len(job.tensors)):  # sums over the ranks in the step
            job.set_averaging(index, "weight")
        self._handles += [p.register_hook(self._use(index))
                          for index, p in enumerate(self._parameters)]

    def _use(self, index):
        used = self._used

        def mark(_gradient):
            used.add(index)
        return mark

    # ---- called by DDP and by autograd ----

    def _before_forward(self, ddp_model, is_traced):
        super()._before_forward(ddp_model, is_traced)
        if self._ended or not ddp_model.training or not torch.is_grad_enabled():
            return
        if self.loop is None:
            raise errors.InvalidArgument(
                "a model on a solo_group() is trained through a sluice.torch.Loop, which applies "
                "the steps that this rank has missed: loop = sluice.torch.Loop(attachment, "
                "optimizer), then 'for step in loop.steps(total):' around forward and backward")

    def _begin_backward(self):
        super()._begin_backward()
        if self.submitted:
            raise errors.InvalidArgument(
                "a second backward in one step: each pass of the loop's body is one step. To "
                "accumulate gradients run all but the last backward within model.no_sync()")
        if not self.accepting:
            raise errors.InvalidArgument(
                "a backward outside of the loop: run it in the body of "
                "'for step in loop.steps(total):'")

    def _submit(self, bucket, buffer):
        self.submitted = True
        if self.lost:
            return
        with self._unless_behind():
            if self.weight != 1:
                buffer.mul_(self.weight)
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                if parameter in self._indices:
                    self._submit_gradient(self._indices[parameter], parameter, gradient)
            if bucket.is_last():
                self._submit_extras(take_part=True)

    @contextlib.contextmanager
    def _unless_behind(self):
        try:
            yield
        except errors.Behind:
            self.lost = True

    def _submit_gradient(self, index, parameter, gradient):
        if index in self._used:
            output = gradient.as_strided(parameter.shape, self._layouts[index],
                                         gradient.storage_offset())
            source = gradient.data_ptr()
        else:  # DDP has filled in zeros
            output, source = self._own_memory(index), None
        self._outputs[index] = output
        self.job.submit_address(index, source, output.data_ptr(), self.weight,
                                self._priorities[index], self._stream())

    def _extras(self):
        """(tensor index, values) of the tensors that are not parameters."""
        return enumerate((*(part.values for part in self.replica.parts), self._ending.values),
                         len(self._parameters))

    def _submit_extras(self, take_part):
        self._ending.fill(self.finished)
        given = [take_part and part.collect(self.weight) for part in self.replica.parts] + [True]
        weights = [self.weight] * len(self.replica.parts) + [1]
        for (index, values), is_given, weight in zip(self._extras(), given, weights):
            address = values.data_ptr()
            self.job.submit_address(index, address if is_given else None, address, weight,
                                    _LEAST_URGENT)
        self._used.clear()

    def _own_memory(self, index):
        if self._own[index] is None:
            parameter = self._parameters[index]
            self._own[index] = torch.empty_strided(
                parameter.shape, self._layouts[index], dtype=parameter.dtype,
                device=parameter.device)
        return self._own[index]

    def _end_backward(self):
        """Does not wait: the loop does, and gives states to peers meanwhile."""

    # ---- called by the loop ----

    def submit_nothing(self):
        """Takes part in the step without a gradient of this rank."""
        self.submitted = True
        with self._unless_behind():
            for index, address in self._own_outputs():
                self.job.submit_address(index, None, address, 0, self._priorities[index],
                                        self._stream())
            self._submit_extras(take_part=False)

    def catch_up(self):
        """Requests the results of a step that this rank does not compute."""
        with self._unless_behind():
            for index, address in self._own_outputs():
                self.job.catch_up_address(index, address, self._stream())
            for index, values in self._extras():
                self.job.catch_up_address(index, values.data_ptr())

    def _own_outputs(self):
        """(tensor index, address) of each parameter, for results that are not written to DDP's
        buckets."""
        for index in range(len(self._parameters)):
            self._outputs[index] = self._own_memory(index)
            yield index, self._outputs[index].data_ptr()

    def average_by(self, averaging, optimizer):
        """Sets the averaging of the optimizer's gradients; see sluice.Job."""
        for group in getattr(optimizer, "param_groups", ()):
            for parameter in group["params"]:
                if parameter in self._indices:
                    self.job.set_averaging(self._indices[parameter], averaging)

    def plan(self, total):
        """Notes the total of Loop.steps(); all ranks compare it in each step."""
        self._ending.tell(total)

    def check_plan(self):
        """Raises InvalidArgument when a rank in this step has another total."""
        index = len(self._parameters) + len(self.replica.parts)
        text = None if self.job.is_absent(index) else self._ending.disagreement()
        if text is not None:
            raise errors.InvalidArgument(f"the ranks plan different numbers of steps: {text}")

    def place_gradients(self):
        """Gives each parameter the step's result; None where no rank had a gradient."""
        for index, parameter in enumerate(self._parameters):
            parameter.grad = None if self.job.is_absent(index) else self._outputs[index]

    def agree(self):
        """Completes the step after the optimizer: buffers, and whether all ranks have finished."""
        first = len(self._parameters)
        parts = len(self.replica.parts)
        self.replica.agree({index for index in range(parts) if self.job.is_absent(first + index)})
        self.all_finished = (not self.job.is_absent(first + parts) and
                             self._ending.all_finished())
        self.clear()

    def clear(self):
        """Forgets the step and its gradients."""
        for parameter in self._parameters:
            parameter.grad = None
        self._outputs = [None] * len(self._parameters)
        self.submitted = self.lost = False

    # ---- for the user ----

    def report(self, step=0):
        """The sluice.StepReport of `step`, one of the last 16 that this rank has applied; 0: the
        last one. Its `weight` is the effective batch in samples."""
        return self.job.report(step)
