"""`EarlyPushes`: pushes a layer during backward, once its gradients are complete. For
`_torch_stale`.

A push cannot be taken back, and a loop may clip, scale or add to a gradient until step(). So pushes
of the first step leave at step(), while its gradients are watched. If the loop changes one, all
later pushes leave at step() too, and one line of the log says why. Otherwise layers leave early
from the second step on, and a step that changes a gradient is an error. A complete gradient is
compared with a copy bit by bit, because version counters do not count changes through .data.
"""

import logging
import weakref

import torch

from sluice import errors
from sluice._torch_dynamo import unseen
from sluice._torch_parts import has_hooks, noted, only, run_part, why_not_in_parts

_log = logging.getLogger("sluice")
_REMEDY = "with push_at='backward' it has left already; leave push_at out for such a loop"


def _same(gradient, copy):
    return gradient is not None and torch.equal(gradient.view(torch.int32), copy.view(torch.int32))


class EarlyPushes:
    """Hooks on the gradients of `layers`.

    push(layer)   called during backward, when all gradients of the layer are complete.
    reason        why pushes leave at step(); None while they leave during backward.
    count         layers that were pushed during a backward so far.
    """

    def __init__(self, optimizer, layers, at_store, push):
        self._optimizer, self._layers, self._push = optimizer, layers, push
        self._noted = None  # hyper-parameters of the groups as the first push of a step found them
        self._leaves = False
        self._hooks = []
        self.count = 0
        self.reason = None if at_store else why_not_in_parts(optimizer)
        if self.reason is not None:
            self._stay()
            return
        this = weakref.ref(self)
        for layer in layers:
            # What is pushed is the gradient, or else there is no other memory for it.
            layer.gradients = layer.deltas if at_store else [
                torch.empty_like(delta) for delta in layer.deltas]
            layer.arrivals = [0] * len(layer.parameters)
            for index, parameter in enumerate(layer.parameters):
                def arrived(*_, layer=layer, index=index):
                    early = this()
                    if early is not None:
                        early._arrived(layer, index)
                with torch.enable_grad():
                    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
                # The node that adds to .grad lives as long as somebody has it.
                self._hooks.append((node, node.register_hook(unseen(arrived))))

    def _stay(self):
        _log.warning("sluice.torch.StaleSynchronous: %s, so all pushes leave at step()",
                     self.reason)
        self.release()

    def release(self):
        for _, handle in self._hooks:
            handle.remove()
        self._hooks = []

    # ---- backward ----

    @torch.no_grad()
    def _arrived(self, layer, index):
        layer.arrivals[index] += 1
        if layer.arrivals[index] != 1:
            if self._leaves:
                raise errors.InvalidArgument(
                    f"StaleSynchronous: a second backward before step() adds to the gradient of "
                    f"'{layer.names[index]}': {_REMEDY}")
            return
        if layer.pulling:
            layer.arrivals[index] = 0  # step() says what is wrong
            return
        layer.gradients[index].copy_(layer.parameters[index].grad)
        if self._leaves and all(layer.arrivals):
            if self._noted is None:
                self._noted = [noted(group) for group in self._optimizer.param_groups]
            layer.pushed = True
            self.count += 1
            self._push(layer)

    def update(self, layer):
        """Runs the optimizer's step for the layer's parameters."""
        groups = self._optimizer.param_groups
        run_part(self._optimizer, [dict(groups[number], params=part)
                                   for number, part in layer.parts_in(groups).items()])

    # ---- step() ----

    def begin_step(self):
        """Raises InvalidArgument for a change that came after a push. In the first step it
        decides whether later layers leave early."""
        if self._leaves:
            self._check()
        elif self.reason is None and any(any(layer.arrivals) for layer in self._layers):
            self.reason = self._why_not()
            if self.reason is not None:
                self._stay()
            self._leaves = self.reason is None

    def end_step(self):
        self._noted = None
        for layer in self._layers:
            layer.pushed = False
            layer.arrivals = [0] * len(layer.parameters)

    def rest(self):
        """A context in which the optimizer has only the parameters that were not pushed."""
        done = {parameter for layer in self._layers if layer.pushed
                for parameter in layer.parameters}
        return only(self._optimizer, [
            dict(group, params=[p for p in group["params"] if p not in done])
            for group in self._optimizer.param_groups])

    def _changed(self):
        """Names of parameters whose gradients have changed since they were complete."""
        return [name for layer in self._layers
                for name, parameter, arrivals, copy in zip(
                    layer.names, layer.parameters, layer.arrivals, layer.gradients)
                if arrivals and not _same(parameter.grad, copy)]

    def _why_not(self):
        if any(arrivals > 1 for layer in self._layers for arrivals in layer.arrivals):
            return "more than one backward adds to a gradient before step()"
        changed = self._changed()
        if changed:
            return (f"between backward and step() the gradient of '{changed[0]}' is changed "
                    "(clipping, a GradScaler)")
        if has_hooks(self._optimizer):
            return "the optimizer has hooks around its step"
        return None

    def _check(self):
        changed = self._changed()
        if changed:
            raise errors.InvalidArgument(
                f"StaleSynchronous: the gradient of '{changed[0]}' was changed between backward "
                f"and step(): {_REMEDY}")
        if self._noted is not None and self._noted != [
                noted(group) for group in self._optimizer.param_groups]:
            raise errors.InvalidArgument(
                "StaleSynchronous: the optimizer's options were changed between backward and "
                f"step(): {_REMEDY}")
