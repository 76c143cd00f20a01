"""`Attachment`: DDP's communication hook over a job. sluice.torch.attach() makes it."""

import threading
import weakref

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from sluice import errors
from sluice._torch_buckets import Buckets
from sluice._torch_dynamo import compiled_modules, is_tracing, unseen
from sluice._torch_order import PRIORITIES, ForwardOrder, priorities_of
from sluice._torch_step import Hook, StepEngine
from sluice._torch_units import Units, to_be_told
from sluice._values import checked_weight


_PRUNING = "sluice.pruning"  # no parameter's name: where the pruning of each pruned one stands


# DDP checks these annotations when the hook is registered, and wants a plain function.
def hook(attachment: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return attachment._on_bucket(bucket)


def _failed_future(error):
    """A future that DDP finds failed. set_exception() is not enough: C++ sees the value of a
    future only."""
    def fail(_future):
        raise error
    start = torch.futures.Future()
    start.set_result(None)
    return start.then(fail)


def _any_stranger(model, known):
    """Whether a parameter that needs a gradient is missing in `known`, a set of id()s.

    Runs before every forward. model.parameters() and the hash of a tensor would take several times
    as long, so it uses neither.
    """
    seen, stack = {model}, [model]
    while stack:
        child = stack.pop()
        # dict.values: a look-up by name would wait for an update that is under way (overlap).
        for p in dict.values(child._parameters):
            if id(p) not in known and p is not None and p.requires_grad:
                return True
        for grandchild in dict.values(child._modules):
            if grandchild is not None and grandchild not in seen:
                seen.add(grandchild)
                stack.append(grandchild)
    return False


class Attachment(StepEngine):
    """A model's membership of a job; attach() makes it. `job` is the sluice.Job underneath.

    `weight` is the number of samples of this rank's batch; it may be changed between steps. Only
    the thread that trains may use an Attachment.
    """

    def __init__(self, job, named, group, weight, device=None):
        super().__init__()
        self.job = job
        self._device = device  # a _torch_device.Device; None: gradients are in the host's memory
        self.weight = weight
        self._parameters = [p for _, p in named]
        self._indices = {p: index for index, p in enumerate(self._parameters)}
        self._numbers = {id(p): index for index, p in enumerate(self._parameters)}  # the same
        self._buckets = Buckets(self._numbers)
        self._names = {name: index for index, (name, _) in enumerate(named)}
        self._group = group
        self._pending = []  # (future, buffer) of the buckets of this backward
        self._abandoned = []  # buffers of backwards that were interrupted: the job may write there
        self._order = None  # of use in the forward, until the first backward
        self._is_ordered = False  # whether the first forward was begun
        self._model = None  # weak: DDP's reducer keeps this object alive, so else it were a cycle
        self._delayed = None  # first backward of a static graph, see _begin_backward
        # By tensor index; another tuple when one has changed.
        self._priorities = tuple(priorities_of(range(len(named)), len(named)))
        self._chosen = {}  # tensor index -> priority from set_priority()
        # Parameters that DDP was told to leave alone, and those without elements.
        self._ignored = frozenset()
        self._known = frozenset()  # id() of these and of the job's
        self._units = None  # of what is kept of gradients, when they are followed
        self._tell_left_behind = to_be_told(self, job)

    @property
    def weight(self):
        return self._weight

    @weight.setter
    def weight(self, weight):
        self._weight = checked_weight(weight)

    def __reduce__(self):  # torch 2's DDP keeps this; a copy of the model is not attached
        return type(None), ()

    # ---- called by DDP and by autograd ----

    def _watch(self, ddp_model):
        self._model = weakref.ref(ddp_model)
        ignored = set(getattr(ddp_model, "parameters_to_ignore", ()))
        self._ignored = frozenset(p for name, p in ddp_model.module.named_parameters()
                                  if name in ignored or p.numel() == 0)
        self._known = frozenset([*self._numbers, *map(id, self._ignored)])
        before = unseen(self._before_forward)
        watch = Hook(lambda model, _inputs: before(model, is_tracing()))
        self._handles.append(ddp_model.register_forward_pre_hook(watch))

    def _watch_first_forward(self, module, is_traced):
        """Notes the order in which the first forward needs the parameters. Compiled modules are
        left out: torch.compile would trace the hooks, and compile again when they are removed."""
        if not (self._is_ordered or is_traced or compiled_modules(module)):
            self._order = ForwardOrder(module, self._indices)
        self._is_ordered = True

    def _before_forward(self, ddp_model, is_traced):
        if self._ended or ddp_model is not self._model() or not torch.is_grad_enabled():
            return
        self._watch_first_forward(ddp_model.module, is_traced)
        if not ddp_model.training:
            return
        if self._failure is not None:
            raise self._failure
        if getattr(getattr(ddp_model, "_join_config", None), "enable", False):
            raise errors.InvalidArgument(
                "DDP's join() context cannot be used with Sluice: its shadow all-reduces go to the "
                "process group. Give every rank the same number of batches, for example with "
                "DistributedSampler(drop_last=True)")
        self._check_parameters(ddp_model.module)
        self._check_job()

    def _check_job(self):
        self.job.check()

    def _check_parameters(self, model):
        """Raises when a parameter needs a gradient that the job does not average."""
        known, ignored = self._indices, self._ignored
        if _any_stranger(model, self._known):
            names = [f"{prefix}.{name}" if prefix else name
                     for prefix, child in model.named_modules()
                     for name, p in dict.items(child._parameters)
                     if p is not None and p.requires_grad and p not in known and p not in ignored]
            what = f"'{names[0]}'" + (f" and {len(names) - 1} more need" if names[1:] else " needs")
            raise errors.InvalidArgument(
                f"parameter {what} a gradient and did not when attach() was called: it would be "
                "trained on this rank's data alone, and the replicas would part. Freeze it again "
                "(requires_grad_(False)), or wrap the model with DistributedDataParallel and call "
                "attach() anew after it was unfrozen or added")

    @unseen
    def _on_bucket(self, bucket):
        if self._ended:
            return default_hooks.allreduce_hook(self._group, bucket)
        try:
            if bucket.index() == 0:
                self._begin_backward()
                if self._units is not None:
                    self._units.update()
            if self._failure is not None:
                return _failed_future(self._failure)
            future = torch.futures.Future() if self._device is None else self._device.future()
            buffer = bucket.buffer()
            self._pending.append((future, buffer))
            self._submit(bucket, buffer)
            if self._delayed:
                if bucket.is_last():
                    threading.Thread(target=self._finish_delayed, name="sluice-step").start()
                return future.then(self._delayed_result)
            return future
        except BaseException as error:  # noqa: BLE001 - raised by _finish, out of backward()
            self._failure = error
            return _failed_future(error)

    def _begin_backward(self):
        if self._pending:
            self._abandoned.append(self._pending)
            self._pending = []
        if self._order is not None:
            count = len(self._indices)
            priorities = priorities_of(self._order.finish(count), count)
            for index, priority in self._chosen.items():
                priorities[index] = priority
            self._priorities = tuple(priorities)
            self._order = None
        # In the first backward of a static graph DDP calls the hook for all buckets at the very end
        # and waits for their futures at once, before the engine's callbacks.
        self._delayed = self._delayed is None and getattr(self._model(), "static_graph", False)
        Variable._execution_engine.queue_callback(self._finish)

    def _submit(self, bucket, buffer):
        weight = self._weight
        if weight != 1:
            buffer.mul_(weight)
        known = self._buckets.of(bucket, buffer)
        self._leaves(known)
        self.job.submit_many(known.submissions(weight, self._priorities, self._stream()))
        if bucket.is_last():
            self.job.end_step()

    def _leaves(self, bucket):
        """Called before a _torch_buckets.Bucket is submitted."""

    def _stream(self):
        """The address of the CUDA stream that computes the gradients; None if they are in the
        host's memory."""
        return None if self._device is None else self._device.stream()

    @unseen
    def _finish(self):
        """Runs at the end of backward, before DDP takes the buckets."""
        if self._failure is not None:
            raise self._failure
        if not self._pending:
            return
        try:
            with self._failing():
                self._end_backward()
        except errors.Error:
            raise
        except BaseException:
            self._failure = errors.Interrupted(
                "an earlier backward was interrupted while it waited for the other ranks, so this "
                "rank is out of step with them: end this run, or create and attach a new model")
            raise
        pending, self._pending = self._pending, []
        for future, buffer in pending:
            future.set_result(buffer)

    def _end_backward(self):
        """Waits for the step, which DDP needs before it goes on with the buckets."""
        self.job.wait_step()

    def _finish_delayed(self):
        pending = self._pending
        try:
            self._finish()
        except BaseException:  # noqa: BLE001 - kept in _failure
            for future, buffer in pending:
                future.set_result(buffer)  # _delayed_result raises

    def _delayed_result(self, future):
        if self._failure is not None:
            raise self._failure
        return future.value()

    # ---- for the user ----

    def stats(self):
        """The counters of the job since attach(), as a dict; see sluice.Job.stats()."""
        return self.job.stats()

    def set_priority(self, parameter, priority):
        """Sets the priority of a parameter, given as the parameter or its name: 0 (most urgent)
        to 255.

        By default priorities follow the order of the first forward. The priority holds from the
        next backward until the next call for this parameter. Any time; does not block. Ranks should
        set equal priorities, because a sum is complete with its last contribution.

        Raises InvalidArgument for a parameter that is not in the job, and for other numbers.
        """
        table = self._names if isinstance(parameter, str) else self._indices
        index = table.get(parameter)
        if index is None:
            what = f"'{parameter}'" if isinstance(parameter, str) else (
                f"this {type(parameter).__name__} of shape {tuple(parameter.shape)}"
                if isinstance(parameter, torch.Tensor) else f"a {type(parameter).__name__}")
            raise errors.InvalidArgument(
                f"{what} is not in the job: give a parameter of the model that needs a gradient, "
                "or its name as in model.module.named_parameters()")
        if (not isinstance(priority, int) or isinstance(priority, bool)
                or not 0 <= priority < PRIORITIES):
            raise errors.InvalidArgument(
                f"priority={priority!r}: must be a whole number from 0, the most urgent, to "
                f"{PRIORITIES - 1}")
        self._chosen[index] = priority
        self._priorities = (*self._priorities[:index], priority, *self._priorities[index + 1:])

    def state_dict(self):
        """The part of this rank's gradients that is not delivered yet: residuals by parameter,
        with `prune_momentum` a velocity behind each, and the state of pruning.

        Save it in the checkpoint of each rank if `wire` is not 'float32' or `prune` is not 'off';
        else it is empty. A run that loads it has the same bits as a run without the interruption.
        Call it between two steps; an Overlap first applies its pending updates.
        """
        if self._units is not None:
            self._units.update()
        residuals = {}
        for name in self.job.rounded:
            index = self._names.get(name)
            if index is not None:
                residuals[name] = torch.empty(
                    self._parameters[index].numel() * self.job.residual_floats, device="cpu")
                self.job.get_residual(index, residuals[name])
        if self.job.pruned:
            residuals[_PRUNING] = torch.tensor(
                [self.job.get_pruning(index) for index in self.job.pruned], device="cpu")
        return residuals

    def load_state_dict(self, state):
        """Restores what state_dict() of the same rank returned. Call it before the first
        backward, with the learning rate and the loss scale of that time."""
        unknown = set(state) - set(self.job.rounded) - {_PRUNING}
        if unknown:
            raise errors.InvalidArgument(
                f"'{min(unknown)}' has no residual in this job: load it with the `wire`, the "
                "`prune` and the parameters of the run that saved it")
        state = dict(state)
        positions = state.pop(_PRUNING, torch.tensor([]))  # of 0.2.0: none
        for index, position in zip(self.job.pruned, positions.tolist()):
            self.job.set_pruning(index, position)
        for name, values in state.items():
            self.job.set_residual(name, values.detach().cpu().contiguous())
        if self._units is not None:
            self._units.forget()

    def follow(self, optimizer, scaler=None):
        """Keeps residuals worth the same when the learning rate or the loss scale changes.

        optimizer  one, or a list; overlap() and a Loop follow theirs by themselves. The rates of
                   Adam and its kin are ignored, because these optimizers ignore the scale of
                   gradients.
        scaler     AMP's GradScaler, or an object with its get_scale(), or None. It is read once a
                   step, which waits for the forward on a GPU.

        Before the first gradient of a step leaves, the residuals are multiplied by new unit / old
        unit, where unit = scale / rate. This reads and writes all residuals, in steps in which a
        unit has changed. A rate of 0 is skipped. Without `wire` and `prune` the call has no effect.
        The last call holds; call it between steps. Raises InvalidArgument for other objects.
        """
        optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        units = Units(self.job, self._indices, optimizers, scaler)
        self._units = units if self.job.rounded else None

    def scale_residuals(self, factor):
        """Multiplies all residuals by `factor`, new loss scale / old loss scale, where follow()
        knows no scaler. Call it between steps, after the scale has changed."""
        if self._units is not None and self._units.scaler is not None:
            raise errors.InvalidArgument("scale_residuals(): follow() has the scaler and does this")
        self.job.scale_residuals(factor)

    def flush_residuals(self):
        """With `prune`: the next backward, which must be the last, sends all residuals.
        Loop.steps(total) calls it. If a residual stays, one line of the log says so when the rank
        ends.
        """
        self.job.flush_residuals()

    def detach(self):
        """Leaves the job in order, after the last backward.

        All ranks should call it after the same number of steps; else see finish(). Afterwards DDP's
        own all-reduce averages the gradients of the model. Blocks for about 1 s at most; may be
        called again.
        """
        self._end(lambda: None)

    def finish(self):
        """Leaves the job as detach() does, where ranks end after different numbers of steps.

        The remaining ranks go on with the mean of their gradients. Without this call a synchronous
        job fails with this rank's name when another rank goes on, and when a rank skips a batch.
        The model must have no buffers that DDP broadcasts. On a solo_group() call Loop.finish()
        first, which applies the other ranks' steps.
        """
        self._end(self.job.finish)

    def _end(self, leave):
        if self._ended:
            return
        self._tell_left_behind()
        self._ended = True
        self._release()
        try:
            leave()
        finally:
            self.job.close()
        self._pending = []
        self._abandoned = []

    def _leave_in_order(self):
        self.detach()

    def _abandon(self, kind, value, trace):
        self.job.__exit__(kind, value, trace)
