"""Notices that a forward needs a parameter, before the parameter is read. For `_torch_overlap`.

Modules look their parameters up in `module._parameters`. `WatchedParameters` replaces that
dictionary and reports each look-up, by whichever module. Pre-hooks on the owner would miss some,
such as F.linear(x, self.child.weight), state_dict() and model.parameters(). Uses through a
reference that was taken earlier (nn.LSTM keeps a list) make no look-up. `FirstForward` finds them
in the first forward; later forwards wait for these parameters before their module, or before the
forward begins.
"""

import contextlib
import copy
import itertools
import os
import traceback
from collections import OrderedDict

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode

from sluice._torch_awaited import FACTS
from sluice._torch_dynamo import (CompiledCall, compiled_call, compiled_modules, is_tracing,
                                  unseen)

_TORCH, _OWN = (os.path.join(os.path.dirname(os.path.abspath(file)), "")
                for file in (torch.__file__, __file__))
_WRAPPERS = ("wrapper", "decorate_context")  # torch's, around its own functions


class WatchedParameters(OrderedDict):
    """A module's parameters by name. It calls `need(parameter)` before it returns one."""

    def __init__(self, entries, need):
        super().__init__(entries)
        self._need = need

    def __getitem__(self, name):
        value = dict.__getitem__(self, name)
        if not is_tracing():  # else the tracer would freeze what need() says today
            self._need(value)
        return value

    def get(self, name, default=None):
        return self[name] if name in self else default

    def values(self):
        if not is_tracing():
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


def is_opaque(module):
    """Whether compiled code, which makes no look-ups, reads the module's parameters."""
    return isinstance(module, torch.jit.ScriptModule) or compiled_call(module) is not None


def why_not_watched(named):
    """Why these (name, parameter) pairs cannot become AwaitedParameters; None if they can."""
    for name, p in named:
        if type(p) is not torch.nn.Parameter:
            return f"parameter '{name}' is a {type(p).__name__}, not an nn.Parameter"
        if hasattr(p, "_st_info"):  # DDP's mark of what a forward makes a DTensor again
            return f"parameter '{name}' is a part of a tensor-parallel one"
    return None


class Watch:
    """Watches the parameters in `indices` ({parameter: index}) of `module` until remove().

    need(parameter)   is called before a module returns one.
    enter(indices)    is called before a compiled module with these parameters runs.
    around()          returns a context for that run.
    """

    def __init__(self, module, indices, need, enter, around):
        self.early = {}  # indices that must be there before a forward begins -> nothing
        self.units = {}  # index -> indices that are asked for together: those of one layer
        self.owners = {}  # index -> the module that has it, unless that is compiled
        self._replaced = []
        self._calls = []
        compiled = set()
        for child in compiled_modules(module):
            own = [indices[p] for p in child.parameters() if p in indices]
            compiled.update(child.modules())
            self.units.update((index, own) for index in own)
            self._calls.append(CompiledCall(child, lambda own=own: enter(own), around))
        for child in module.modules():
            own = [indices[p] for p in child.parameters(recurse=False) if p in indices]
            if isinstance(child, torch.jit.ScriptModule):
                self.early.update((index, None) for index in own)
                continue
            if not own:
                continue
            layer = not any(True for _ in child.children())
            for index in own:
                if child not in compiled:
                    self.owners.setdefault(index, child)
                self.units.setdefault(index, own if layer else [index])
            self._replaced.append((child, child._parameters))
            child._parameters = WatchedParameters(child._parameters, need)
        for index in indices.values():
            self.units.setdefault(index, [index])

    def remove(self):
        for call in self._calls:
            call.remove()
        for child, parameters in self._replaced:
            current = OrderedDict(child._parameters)
            parameters.clear()
            parameters.update(current)
            child._parameters = parameters
        self._replaced = []


class FirstForward(TorchFunctionMode):
    """Notes the order in which one forward uses the parameters, and which of them without a
    look-up.

    A context for one forward, compiled modules in it left out. `announce` receives the look-ups,
    `enter` the modules that are called.
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
        self.running = False

    def watch_next(self, module):
        """Enters this context around the next forward of `module`."""
        own = module.__dict__.get("forward")
        if hasattr(own, "is_watched"):
            own = own.is_watched  # nobody came to the last one

        def forward(*arguments, **options):
            del module.forward
            if own is not None:
                module.forward = own
            handles = [child.register_forward_pre_hook(lambda child, _inputs: self.enter(child))
                       for child in set(self._watch.owners.values())]
            self.running = True
            try:
                with self:
                    return module.forward(*arguments, **options)
            finally:
                self.running = False
                for handle in handles:
                    handle.remove()

        forward.is_watched = own
        module.forward = forward

    def announce(self, index):
        self._announced.add(index)
        self.order.setdefault(index)

    def enter(self, module):
        self._entered.add(module)

    @contextlib.contextmanager
    def paused(self):
        """A context in which nothing is noted."""
        if overrides._get_current_function_mode() is not self:
            yield
            return
        with overrides._pop_mode_temporarily():
            yield

    @unseen
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func not in FACTS:
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
        """All tensor indices: first those that a forward waits for at its start, then the other
        used ones in their order, then the unused ones."""
        return list({**self.early, **self.order, **dict.fromkeys(range(count))})


def caller(optimizer):
    """The line of code that reads a gradient or a parameter, for a message: 'clip_grad_norm_
    (train.py:31)'. Calls from `optimizer` are left out."""
    what = "a script"
    for frame, line in traceback.walk_stack(None):
        code = frame.f_code
        if code.co_filename.startswith(_TORCH):
            object_ = frame.f_locals.get("self")
            if isinstance(object_, torch.optim.Optimizer) and object_ is not optimizer:
                what = f"another {type(object_).__name__} than the one given to overlap()"
            elif not code.co_name.startswith(("_", "<")) and code.co_name not in _WRAPPERS:
                what = code.co_name
        elif not code.co_filename.startswith(_OWN) and code.co_filename != copy.__file__:
            return f"{what} ({os.path.basename(code.co_filename)}:{line})"
    return what
