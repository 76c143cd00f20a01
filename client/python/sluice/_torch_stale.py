"""`StaleSynchronous`: trains a plain module whose parameters the appliance keeps. See
sluice.torch.

A layer is a module with parameters of its own, in the order of modules(). step() starts a pull of
each layer; the module's next forward waits for that pull and uses the values. optimizer.step()
pushes the changes of the parameters, or the gradients if the appliance runs the optimizer. Until
step() the loop may change gradients. A loop that changes none may push during backward:
`_torch_early`.
"""

import contextlib
import time
import weakref

import torch
from torch.nn.parallel import DistributedDataParallel

from sluice import errors
from sluice._settings import is_job_named
from sluice._torch_dynamo import compiled_modules
from sluice._torch_early import EarlyPushes
from sluice._torch_layers import average, layers_of
from sluice._torch_models import refuse_sparse
from sluice._torch_parts import Replaced, called
from sluice._torch_step import StepEngine
from sluice.store import Store

_MODERN = int(torch.__version__.split(".", maxsplit=1)[0]) >= 2
# Options of torch's optimizers with a value for which the store has none.
_ABSENT = {"maximize": False, "amsgrad": False, "decoupled_weight_decay": False}


def _bad(text):
    return errors.InvalidArgument("StaleSynchronous: " + text)


def update_of(optimizer):
    """Keywords of Store for an optimizer that the appliance is to run."""
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adam):
        raise _bad(f"the appliance runs SGD and Adam, not {kind.__name__}: leave optimizer_at out, "
                   "then each worker runs its own")
    names = (("momentum", "dampening", "weight_decay", "nesterov") if kind is torch.optim.SGD else
             ("betas", "eps", "weight_decay"))
    first = optimizer.param_groups[0]
    for group in optimizer.param_groups:
        for name, value in _ABSENT.items():
            if group.get(name, value) != value:
                raise _bad(f"the appliance's {kind.__name__} has no {name}={group[name]!r}: leave "
                           "optimizer_at out, then each worker runs its own")
        for name in names:
            if group[name] != first[name]:
                raise _bad(f"parameter groups differ in {name} ({first[name]!r}, {group[name]!r}), "
                           "of which the appliance has one for all; only lr may differ")
    update = {name: first[name] for name in names}
    if kind is torch.optim.Adam:
        return dict(update, update="adam", adam_lerp=_MODERN)
    return dict(update, update="sgd")


