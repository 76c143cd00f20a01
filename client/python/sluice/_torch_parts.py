"""`Parts`: runs the user's own optimizer for some of its parameters at a time.

optimizer.step() only notes the hyper-parameters. The update of each parameter follows later, with
the noted ones, whatever a schedule has set since. `_torch_overlap` decides when; `_torch_early`
uses functions of this module too.
"""

import contextlib
import inspect
import types

import torch
from torch.optim import optimizer as optimizers

from sluice._torch_dynamo import is_tracing, unseen

# Their step treats each parameter by itself, so that it can be run in parts.
_SEPARABLE = tuple(getattr(torch.optim, name) for name in (
    "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop") if hasattr(torch.optim, name))


# Frameworks' wrappers, whose step() does nothing to parameters but call that of `.optimizer`.
_WRAPPERS = {"accelerate.optimizer.AcceleratedOptimizer",
             "lightning.fabric.wrappers._FabricOptimizer",
             "lightning_fabric.wrappers._FabricOptimizer",
             "lightning.pytorch.core.optimizer.LightningOptimizer",
             "pytorch_lightning.core.optimizer.LightningOptimizer"}


def unwrapped(optimizer):
    """The optimizer inside a framework's wrapper."""
    while any(f"{base.__module__}.{base.__name__}" in _WRAPPERS
              for base in type(optimizer).__mro__):
        optimizer = optimizer.optimizer
    return optimizer


def why_not_in_parts(optimizer):
    """Why this optimizer's step cannot run in parts; None if it can. Exact types only, since a
    subclass may do anything."""
    kind = type(optimizer)
    if kind not in _SEPARABLE:
        return (f"{kind.__module__}.{kind.__name__} is not known to treat each parameter by itself "
                f"({', '.join(known.__name__ for known in _SEPARABLE)} do)")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "the optimizer is differentiable"
    if hasattr(optimizer.step, "_torchdynamo_orig_callable"):
        return "the optimizer's step is compiled"
    return None


def has_hooks(optimizer):
    """Whether hooks run around its step, as torch 2 allows. They would run around each part."""
    return any(getattr(optimizer, f"_optimizer_step_{when}_hooks", None)
               or getattr(optimizers, f"_global_optimizer_{when}_hooks", None)
               for when in ("pre", "post"))


@contextlib.contextmanager
def only(optimizer, groups):
    """A context in which the optimizer has these groups instead of its own."""
    before = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        yield
    finally:
        optimizer.param_groups = before


def noted(group):
    """The group's hyper-parameters of now, copied: a schedule may change even tensors in place."""
    return {key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items() if key != "params"}


def run_part(optimizer, groups):
    """Runs the optimizer's step for the parameters of these groups."""
    with only(optimizer, groups):
        # Not an inference's business, even when it is an evaluation that asks for it.
        with torch.inference_mode(False):
            type(optimizer).step(optimizer)


def called(closure):
    """The result of a closure given to step(). These optimizers call it first, and once."""
    with torch.enable_grad():
        return closure()


class Replaced:
    """Replaces methods of an optimizer object until stop()."""

    def __init__(self, optimizer, **functions):
        self._optimizer = optimizer
        self._methods = []  # (name, ours, what the object itself had there; None: its class's)
        for name, function in functions.items():
            # Schedulers leave marks on step(), and look for them again.
            function.__dict__.update(getattr(getattr(optimizer, name), "__dict__", {}))
            ours = types.MethodType(function, optimizer)
            self._methods.append((name, ours, vars(optimizer).get(name)))
            setattr(optimizer, name, ours)

    def stop(self):
        """Restores the methods, except one that has been wrapped since, as schedulers wrap
        step()."""
        for name, ours, before in self._methods:
            if vars(self._optimizer).get(name) is not ours:
                continue
            if before is None:
                delattr(self._optimizer, name)
            else:
                setattr(self._optimizer, name, before)
        self._methods = []


class Parts:
    """Replaces step(), zero_grad(), state_dict() and load_state_dict() of this optimizer object
    until stop().

    on_step  called as on_step(run, why_at_once) in the place of step(), returns what that returns.
             run() is the whole step as the user has called it; why_at_once: text that says why it
             cannot be done in parts, or None.
    on_zero  called with zero_grad()'s set_to_none before it; returns the id() of each parameter
             that is left out then.
    flush    called before the state is read or replaced.
    give_up  called when step() is being compiled; is to call stop().

    optimizer  that object.
    """

    def __init__(self, optimizer, on_step, on_zero, flush, give_up):
        self.optimizer = optimizer
        self._groups_then = None
        self._stopped = False
        self.original_step = optimizer.step
        original_zero_grad = optimizer.zero_grad
        zero_signature = inspect.signature(original_zero_grad)
        on_step, flush, give_up = map(unseen, (on_step, flush, give_up))

        def step(_optimizer, *arguments, **options):
            original = self.original_step
            if not self._stopped and is_tracing():
                give_up()
            if self._stopped:
                return original(*arguments, **options)
            why_at_once = self._why_at_once(arguments, options)
            if why_at_once is not None:
                return on_step(lambda: original(*arguments, **options), why_at_once)
            loss = None
            for closure in filter(None, (*arguments, *options.values())):
                loss = called(closure)
            on_step(original, None)
            return loss

        @unseen  # as the one that it replaces
        def zero_grad(_optimizer, *arguments, **options):
            call = zero_signature.bind(*arguments, **options)
            call.apply_defaults()
            done = () if self._stopped else on_zero(call.arguments["set_to_none"])
            with self._without(done) if done else contextlib.nullcontext():
                return original_zero_grad(*arguments, **options)

        def flushed(original):
            def method(_optimizer, *arguments, **options):
                if not self._stopped:
                    flush()
                return original(*arguments, **options)
            return method

        self._replaced = Replaced(optimizer, step=step, zero_grad=zero_grad,
                                  state_dict=flushed(optimizer.state_dict),
                                  load_state_dict=flushed(optimizer.load_state_dict))

    def _why_at_once(self, arguments, options):
        others = [name for name, value in options.items()
                  if name != "closure" and value is not None]
        if others or len(arguments) > 1:
            return f"optimizer.step() was given {', '.join(others) or 'more than a closure'}"
        if has_hooks(self.optimizer):
            return "the optimizer has hooks around its step"
        return None

    @property
    def due(self):
        """Whether a step was noted and is not done() yet."""
        return self._groups_then is not None

    def group_numbers(self):
        """(parameter, number of its group) of all parameters."""
        for number, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                yield parameter, number

    def _without(self, parameters):
        """A context in which the optimizer lacks the parameters with these id()s."""
        return only(self.optimizer, [
            dict(group, params=[p for p in group["params"] if id(p) not in parameters])
            for group in self.optimizer.param_groups])

    def note(self, postponed):
        """Runs step() for all parameters but those whose id() is in `postponed`; the update of
        these is due from now on."""
        with self._without(postponed):
            self.original_step()  # also without any parameter: schedulers count the calls
        self._groups_then = [noted(group) for group in self.optimizer.param_groups]

    def run(self, parameters):
        """Runs the due update of some parameters, {number of a group: its parameters}."""
        run_part(self.optimizer, [dict(self._groups_then[number], params=own)
                                  for number, own in parameters.items()])

    def done(self):
        """No update is due any more."""
        self._groups_then = None

    def stop(self):
        """Restores the optimizer's methods."""
        self._stopped = True
        self._replaced.stop()
