"""Notices uses of a gradient or a parameter while its average is on its way. For
`_torch_overlap`.

An `AwaitedGradient` is a parameter's .grad from the end of backward until the average has arrived.
Any function of torch that reads or changes it first makes the owner wait. So clipping, a gradient
scaler, another optimizer and a print see complete averages. Zeroing after optimizer.step() need not
wait: the zeroing is noted, and done after the parameter's update.

A parameter has the class `AwaitedParameter` from optimizer.step() until its own update is done.
Uses that go through no module (a list from before the loop, the optimizer's groups, `.data`) wait
in the same way.
"""

import copy

import torch

from sluice import errors
from sluice._torch_dynamo import unseen

FACTS = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride,
          torch.Tensor.requires_grad_}  # these look at no element
FACTS.update(getattr(torch.Tensor, name).__get__ for name in (
    "grad_fn", "requires_grad", "is_leaf", "is_sparse", "dtype", "device", "layout", "shape"))
_ZEROING = {torch.Tensor.zero_, torch._foreach_zero_}
_GRADIENT = {getattr(torch.Tensor.grad, name) for name in ("__get__", "__set__", "__delete__")}
# Torch 2's name for what torch 1.x has under the other one.
undispatched = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)


class Awaited:
    """The state of one parameter's gradient between backward and the optimizer. The object is
    used again in each step, because a new one would cost as much as the rest of the step's
    bookkeeping.
    """

    __slots__ = ("index", "owner", "values", "cover", "number", "shown", "group", "version",
                 "zeroed")

    def __init__(self, index):
        self.index = index  # the tensor's, in the job
        self.values = None  # the memory that the average arrives in
        self.cover = None  # an AwaitedGradient for that
        self.number = None  # the parameter's place in optimizer.param_groups
        self.version = None  # the parameter's in step(): no function of torch may change it then
        self.end()

    def cover_for(self, gradient):
        """The tensor that .grad holds in the place of `gradient` from now on."""
        if gradient is not self.values:
            self.values, self.cover = gradient, gradient.as_subclass(AwaitedGradient)
            self.cover.entry = self
        self.shown = self.cover
        return self.cover

    def end(self):
        """The average has arrived."""
        self.owner = None  # while it is on its way: has gradient_is_read()
        self.shown = None  # what .grad shows; None: no gradient in this step
        self.group = None  # that number once step() was called
        self.zeroed = False  # after the step the user wants zeros

    def postpone(self, parameter):
        """step() was called, and this parameter's update is due."""
        self.group, self.version = self.number, parameter._version
        parameter.awaited, parameter.__class__ = self, AwaitedParameter

    def take_up(self, parameter, tensors):
        """The parameter's update is done now."""
        make_plain(parameter)
        if parameter._version != self.version:
            raise errors.InvalidArgument(
                f"parameter '{tensors[self.index].name}' was changed between optimizer.step() and "
                "the next forward through a view of it that was made earlier (p.detach(), "
                "p.view(...)), so before that step was applied to it. Call flush() of what "
                "overlap() has returned before each such change, or use sluice.torch.attach()")

    def zero_later(self):
        if self.owner is None or self.group is None:
            return False
        self.zeroed = True
        return True


class InFlight(dict):
    """Maps a tensor index to the Awaited of each gradient that is on its way."""

    def __init__(self, parameters):
        super().__init__()
        self._parameters = parameters
        self._entries = [Awaited(index) for index in range(len(parameters))]
        self._addresses = {}  # tensor index -> of its part of a bucket

    def submitted(self, bucket, owner):
        """Notes that a _torch_buckets.Bucket was submitted. `owner` has gradient_is_read() and
        parameter_is_used()."""
        for index, address in zip(bucket.indices, bucket.addresses):
            entry = self[index] = self._entries[index]
            entry.owner = owner
            self._addresses[index] = address

    def cover(self):
        """Puts an AwaitedGradient into each .grad."""
        for index, entry in self.items():
            parameter = self._parameters[index]
            gradient = parameter.grad
            # Another address: no rank used the parameter, and DDP has left its gradient alone.
            if gradient is None or gradient.data_ptr() != self._addresses[index]:
                continue
            if gradient is not entry.values is not None:  # somebody may have kept the old one
                owner, entry.owner = entry.owner, None
                entry = self[index] = self._entries[index] = Awaited(index)
                entry.owner = owner
            parameter.grad = entry.cover_for(gradient)

    def to_postpone(self, numbered, numbers):
        """Returns {id() of a parameter: Awaited} for the parameters whose gradient is on its
        way. `numbered` holds (parameter, number of its group); `numbers` maps the id() of a
        parameter to its tensor index.
        """
        found = {}
        for parameter, number in numbered:
            entry = self.get(numbers.get(id(parameter)))
            if (entry is not None and entry.shown is not None
                    and parameter.grad is entry.shown):
                entry.number = number
                found[id(parameter)] = entry
        return found

    def zero(self, set_to_none):
        """zero_grad() for parameters with a postponed update; returns the id() of each."""
        done = set()
        with undispatched():
            for index, entry in self.items():
                parameter = self._parameters[index]
                if entry.group is None or parameter.grad is not entry.shown:
                    continue
                if set_to_none:
                    parameter.grad = None
                else:
                    entry.zeroed = True
                done.add(id(parameter))
        return done

    def give_back(self, entry):
        """Puts the average, or zeros, into .grad again."""
        if entry.zeroed:
            entry.values.zero_()
        del self[entry.index]
        entry.end()

    def give_up(self):
        """Drops all gradients that are on their way."""
        for index, entry in self.items():
            entry.end()
            make_plain(self._parameters[index])
            self._parameters[index].grad = None
        self.clear()


class AwaitedGradient(torch.Tensor):
    """The tensor in .grad until the average has arrived. `entry` is its Awaited."""

    @classmethod
    @unseen
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        awaited = []
        plain = _plain(args, awaited)
        options = {key: _plain(value, awaited) for key, value in (kwargs or {}).items()}
        if func not in FACTS:
            if func in _ZEROING and all([entry.zero_later() for entry in awaited]):
                return args[0]
            for entry in awaited:
                if entry.owner is not None:
                    entry.owner.gradient_is_read(is_dropped=func in _ZEROING)
        return func(*plain, **options)


def _plain(value, awaited):
    """`value` with plain tensors in the place of AwaitedGradients, which are appended to
    `awaited`."""
    if isinstance(value, AwaitedGradient):
        awaited.append(value.entry)
        return value.entry.values
    if type(value) in (list, tuple):
        return type(value)(_plain(item, awaited) for item in value)
    return value


class AwaitedParameter(torch.nn.Parameter):
    """A parameter with a postponed update. `awaited` is its Awaited, whose owner has
    parameter_is_used()."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in FACTS or func in _GRADIENT:
            with undispatched():
                return func(*args, **kwargs)
        _catch_up((args, tuple(kwargs.values())))
        return func(*args, **kwargs)

    def __deepcopy__(self, memo):
        _catch_up(self)
        return copy.deepcopy(self, memo)


@unseen
def _catch_up(value):
    """Has the updates of all AwaitedParameters in `value` done; then they are plain parameters."""
    if type(value) is AwaitedParameter:
        value.awaited.owner.parameter_is_used(value)
        make_plain(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _catch_up(item)


def make_plain(parameter):
    """Gives an AwaitedParameter back the class that it had."""
    if type(parameter) is AwaitedParameter:
        parameter.__class__ = torch.nn.Parameter
        del parameter.awaited
