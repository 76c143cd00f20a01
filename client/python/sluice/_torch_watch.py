"""Knowing when a forward needs a parameter, before it reads it. For `_torch_overlap`.

Modules find their parameters in `module._parameters`. A `WatchedParameters` stands there and says
each time that one is looked up, by whichever module: this also sees what pre-hooks on the owner
would miss, such as F.linear(x, self.child.weight), state_dict() and model.parameters(). References
that were taken earlier (nn.LSTM keeps such a list) do not come through there; `FirstForward` sees
their use in the first forward, and they are asked for by module, or before the forward, from then
on.
"""

import itertools
from collections import OrderedDict

import torch
from torch.overrides import TorchFunctionMode

from sluice._torch_landing import _FACTS


class WatchedParameters(OrderedDict):
    """A module's parameters by name; `need(parameter)` is called before one is handed out."""

    def __init__(self, entries, need):
        super().__init__(entries)
        self._need = need

    def __getitem__(self, name):
        value = super().__getitem__(name)
        self._need(value)
        return value

    def get(self, name, default=None):
        return self[name] if name in self else default

    def values(self):
        for value in super().values():
            self._need(value)
        return super().values()

    def items(self):
        self.values()
        return super().items()

    def pop(self, name, *default):
        self.get(name)
        return super().pop(name, *default)

    def copy(self):
        return OrderedDict(self.items())

    def __reduce__(self):  # for pickle and deepcopy: a copied model is not watched
        return OrderedDict, (list(self.items()),)


class Hook:
    """A module's hook that stays behind when the module is copied or pickled."""

    def __init__(self, function):
        self._function = function

    def __call__(self, *arguments):
        return self._function(*arguments)

    def __reduce__(self):
        return _no_hook, ()


def _no_hook():
    return _nothing


def _nothing(*_arguments):
    return None


def is_opaque(module):
    """Whether the module's parameters are read by compiled code, which looks nothing up."""
    return (isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None)


class Watch:
    """Watches the parameters in `indices` ({parameter: index}) of `module` until remove()."""

    def __init__(self, module, indices, need):
        self.early = {}  # indices that must be there before a forward begins -> nothing
        self.units = {}  # index -> indices that are asked for together: those of one layer
        self.owners = {}  # index -> the module that has it
        self._replaced = []
        for child in module.modules():
            own = [indices[p] for p in child.parameters(recurse=False) if p in indices]
            if is_opaque(child):
                self.early.update((indices[p], None) for p in child.parameters() if p in indices)
            if not own or isinstance(child, torch.jit.ScriptModule):
                continue
            layer = not any(True for _ in child.children())
            for index in own:
                self.owners.setdefault(index, child)
                self.units.setdefault(index, own if layer else [index])
            self._replaced.append((child, child._parameters))
            child._parameters = WatchedParameters(child._parameters, need)
        for index in indices.values():
            self.units.setdefault(index, [index])

    def remove(self):
        for child, parameters in self._replaced:
            current = OrderedDict(child._parameters)
            parameters.clear()
            parameters.update(current)
            child._parameters = parameters
        self._replaced = []


class FirstForward(TorchFunctionMode):
    """Sees in which order a whole forward uses the parameters, and which without looking them up.

    Entered around one forward; `announce` is told of the look-ups meanwhile.
    """

    def __init__(self, indices, watch):
        super().__init__()
        self._indices = indices
        self._watch = watch
        self._announced = set()
        self._entered = set()  # modules that were called
        self.order = {}  # index -> nothing; a dict keeps the order
        self.early = {**watch.early}  # also those used before the module that has them was called
        self.by_module = {}  # module -> those of its own that it does not look up

    def announce(self, index):
        self._announced.add(index)
        self.order.setdefault(index)

    def enter(self, module):
        self._entered.add(module)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in _FACTS:
            for value in itertools.chain(args, (kwargs or {}).values()):
                self._look(value)
        return func(*args, **(kwargs or {}))

    def _look(self, value):
        if isinstance(value, (list, tuple)):
            for item in value:
                self._look(item)
        elif isinstance(value, torch.nn.Parameter):
            index = self._indices.get(value)
            if index is not None and index not in self._announced:
                self._use(index)

    def _use(self, index):
        self.announce(index)
        owner = self._watch.owners.get(index)
        if owner in self._entered:
            self.by_module.setdefault(owner, []).append(index)
        else:
            self.early[index] = None

    def finish(self, count):
        """All tensor indices: those that a forward waits for at its start, the others that were
        used, in that order, then those that were not."""
        return list({**self.early, **self.order, **dict.fromkeys(range(count))})
