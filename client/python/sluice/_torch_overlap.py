"""`Overlap`: the next forward starts while gradients are still on their way. See sluice.torch.

A step's gradients in order of time. backward: the hook submits them and completes DDP's futures at
once, so backward does not wait; each .grad becomes an `AwaitedGradient`. optimizer.step(): notes
the hyper-parameters of all groups, and that these parameters are due. Next forward: just before a
layer's parameters are handed out (`_torch_watch`) this waits for their averages, which come into
DDP's buckets in place, and runs the user's optimizer on these parameters only, with the noted
hyper-parameters. When the forward ends nothing is left in flight.

The first step is done as by `Attachment`: its forward is measured, and DDP moves its buckets at the
start of the next one (with a static graph, one step later). Whatever looks at a gradient, a
parameter or the optimizer's state meanwhile makes this wait and catch up first, so the order of
things is as in a plain loop wherever one looks.
"""

import atexit
import contextlib
import logging
import sys
import weakref

import torch
from torch.autograd import Variable

from sluice import _exit_status, errors
from sluice._torch_attachment import Attachment
from sluice._torch_dynamo import Signs, is_tracing, unseen
from sluice._torch_parts import Parts, unwrapped, why_not_in_parts
from sluice._torch_step import Hook
from sluice._torch_watch import (Awaited, FirstForward, Watch, caller, is_opaque, make_plain,
                                 why_not_watched)

_log = logging.getLogger("sluice")
_COMPILED = ("torch.compile is at work since overlap() was called (compile the blocks of the model "
             "before, then they overlap)")