class StaleSynchronous(StepEngine):
    """Trains `model` with parameters that the appliance keeps, and a bound on their staleness.

    model         a plain module (no DistributedDataParallel, no process group), float32 on the CPU.
    optimizer     of its parameters; the loop calls step() and zero_grad() as usual.
    address       default SLUICE_ADDRESS.
    bound         B: iteration t reads parameters that hold all workers' iterations up to t - 1 - B,
                  and all of this worker's (stale synchronous parallel; Ho et al., 2013). 0:
                  synchronous training; None: asynchronous.
    optimizer_at  'worker' (default): each worker runs the optimizer with its own gradient and
                  pushes the changes, which count 1/n. 'store': workers push gradients, and the
                  appliance runs SGD or Adam on their mean; with a bound above 0 SGD with momentum
                  only, on each gradient / n.
    push_at       'step' (default): all layers leave at step(). 'backward': each layer leaves when
                  backward has passed it, for loops that change neither gradients nor rates between
                  the one backward and step(). The first step is watched: if the loop changes one,
                  pushes stay at step(), and one line of the log says why. A change in a later step
                  raises InvalidArgument. With optimizer_at='worker' parameters change during
                  backward, layer by layer.
    keep          True: parameters outlive their workers in the appliance. False: a run begins anew.
                  Default: whether a job name is given (`job`, SLUICE_JOB). 'anew', 'take': as for
                  sluice.Store.
    options       rank, world_size, job, secret, run_id, reproducible, requests, ... as for
                  sluice.Store.

    Rank 0's parameters are the initial ones; a worker that joins later gets the current ones.
    Buffers and frozen parameters stay each worker's own: see average_buffers(). Between step() and
    the next forward the parameters are the newest that this worker has: see flush() and
    synchronise().

    Blocks until all ranks have joined. Raises InvalidArgument with the name of an unsupported
    parameter or option, and all that sluice.Store raises. Later errors come out of the forward and
    of step(). Nobody waits for a lost worker. Use from one thread.

    iterations    done since the job began; a worker that joins later begins with that of the
                  others.
    reason        why pushes leave at step() though push_at is 'backward'; else None.
    early_pushes  number of layers that were pushed during backwards so far.
    suspended_s   seconds that forwards have waited for other workers.
    staleness     {iterations by which a layer's copy was behind this worker's own: count of such
                  reads}; at most the bound.
    """

    def __init__(self, model, optimizer, address=None, *, bound=0, optimizer_at="worker",
                 push_at="step", keep=None, **options):
        if isinstance(model, DistributedDataParallel):
            raise _bad("give the plain module, not a DistributedDataParallel: the store is in its "
                       "place")
        if compiled_modules(model):
            raise _bad("the model is compiled, and compiled code does not wait for parameters: "
                       "give it before torch.compile, and do not compile it")
        if optimizer_at not in ("worker", "store"):
            raise _bad(f"optimizer_at={optimizer_at!r}: 'worker' or 'store'")
        if push_at not in ("step", "backward"):
            raise _bad(f"push_at={push_at!r}: 'step' or 'backward'")
        super().__init__()
        self.model, self.optimizer = model, optimizer
        self._at_store = optimizer_at == "store"
        self._layers, self._users = layers_of(model)
        self._check_parameters()
        update = update_of(optimizer) if self._at_store else {}
        self._update = update
        self.suspended_s, self.staleness = 0.0, {}
        for layer in self._layers:
            layer.make_memory()
        self.store = Store([[(name, parameter.numel())
                             for name, parameter in zip(layer.names, layer.parameters)]
                            for layer in self._layers], address, bound=bound,
                           keep=is_job_named(options.get("job")) if keep is None else keep,
                           **update, **options)
        try:
            self._begin()
        except BaseException:
            self.store.close()
            raise
        self._early = None
        if push_at == "backward":
            this = weakref.ref(self)
            self._early = EarlyPushes(optimizer, self._layers, self._at_store,
                                      lambda layer: this()._push_early(layer))
        self._watch()

    def _check_parameters(self):
        if not self._layers:
            raise _bad("the model has no parameters to train")
        known = set()
        for layer in self._layers:
            for name, parameter in zip(layer.names, layer.parameters):
                known.add(id(parameter))
                if parameter.device.type != "cpu":
                    raise _bad(f"parameter '{name}' is on {parameter.device}: a store's workers "
                               "train on the CPU")
                if parameter.dtype != torch.float32:
                    raise _bad(f"parameter '{name}' has type "
                               f"{str(parameter.dtype).replace('torch.', '')}; a store keeps "
                               "float32: convert it, for example with model.float()")
        refuse_sparse(self.model, "StaleSynchronous: ")
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    raise _bad("the optimizer has a parameter that is not the model's")

    def _begin(self):
        if self.store.rank == 0:
            for layer in self._layers:
                with torch.no_grad():
                    for parameter, copy in zip(layer.parameters, layer.copies):
                        copy.copy_(parameter)
                self.store.initialise(layer.index, layer.copies)
            for layer in self._layers:
                self.store.wait_push(layer.index)
        for layer in self._layers:
            self._pull(layer)

    def _watch(self):
        this = weakref.ref(self)

        def before(module, _inputs):
            stale = this()
            if stale is not None:
                stale._before_forward(module)

        for module in dict.fromkeys((self.model, *self._users)):
            self._on(module.register_forward_pre_hook, before)
        original = self.optimizer.step

        def step(_optimizer, closure=None):
            stale = this()
            return original(closure) if stale is None else stale._step(original, closure)

        self._replaced = Replaced(self.optimizer, step=step)

    # ---- the loop's parts ----

    def _pull(self, layer):
        self.store.pull(layer.index, layer.copies)
        layer.pulling = True

    def _is_due(self, layer):
        return layer.pulling

    def _wait(self, layers):
        begun = time.perf_counter()
        for layer in layers:
            self.store.wait_pull(layer.index)
        self.suspended_s += time.perf_counter() - begun
        return layers

    def _hand_over(self, layers):
        for layer in layers:
            layer.pulling = False
            layer.take_copies()
            clocks = self.store.clocks(layer.index)
            behind = clocks.pushed - clocks.held
            self.staleness[behind] = self.staleness.get(behind, 0) + 1

    def _before_forward(self, module):
        if self.store is None:
            return
        if module is self.model and not module.training:
            self.flush()  # an evaluation may take other ways than modules' forwards
        for index in self._users.get(module, ()):
            self._complete([self._layers[index]])

    def _step(self, original, closure):
        if self.store is None:
            return original(closure)
        if compiled_modules(self.model):
            raise _bad("the model was compiled meanwhile, and compiled code does not wait for "
                       "parameters: do not compile it")
        loss = None if closure is None else called(closure)
        self._check_forward()
        if self._early is not None:
            self._early.begin_step()
        if self._at_store:
            self._step_at_store(original)
        else:
            with contextlib.nullcontext() if self._early is None else self._early.rest():
                original()
        for layer in reversed(self._layers):
            if not layer.pushed:
                self._push(layer)
        if self._early is not None:
            self._early.end_step()
        return loss

    def _push(self, layer):
        rate = self._rate(layer) if self._at_store else 0.0  # of no meaning where changes travel
        self.store.wait_push(layer.index)
        with torch.no_grad():
            self._note(layer)
        self.store.push(layer.index, layer.deltas, rate)
        self._pull(layer)

    def _push_early(self, layer):
        if self._at_store:
            self._check_update()
        else:
            self._early.update(layer)
        self._push(layer)

    # What was computed from must be what the bound allows.
    def _check_forward(self):
        for layer in self._layers:
            if layer.pushed:
                continue  # its forward came before its backward
            if layer.pulling and any(parameter.grad is not None and bool(parameter.grad.any())
                                     for parameter in layer.parameters):
                raise _bad(f"module '{layer.name}' has gradients, but its forward was not called "
                           "since the last step(): something uses its parameters past it, so call "
                           "flush() before such a forward; or step() came twice after one "
                           "backward()")
            self._complete([layer])

    def _check_update(self):
        if update_of(self.optimizer) != self._update:
            raise _bad("the optimizer's options have changed, of which the appliance has those of "
                       "the join; only lr may change")

    # Hooks and counters of step() see one, and no parameter changes here.
    def _step_at_store(self, original):
        self._check_update()
        parameters = [parameter for layer in self._layers for parameter in layer.parameters]
        gradients = [parameter.grad for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.grad = None
            original()
        finally:
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient

    def _note(self, layer):
        for parameter, copy, delta in zip(layer.parameters, layer.copies, layer.deltas):
            if not self._at_store:
                torch.sub(parameter, copy, out=delta)
            elif parameter.grad is None:
                delta.zero_()
            else:
                delta.copy_(parameter.grad)

    def _rate(self, layer):
        groups = self.optimizer.param_groups
        parts = layer.parts_in(groups)
        found = {float(groups[number]["lr"]) for number in parts}
        if sum(map(len, parts.values())) != len(layer.parameters):
            found.add(0.0)  # of those that the optimizer does not have
        if len(found) != 1:
            raise _bad(f"parameters of module '{layer.name}' have the learning rates "
                       f"{sorted(found)}; a layer is updated with one")
        return found.pop()

    # ---- for the user ----

    @property
    def iterations(self):
        return self.store.clocks(0).pushed

    @property
    def reason(self):
        return None if self._early is None else self._early.reason

    @property
    def early_pushes(self):
        return 0 if self._early is None else self._early.count

    def flush(self):
        """Waits for all pulls: the parameters are then those of the next iteration. Blocks."""
        for layer in self._layers:
            self._complete([layer])

    def synchronise(self, timeout=None):
        """Waits until all ranks have pushed, and pulls: parameters are then equal. All that
        still train call it."""
        self.flush()
        for layer in self._layers:
            self.store.wait_push(layer.index)
        self.store.barrier(timeout)
        for layer in self._layers:
            self._pull(layer)
        self.flush()
        self.store.barrier(timeout)  # nobody pushes before everybody has read

    def state_dict(self):
        """The model's state_dict() after flush(). For the newest of all ranks they all call
        synchronise() first."""
        self.flush()
        return self.model.state_dict()

    def save(self, path):
        """Writes the parameters, after flush(), as sluice.Store.save() does."""
        self.flush()
        return self.store.write(path, {
            name: parameter.detach().contiguous().numpy() for layer in self._layers
            for name, parameter in zip(layer.names, layer.parameters)})

    def average_buffers(self, timeout=None):
        """Replaces floating buffers by their mean over the ranks, others by the first rank's.
        All ranks that still train call it; blocks until they have. A rank that is lost meanwhile
        counts on all or on none.
        """
        average(self.store, list(self.model.buffers()), timeout)

    def clocks(self):
        """{name of a module: sluice.Clocks of its layer}."""
        return {layer.name: self.store.clocks(layer.index) for layer in self._layers}

    def stats(self):
        return self.store.stats()

    def finish(self):
        """Leaves the job in order, after flush() and all pushes. Model and optimizer are plain
        objects again."""
        if self.store is None:
            return
        self.flush()
        for layer in self._layers:
            self.store.wait_push(layer.index)
        self.store.leave()
        self._detach()

    def _detach(self):
        self._ended = True
        self._release()
        store, self.store = self.store, None
        store.close()

    def _leave_in_order(self):
        self.finish()

    def _abandon(self, kind, value, trace):
        self.store.__exit__(kind, value, trace)
        self._detach()

    def _release(self):
        super()._release()
        self._replaced.stop()  # a scheduler may have wrapped it: then it calls the original
        if self._early is not None:
            self._early.release()
