"""`Store`: one worker of a job whose parameters the appliance keeps, layer by layer.

    layers = [[("weight", 1000), ("bias", 10)], [("head", 500)]]
    with sluice.Store(layers, "udp://10.77.0.1", bound=3, rank=0, world_size=4) as store:
        if store.rank == 0:
            for layer, values in enumerate(initial):
                store.initialise(layer, values)
        for layer, copy in enumerate(copies):
            store.pull(layer, copy)
        for iteration in range(1000):
            for layer in range(2):
                store.wait_pull(layer)              # then compute with copies[layer]
            for layer in (1, 0):
                store.wait_push(layer)
                store.push(layer, deltas[layer])
                store.pull(layer, copies[layer])

Iteration t, counted from 1, reads what holds everybody's iterations up to t - 1 - bound, and all of
this worker's own. Any thread may call any method at any time; blocking calls are as those of
sluice.Job. For a PyTorch model there is sluice.torch.StaleSynchronous.
"""

import ctypes
import logging
import numbers

from sluice import _abi, _memory, _policy, _store_file, errors
from sluice._member import Member
from sluice._options import Options
from sluice._values import Clocks, Tensor

_log = logging.getLogger("sluice")
_KEPT = {True: "keep", False: "end"}


class Store(Member):
    """Joins a job of kind store and waits until all ranks have joined.

    layers       for each layer a list of (name, element count): its float32 tensors. The layers
                 that are waited for first go first, until then in this order.
    address      as of sluice.Job.
    bound        staleness: 0, bulk-synchronous, to None, asynchronous.
    update       what workers push, and what the appliance makes of it. 'delta' (default):
                 differences of parameters, each divided by the number of members. 'sgd', 'adam':
                 gradients, of which the mean updates the parameters as torch.optim.SGD and Adam do;
                 with a bound above 0 'sgd' only, of each gradient / n at once.
    momentum, dampening, weight_decay, nesterov
                 of 'sgd'; weight_decay of 'adam' as well.
    betas, eps, adam_lerp
                 of 'adam'; adam_lerp=True computes the first moment as PyTorch 2 does.
    keep         True (default): goes on with a store that the appliance keeps under this name since
                 its last workers went, and is kept when its own go. False: begins anew, and ends
                 with its last worker. 'anew': begins anew in the place of one that is kept, and is
                 kept. 'take': goes on with one that is kept, and founds none. A store that is kept
                 and is not the one asked for is refused, with both values, but for 'anew'.
    requests     which push and which pull leaves next: 'stalest' (default: pulls of the stalest
                 layer, pushes that let a layer's clock move), 'fifo' (in the order of the calls),
                 'filo' (the newest). Ranks may differ in it.
    options      keywords, the fields of `sluice.Options` but for policy, averaging, wire and prune.

    All but `requests` is equal on all ranks, or the join is refused. Blocks and raises as
    sluice.Job; Refused, with the numbers, where the appliance has not the memory.
    """

    def __init__(self, layers, address=None, *, bound=0, update="delta", momentum=0.0,
                 dampening=0.0, weight_decay=0.0, nesterov=False, betas=(0.9, 0.999), eps=1e-8,
                 adam_lerp=False, keep=True, requests="stalest", **options):
        tensors, self._layers = [], []
        for layer in layers:
            specs = [Tensor(str(name), int(count), "float32", begins_layer=index == 0)
                     for index, (name, count) in enumerate(layer)]
            if not specs:
                raise errors.InvalidArgument(f"layer {len(self._layers)} has no tensors")
            tensors += specs
            self._layers.append(tuple(specs))
        if not tensors:
            raise errors.InvalidArgument("layers is empty: a store needs at least one")
        if bound is not None:
            if not isinstance(bound, numbers.Integral) or not 0 <= bound < _abi.NO_BOUND:
                raise errors.InvalidArgument(
                    f"bound={bound!r}: must be 0 or more iterations, or None for no bound")
            bound = int(bound)
        asked = Options.of(options)
        self._about = {
            "layers": [[(spec.name, spec.elem_count) for spec in specs] for specs in self._layers],
            "bound": bound, "update": update, "momentum": momentum, "dampening": dampening,
            "weight_decay": weight_decay, "nesterov": bool(nesterov), "betas": list(betas),
            "eps": eps, "adam_lerp": bool(adam_lerp), "ordinal": asked.ordinal,
            "reproducible": asked.reproducible, "mtu": asked.mtu, "chunk_bytes": asked.chunk_bytes}
        super().__init__(
            tuple(tensors), address, asked, enabled=1,
            staleness_bound=_abi.NO_BOUND if bound is None else bound,
            update=_policy.choice("update", update, _abi.UPDATE), momentum=momentum,
            dampening=dampening, weight_decay=weight_decay, nesterov=int(nesterov),
            keep=_policy.choice("keep", _KEPT.get(keep, keep), _abi.KEEP),
            requests=_policy.choice("requests", requests, _abi.REQUESTS),
            beta1=betas[0], beta2=betas[1], epsilon=eps, adam_lerp=int(adam_lerp))
        if self.kept:
            _log.warning(
                "%r: the appliance has kept the store's parameters since its last workers went, up "
                "to iteration %d: initial values are ignored. For a fresh start give keep='anew', "
                "or another job name", self, self.clocks(0).pushed)

    @property
    def layer_count(self):
        return len(self._layers)

    @property
    def kept(self):
        """Whether the store has outlived all of its workers before this one came: its parameters
        are theirs, initial values are ignored, and this worker's first iteration follows theirs."""
        return bool(self.clocks(0).kept)

    def _pointers(self, layer, arrays, what, writable):
        specs = self._layers[self._checked(layer)]
        if len(arrays) != len(specs):
            raise errors.InvalidArgument(
                f"{what} of layer {layer}: {len(arrays)} arrays for {len(specs)} tensors")
        addresses = [_memory.element_pointer(array, spec.elem_count, "float32",
                                             f"{what} of tensor '{spec.name}'", writable=writable)
                     for array, spec in zip(arrays, specs)]
        return (ctypes.c_void_p * len(addresses))(*addresses), len(addresses)

    def _checked(self, layer):
        if not 0 <= layer < len(self._layers):
            raise errors.InvalidArgument(
                f"layer {layer} does not exist: the store has {len(self._layers)}, from 0")
        return layer

    def _begin(self, direction, function, layer, arrays, *more):
        what = function[len("sluice_"):]
        pointers, count = self._pointers(layer, arrays, what, direction == "pull")
        self._handle.call(function, layer, pointers, count, *more)
        self._held[direction, layer] = arrays

    def initialise(self, layer, values):
        """The layer's initial values, by one rank: an array for each tensor. Where the store has
        some already, as for who comes later, these are ignored. Arrays belong to the library until
        wait_push(). Raises Busy when the layer was pushed or pulled already."""
        self._begin("push", "sluice_initialise", layer, values)

    def push(self, layer, deltas, rate=0.0):
        """Pushes the layer's part of this worker's next iteration: an array for each tensor, of
        differences of parameters or of gradients. `rate` is the learning rate of 'sgd' and 'adam';
        with bound 0 that of the iteration's first push counts. Returns at once; arrays belong to
        the library until wait_push(). Raises Busy while the layer's last push or pull is under way,
        InvalidArgument when its copy is too old for the bound, or when a tensor, which is named,
        holds a NaN or an infinity: it would stay in everybody's parameters."""
        self._begin("push", "sluice_push", layer, deltas, rate)

    def pull(self, layer, copies):
        """Asks for the layer as the iteration after the last push may read it, with that push in
        it, which may be under way. Returns at once; arrays, one for each tensor, are written until
        wait_pull(). Raises Busy while the layer's last pull is under way."""
        self._begin("pull", "sluice_pull", layer, copies)

    def wait_push(self, layer, timeout=None):
        """Blocks until the store has counted the layer's last push. Raises TimedOut after `timeout`
        seconds (it goes on), or the job's error."""
        self._await("push", layer, timeout)

    def wait_pull(self, layer, timeout=None):
        """Blocks until the layer's values are here: with a bound, for members that are further
        behind. Raises TimedOut after `timeout` seconds, naming them, or the job's error."""
        self._await("pull", layer, timeout)

    def _await(self, direction, layer, timeout):
        self._checked(layer)
        self._wait(lambda ms: ("sluice_wait_" + direction, layer, ms), timeout)
        self._held.pop((direction, layer), None)

    def describe(self):
        """What another process must know to join this store, or to read it with `python3 -m sluice
        store save`: a dict that JSON can hold."""
        return {**self._about, "world_size": self.world_size}

    def save(self, path, timeout=None):
        """Pulls all layers, as the iteration after the last push may read them, and writes them to
        `path`: .safetensors, where that package is installed, or .npz. No pull may be under way.
        Returns how many iterations of everybody are in all of it."""
        _store_file.check_name(path)
        arrays = {spec.name: _store_file.numpy().zeros(spec.elem_count, "float32")
                  for specs in self._layers for spec in specs}
        for layer, specs in enumerate(self._layers):
            self.pull(layer, [arrays[spec.name] for spec in specs])
        for layer in range(self.layer_count):
            self.wait_pull(layer, timeout)
        return self.write(path, arrays)

    def write(self, path, arrays):
        """As save(), of what was pulled before: the arrays by their tensors' names."""
        iterations = min(self.clocks(layer).held for layer in range(self.layer_count))
        _store_file.write(path, {**self.describe(), "iterations": iterations}, arrays)
        return iterations

    def clocks(self, layer):
        """The layer's Clocks. Never blocks."""
        clocks = _abi.sized(_abi.Clocks)
        self._handle.call("sluice_get_clocks", self._checked(layer), ctypes.byref(clocks))
        return Clocks(*(getattr(clocks, name) for name in Clocks._fields))
