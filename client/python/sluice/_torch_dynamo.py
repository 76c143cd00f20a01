"""Keeps hooks out of torch.compile's sight, and notices when torch.compile works.

Its tracer, dynamo, follows calls into all Python code that a compiled function runs, hooks and
dictionaries of this package included. Values that it finds there are frozen, and calls are repeated
at the wrong time. Functions that a trace may reach are therefore `unseen`, and callers of others
ask is_tracing() first. Without torch.compile (torch 1.x) these functions do nothing.
"""

import sys

import torch

_compiler = getattr(torch, "compiler", None)

# Whether this very line is being traced: dynamo puts True in the place of the call.
is_tracing = getattr(_compiler, "is_compiling", lambda: False)


def unseen(function):
    """Decorator: compiled code calls `function` as plain Python, with all that it calls."""
    return function if _compiler is None else _compiler.disable(function)


def frames():
    """The number of functions that dynamo has tried to compile so far in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else utils.counters["frames"]["total"]


def compiled_call(module):
    """(name of the attribute, callable) by which a call of `module` runs compiled code; None if
    its forward is plain Python."""
    own = vars(module)
    if own.get("_compiled_call_impl") is not None:  # module.compile()
        return "_compiled_call_impl", own["_compiled_call_impl"]
    if type(module).__name__ == "OptimizedModule":  # torch.compile(module)
        return "forward", own["forward"]
    forward = getattr(module, "forward", None)  # torch.compile(module.forward), or of the class's
    if isinstance(forward, CompiledCall) or (hasattr(forward, "_torchdynamo_orig_callable") and
                                             not getattr(forward, "_torchdynamo_disable", False)):
        return "forward", forward
    return None


def compiled_modules(module):
    """The outermost compiled modules inside `module`, or `module` itself."""
    if compiled_call(module) is not None:
        return [module]
    return list(dict.fromkeys(
        found for child in module.children() for found in compiled_modules(child)))


class CompiledCall:
    """Replaces the call of a compiled module: before(), then the call, within the context
    around().

    `frames` is the number of functions that all CompiledCalls of this process have compiled, as
    dynamo counts them.
    """

    frames = 0

    def __init__(self, module, before, around):
        self._module, self._before, self._around = module, before, around
        self._name, self._call = compiled_call(module)
        self._was_own = self._name in vars(module)
        setattr(module, self._name, self)

    def __call__(self, *arguments, **options):
        self._before()
        compiled_before = frames()
        try:
            with self._around():
                return self._call(*arguments, **options)
        finally:
            CompiledCall.frames += frames() - compiled_before

    def remove(self):
        if vars(self._module).get(self._name) is not self:
            return  # compiled anew meanwhile
        if self._was_own:
            setattr(self._module, self._name, self._call)
        else:
            delattr(self._module, self._name)


class Signs:
    """Tells whether torch.compile has compiled anything since this object was made,
    CompiledCalls left out."""

    def __init__(self):
        self._frames = frames() - CompiledCall.frames

    def any(self, module):
        """Whether it has, in `module`'s children or anywhere in this process."""
        if _compiler is None:
            return False
        if frames() - CompiledCall.frames != self._frames:
            return True
        stack = [module]
        while stack:  # as compiled_modules(), for every forward
            child = stack.pop()
            call = compiled_call(child)
            if call is None:
                stack.extend(one for one in child._modules.values() if one is not None)
            elif not isinstance(call[1], CompiledCall):
                return True
        return False
