"""`Landing`: a gradient whose average is still on its way. Made by `_torch_overlap`.

It stands in a parameter's .grad from the end of backward until the average is there. Whoever reads
or changes it by any function of torch makes its owner wait first, so nobody sees half a result:
clipping, a gradient scaler, another optimizer, a print. Zeroing after optimizer.step() is the one
change that need not wait: it is noted, and done when the step is.
"""

import torch

_FACTS = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride,
          torch.Tensor.requires_grad_}  # these look at no element
_FACTS.update(getattr(torch.Tensor, name).__get__ for name in (
    "grad_fn", "requires_grad", "is_leaf", "is_sparse", "dtype", "device", "layout", "shape"))
_ZEROING = {torch.Tensor.zero_, torch._foreach_zero_}


class Flight:
    """One parameter's gradient between backward and the optimizer."""

    __slots__ = ("index", "owner", "values", "landing", "group", "zeroed")

    def __init__(self, index, owner):
        self.index = index  # the tensor's, in the job
        self.owner = owner  # has gradient_is_read(); None: it has landed
        self.values = None  # the memory that the average arrives in; None: no gradient in this step
        self.landing = None  # what .grad shows meanwhile
        self.group = None  # place in optimizer.param_groups once step() was called
        self.zeroed = False  # after the step the user wants zeros

    def cover(self, gradient):
        """Lets a Landing stand for `gradient`; returns it."""
        self.values = gradient
        self.landing = gradient.as_subclass(Landing)
        self.landing.flight = self
        return self.landing

    def zero_later(self):
        if self.owner is None or self.group is None:
            return False
        self.zeroed = True
        return True


class Landing(torch.Tensor):
    """See above. `flight` says for which gradient it stands."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        flights = []
        plain = _plain(args, flights)
        options = {key: _plain(value, flights) for key, value in (kwargs or {}).items()}
        if func not in _FACTS:
            if func in _ZEROING and all([flight.zero_later() for flight in flights]):
                return args[0]
            for flight in flights:
                if flight.owner is not None:
                    flight.owner.gradient_is_read(is_dropped=func in _ZEROING)
        return func(*plain, **options)


def _plain(value, flights):
    """`value` with the memory itself in the place of each Landing, whose flight is appended."""
    if isinstance(value, Landing):
        flights.append(value.flight)
        return value.flight.values
    if type(value) in (list, tuple):
        return type(value)(_plain(item, flights) for item in value)
    return value