class Overlap(Attachment):
    """What overlap() returns: an Attachment that runs `optimizer` layer by layer in the forward.

    reason            why steps, or some of them, are done as by attach(); None when all overlap.
    overlapped_steps  steps whose update was left to the next forward.
    """

    def __init__(self, job, named, group, weight, optimizer, module, device=None):
        super().__init__(job, named, group, weight, device)
        self.overlapped_steps = 0
        self._awaited = {}  # tensor index -> Awaited, from backward until its average is here
        self._addresses = {}  # tensor index -> of its part of a bucket
        self._leaving_early = False  # this backward does not wait for the results
        self._backwards_to_wait = 0  # until DDP does not move its buckets any more
        self._first = None  # FirstForward, until the first backward
        self._early = ()  # tensor indices to bring up to date before a forward
        self._needed_first = ()
        self._late = set()  # those that this forward has brought up to date at its end only
        self._in_gap = False  # between optimizer.step() and the next forward
        self._parts = self._watch_list = None
        self._watch_handles = []  # of hooks on modules and parameters
        self._signs = Signs()
        optimizer = unwrapped(optimizer)
        self.reason = why_not_in_parts(optimizer) or why_not_watched(named) or (
            "the model is compiled as a whole" if is_opaque(module) else None)
        if self.reason is not None:
            _log.warning("sluice.torch.overlap: %s, so every step waits for all gradients, as with "
                         "sluice.torch.attach()", self.reason)
            return
        self._parts = Parts(optimizer, self._step, self.flush,
                            lambda: self._give_up("optimizer.step() is compiled"))
        self._watch_modules(module)
        this = weakref.ref(self)
        self._at_exit = lambda: this() is not None and this()._exiting()
        atexit.register(self._at_exit)  # before the job is left: exit functions run last to first

    # ---- the forward ----

    def _watch_modules(self, module):
        self._watch_list = Watch(module, self._indices, unseen(self._need), self._enter,
                                 self._unmeasured)
        self._early = tuple(self._watch_list.early)
        self._first = FirstForward(self._indices, self._watch_list)
        this = weakref.ref(module)  # a copy of the model is not watched

        def before(model, _inputs):
            if model is this():
                self._in_gap = False
                self._complete(self._early)

        def after(model, _inputs, _output):
            if model is this():
                self._forward_ended()

        for index, parameter in enumerate(self._parameters):
            arrives = unseen(self._has_gradient)
            self._watch_handles.append(parameter.register_hook(
                lambda _gradient, index=index: arrives(index)))
        self._watch_handles += [module.register_forward_pre_hook(Hook(unseen(before))),
                                module.register_forward_hook(Hook(unseen(after)))]

    def _watch_first_forward(self, module, is_traced):
        if self._parts is None:
            super()._watch_first_forward(module, is_traced)

    def _before_forward(self, ddp_model, is_traced):
        if self._parts is not None and (is_traced or self._signs.any(ddp_model.module)):
            self._give_up(_COMPILED)
        super()._before_forward(ddp_model, is_traced)
        if self._parts is None or self._ended or not torch.is_grad_enabled():
            return
        if self._awaited and not self._parts.due:
            self.flush()  # no step() since the last backward: this one adds to the gradients
        # DDP is about to broadcast buffers over its process group, whose errors name nobody. What
        # the forward needs first tells now if a rank is lost.
        self._complete(self._needed_first)
        if self._first is not None:  # the last forward before the first backward counts
            self._order = self._first = FirstForward(self._indices, self._watch_list)
            self._first.watch_next(ddp_model.module)

    def _forward_ended(self):
        if torch.is_grad_enabled():
            self._late = {i for i, entry in self._awaited.items() if entry.group is not None}
        self.flush()

    def _use_measurement(self, first):
        self._early = tuple(first.early)
        self._needed_first = self._early or tuple(first.order)[:1]
        for owner, indices in first.by_module.items():
            def before(_owner, _inputs, indices=tuple(indices)):
                self._complete(indices)
            self._watch_handles.append(owner.register_forward_pre_hook(Hook(unseen(before))))

    def _unmeasured(self):
        return self._first.paused() if self._is_measuring() else contextlib.nullcontext()

    def _is_measuring(self):
        return self._first is not None and self._first.running

    def _enter(self, indices):
        """A compiled module that has these is about to run."""
        if is_tracing():
            return  # it is part of something bigger: _before_forward gives up
        for index in indices:
            self._need(self._parameters[index])

    def _need(self, parameter):
        """A module hands out `parameter`."""
        is_measuring = self._is_measuring()
        if not (self._awaited or is_measuring or self._late):
            return
        index = self._indices.get(parameter)
        if index is None:
            return
        if is_measuring:
            self._first.announce(index)
        self._late.discard(index)
        if index in self._awaited:
            self._complete(self._watch_list.units[index])

    def parameter_is_used(self, parameter):
        """Called for an AwaitedParameter that somebody uses without looking it up in a module."""
        if self._in_gap:
            self._explain(f"{caller(self._parts.optimizer)} uses parameters between "
                          "optimizer.step() and the next forward")
        self._need(parameter)

    def _has_gradient(self, index):
        """In a backward, before this parameter's gradient is added to .grad: so the forward has
        used it."""
        if index in self._awaited:  # a second backward of one forward: no sum may land there now
            self.flush()
        if index in self._late:
            raise errors.InvalidArgument(
                f"the forward has used parameter '{self.job.tensors[index].name}' before its last "
                "step was applied to it: it was not looked up in its module, and in the first "
                "forward it was not used this way. Call flush() of what overlap() has returned "
                "before each such forward, or use sluice.torch.attach()")

    # ---- backward ----

    def _begin_backward(self):
        if self._first is not None:
            self._use_measurement(self._first)
            self._first = None
            self._backwards_to_wait = 2 if getattr(self._model(), "static_graph", False) else 1
        super()._begin_backward()
        self._leaving_early = self._parts is not None and self._backwards_to_wait == 0
        self._backwards_to_wait = max(0, self._backwards_to_wait - 1)
        if self._awaited:
            raise errors.InvalidArgument(
                "a second backward before optimizer.step() without a forward of the model in "
                "between: accumulate gradients with one forward for each backward")

    def _leaves(self, bucket):
        if self._leaving_early:
            for index, address in zip(bucket.indices, bucket.addresses):
                self._awaited[index] = Awaited(index, self)
                self._addresses[index] = address

    def _end_backward(self):
        if not self._leaving_early:
            super()._end_backward()
            return
        # The job writes into these until the next step, whatever becomes of the model.
        self.job.keep("buckets", [buffer for _, buffer in self._pending])
        self.job.check()
        Variable._execution_engine.queue_callback(self._cover)  # after DDP's own end of backward

    @unseen
    def _cover(self):
        for index, entry in self._awaited.items():
            parameter = self._parameters[index]
            gradient = parameter.grad
            # Another address: no rank used the parameter, and DDP has left its gradient alone.
            if gradient is not None and gradient.data_ptr() == self._addresses[index]:
                parameter.grad = entry.cover(gradient)

    def gradient_is_read(self, is_dropped):
        """Called by an AwaitedGradient that somebody looks at, or zeroes in a step that is
        skipped."""
        if not self._parts.due and not is_dropped:
            self._explain(f"{caller(self._parts.optimizer)} reads gradients between backward() "
                          "and optimizer.step()")
        self.flush()

    def _explain(self, reason):
        if self.reason is None:
            self.reason = reason
            _log.warning("sluice.torch.overlap: %s, so such a step waits for all gradients, as "
                         "with sluice.torch.attach()", reason)

    def _give_up(self, reason):
        """From now on every step is done as with attach()."""
        if self._parts is None:
            return
        self.flush()
        self.reason = reason
        _log.warning("sluice.torch.overlap: %s, so from now on every step waits for all gradients, "
                     "as with sluice.torch.attach()", reason)
        self._stop_overlapping()
        self._parts = self._first = None

    # ---- the optimizer ----

    def _step(self, run, why_at_once):
        if self._parts.due:
            self.flush()  # a second step() on the same gradients
        if why_at_once is not None:  # also when its closure has yet to make the gradients
            self._explain(why_at_once)
            self.flush()
        postponed = {}
        for parameter, group in self._parts.group_numbers():
            entry = self._awaited.get(self._indices.get(parameter))
            if (entry is not None and entry.shown is not None
                    and parameter.grad is entry.shown):
                postponed[parameter] = (entry, group)
        if not postponed:
            self.flush()
            return run()
        self._parts.note(postponed)
        for parameter, (entry, group) in postponed.items():
            entry.postpone(parameter, group)
        self._in_gap = True
        self.overlapped_steps += 1
        return None

    def _is_due(self, index):
        entry = self._awaited.get(index)
        return entry is not None and entry.group is not None

    def _wait(self, index):
        with self._failing():
            self.job.wait(index)

    def _hand_over(self, indices):
        awaited = [self._awaited[index] for index in indices]
        parameters = [self._parameters[index] for index in indices]
        with self._failing():
            for entry, parameter in zip(awaited, parameters):
                entry.take_up(parameter, self.job.tensors[entry.index].name)
        groups, shown = {}, [parameter.grad for parameter in parameters]
        for entry, parameter in zip(awaited, parameters):
            parameter.grad = entry.values
            groups.setdefault(entry.group, []).append(parameter)
        try:
            self._parts.run(groups)
            for index in indices:
                self.job.mark_applied(index)
        finally:
            for entry, gradient in zip(awaited, shown):
                self._give_back(entry, gradient)
            if not self._awaited:
                self._parts.done()

    def _give_back(self, entry, shown):
        """The gradient is the user's: the average, zeros, or what was put there meanwhile."""
        if entry.zeroed:
            entry.values.zero_()
        self._parameters[entry.index].grad = entry.values if shown is entry.shown else shown
        del self._awaited[entry.index]
        entry.owner = entry.shown = None

    # ---- for the user ----

    def flush(self):
        """Waits for all gradients in flight and applies the step that is due, so that parameters,
        gradients and the optimizer's state are as after the last line of a plain loop.

        Happens by itself for state_dict() of model and optimizer, when a parameter is used (through
        a module, also in an evaluation, or through a reference), when .grad is read, and at the
        end. Call it before using other tensors over a parameter's memory (p.data, p.detach()) that
        were made earlier. Blocks;
        raises the job's error."""
        self._complete(tuple(self._awaited))
        for entry in list(self._awaited.values()):  # no step was due for these
            self._wait(entry.index)
            self._give_back(entry, self._parameters[entry.index].grad)
        if self._parts is not None:
            self._parts.done()

    def detach(self):
        """As Attachment.detach(), after a flush(), whose error is raised once the job is left: a
        failed job's step stays applied in part."""
        super().detach()

    def _end(self, leave):
        error = None
        if not self._ended:
            error = self._flush_at_the_end()
        super()._end(leave)
        if error is not None:
            raise error

    def _exiting(self):
        if getattr(sys, "last_value", None) is None:  # else the other ranks shall hear of it now
            error = self._flush_at_the_end()
            if error is not None:
                _exit_status.fail(error)

    def _flush_at_the_end(self):
        """The error with which that ends, unless it was raised before."""
        is_known = self._failure is not None
        try:
            self.flush()
        except errors.Forked:
            pass  # the parent has it
        except errors.Error as error:
            text = (f"the last step is missing in {len(self._awaited)} of {len(self._parameters)} "
                    f"parameters: {error}")
            if not is_known:
                return type(error)(text)
            _log.warning("sluice.torch.overlap: %s", text)
        return None

    def _stop_overlapping(self):
        """Gradients that are still awaited are lost."""
        for entry in self._awaited.values():
            entry.owner = entry.shown = None
            make_plain(self._parameters[entry.index])
            self._parameters[entry.index].grad = None
        self._awaited, self._late = {}, set()
        if self._parts is not None:
            self._parts.done()
            self._parts.stop()
            for handle in self._watch_handles:
                handle.remove()
            self._watch_list.remove()
            atexit.unregister(self._at_exit)

    def _release(self):
        self._stop_overlapping()
        super()._release()
