"""`Overlap`: the next forward starts while gradients are still on their way. See sluice.torch.

A step in order of time. During backward the hook submits gradients and completes DDP's futures at
once, so backward does not wait; each .grad becomes an `AwaitedGradient`. optimizer.step() notes the
hyper-parameters of all groups, and that the parameters have an update due. In the next forward,
just before a layer's parameters are read (`_torch_watch`), Overlap waits for their averages, which
arrive in DDP's buckets. Then it runs the user's optimizer with the noted hyper-parameters on these
parameters, and on those of the next layers whose averages have arrived too. At the end of the
forward no gradient is on its way.

The first step is the one of `Attachment`: its forward is measured, and DDP moves its buckets at the
start of the next forward (with a static graph, one step later). A use of a gradient, a parameter or
the optimizer's state in between first waits and catches up. So each use sees what it would see in a
plain loop.
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
from sluice._torch_awaited import InFlight
from sluice._torch_dynamo import Signs, is_tracing, unseen
from sluice._torch_parts import Parts, unwrapped, why_not_in_parts
from sluice._torch_step import Hook
from sluice._torch_watch import FirstForward, Watch, caller, is_opaque, why_not_watched

_log = logging.getLogger("sluice")
_LEAST_AHEAD, _MOST_AHEAD = 8, 1024  # tensors behind those that are needed that are asked for
_COMPILED = ("torch.compile is at work since overlap() was called (compile the blocks of the model "
             "before, then they overlap)")


class Overlap(Attachment):
    """The Attachment that overlap() returns. It runs `optimizer` layer by layer during the
    forward.

    reason            why some or all steps are done as by attach(); None if all overlap.
    overlapped_steps  steps whose update was done during the next forward.
    """

    def __init__(self, job, named, group, weight, optimizer, module, device=None):
        super().__init__(job, named, group, weight, device)
        self.overlapped_steps = 0
        self._awaited = InFlight(self._parameters)  # from backward until the average is here
        self._order_of_use = []  # tensor indices, as the first forward needed them
        self._places = {}  # tensor index -> place in it
        self._ahead = set()  # brought up to date, and not needed yet
        self._window = _LEAST_AHEAD  # tensors behind those that are needed that are asked for
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
        self._parts = Parts(optimizer, self._step, self._awaited.zero, self.flush,
                            lambda: self._give_up("optimizer.step() is compiled"))
        self._watch_modules(module)
        this = weakref.ref(self)
        self._at_exit = lambda: this() is not None and this()._exiting()
        atexit.register(self._at_exit)  # before the job is left: exit functions run last to first

    # ---- the forward ----

    def _watch_modules(self, module):
        self._need_now = unseen(self._need_now)
        self._watch_list = Watch(module, self._indices, self._need, self._enter,
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

        arrives = unseen(self._has_gradient)
        for index, parameter in enumerate(self._parameters):
            def arrived(_gradient, index=index):
                if index in self._awaited or index in self._late:
                    arrives(index)
            self._watch_handles.append(parameter.register_hook(arrived))
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
            self._late |= self._ahead
        self.flush()

    def _use_measurement(self, first):
        self._early = tuple(first.early)
        self._needed_first = self._early or tuple(first.order)[:1]
        self._order_of_use = first.finish(len(self._parameters))
        self._places = {index: place for place, index in enumerate(self._order_of_use)}
        for owner, indices in first.by_module.items():
            def before(_owner, _inputs, indices=tuple(indices)):
                self._complete(indices)
            self._watch_handles.append(owner.register_forward_pre_hook(Hook(unseen(before))))

    def _unmeasured(self):
        return self._first.paused() if self._is_measuring() else contextlib.nullcontext()

    def _is_measuring(self):
        return self._first is not None and self._first.running

    def _enter(self, indices):
        """Called before a compiled module with these parameters runs."""
        if is_tracing():
            return  # it is part of something bigger: _before_forward gives up
        for index in indices:
            self._need(self._parameters[index])

    def _need(self, parameter):
        """Called before a module returns `parameter`."""
        if not (self._awaited or self._ahead or self._late or self._first is not None):
            return
        index = self._numbers.get(id(parameter))
        if index is None:
            return
        if self._late:
            self._late.discard(index)
        if self._ahead:
            self._ahead.discard(index)
        if index in self._awaited or self._first is not None:
            self._need_now(index)

    def _need_now(self, index):
        if self._is_measuring():
            self._first.announce(index)
        if index in self._awaited:
            self._complete(self._watch_list.units[index])

    def parameter_is_used(self, parameter):
        """Called when an AwaitedParameter is used without a look-up in a module."""
        if self._in_gap:
            self._explain(f"{caller(self._parts.optimizer)} uses parameters between "
                          "optimizer.step() and the next forward")
        self._need(parameter)

    def _has_gradient(self, index):
        """Called during backward, before this parameter's gradient is added to .grad: the
        forward has used the parameter."""
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
            self._awaited.submitted(bucket, self)

    def _end_backward(self):
        if not self._leaving_early:
            super()._end_backward()
            return
        # The job writes into these until the next step, whatever becomes of the model.
        self.job.keep("buckets", [buffer for _, buffer in self._pending])
        self.job.check()
        # After DDP's own end of backward.
        Variable._execution_engine.queue_callback(unseen(self._awaited.cover))

    def gradient_is_read(self, is_dropped):
        """Called when an AwaitedGradient is read, or is zeroed in a step that is skipped."""
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
        """From now on every step is done as by attach()."""
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
        postponed = self._awaited.to_postpone(self._parts.group_numbers(), self._numbers)
        if not postponed:
            self.flush()
            return run()
        self._parts.note(postponed)
        for entry in postponed.values():
            entry.postpone(self._parameters[entry.index])
        self._in_gap = True
        self.overlapped_steps += 1
        return None

    def _is_due(self, index):
        entry = self._awaited.get(index)
        return entry is not None and entry.group is not None

    def _complete(self, units):
        self._ahead.difference_update(units)
        super()._complete(units)

    def _wait(self, due):
        ahead = self._due_after(due)
        with self._failing():
            count = self.job.wait_many(due + ahead, len(due))
        came = count - len(due)
        if ahead:
            self._window = min(max(2 * came, _LEAST_AHEAD), _MOST_AHEAD)
        self._ahead.update(ahead[:came])
        return (due + ahead)[:count]

    def _due_after(self, due):
        """The parameters that a forward needs soon after these. A call of the optimizer costs
        much, and each parameter in it little."""
        if len(due) == len(self._awaited):
            return []
        first, asked = self._places[due[-1]] + 1, set(due)
        return [index for index in self._order_of_use[first:first + self._window]
                if self._is_due(index) and index not in asked]

    def _hand_over(self, indices):
        awaited = [self._awaited[index] for index in indices]
        parameters = [self._parameters[index] for index in indices]
        with self._failing():
            for entry, parameter in zip(awaited, parameters):
                entry.take_up(parameter, self.job.tensors)
        groups, shown = {}, [parameter.grad for parameter in parameters]
        for entry, parameter in zip(awaited, parameters):
            parameter.grad = entry.values
            groups.setdefault(entry.group, []).append(parameter)
        try:
            self._parts.run(groups)
            if self.job.traced:
                for index in indices:
                    self.job.mark_applied(index)
        finally:
            for entry, parameter, gradient in zip(awaited, parameters, shown):
                if gradient is not entry.shown:
                    parameter.grad = gradient
                self._awaited.give_back(entry)
            if not self._awaited:
                self._parts.done()

    # ---- for the user ----

    def flush(self):
        """Waits for all gradients on their way and applies the update that is due. Then
        parameters, gradients and the optimizer's state are those after the last line of a plain
        loop.

        Overlap calls it for state_dict() of model and optimizer, for a use of a parameter through a
        module or a reference, for a read of .grad, and at the end. Call it before a use of another
        tensor over a parameter's memory (p.data, p.detach()) that was made earlier. Blocks until
        the results are here, or raises the job's error.
        """
        self._complete(tuple(self._awaited))
        if self._awaited:  # no step was due for these
            with self._failing():
                self.job.wait_many(list(self._awaited), len(self._awaited))
            for entry in list(self._awaited.values()):
                parameter = self._parameters[entry.index]
                if entry.shown is not None and parameter.grad is entry.shown:
                    parameter.grad = entry.values
                self._awaited.give_back(entry)
        self._ahead.clear()
        if self._parts is not None:
            self._parts.done()

    def detach(self):
        """Calls flush(), and leaves the job as Attachment.detach() does. An error of the flush
        is raised after that; parameters of a failed job may have a part of the step."""
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
        """The error with which the last flush ends, unless it was raised before."""
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
        """Drops gradients that are still on their way."""
        self._awaited.give_up()
        self._late, self._ahead = set(), set()
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
