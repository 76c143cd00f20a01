"""A model as StaleSynchronous sees it: layers, whose parameters the appliance keeps, and
buffers, which each worker keeps until average_buffers() is called.
"""

import torch

from sluice import errors

# Modules that use the parameters of their children without calling them.
_UNITS = (torch.nn.MultiheadAttention,)


class Layer:
    """The parameters of one layer, the copies into which pulls write, and the values of a push."""

    def __init__(self, index, name):
        self.index, self.name = index, name
        self.names, self.parameters = [], []
        self.pulling = False
        self.pushed = False  # in this iteration's backward
        self._parts, self._sizes = {}, None

    def make_memory(self):
        shapes = [parameter.shape for parameter in self.parameters]
        self.copies = [torch.empty(shape, dtype=torch.float32) for shape in shapes]
        self.deltas = [torch.empty(shape, dtype=torch.float32) for shape in shapes]

    def parts_in(self, groups):
        """{number of a group of an optimizer: parameters of this layer in it}; computed again
        only when groups have grown."""
        sizes = [len(group["params"]) for group in groups]
        if sizes != self._sizes:
            own, self._sizes = set(self.parameters), sizes
            parts = {number: [parameter for parameter in group["params"] if parameter in own]
                     for number, group in enumerate(groups)}
            self._parts = {number: part for number, part in parts.items() if part}
        return self._parts

    def take_copies(self):
        with torch.no_grad():
            for parameter, copy in zip(self.parameters, self.copies):
                parameter.copy_(copy)


def layers_of(model):
    """Returns ([Layer], {module: indices of the layers that it uses}). Tied parameters belong to
    the first layer that has them."""
    layers, owner, users, inside = [], {}, {}, ()
    for name, module in model.named_modules():
        if inside and name.startswith(inside):
            continue
        is_unit = isinstance(module, _UNITS)
        if is_unit:
            inside = (*inside, name + ".") if name else ("",)
        own = [(key, parameter) for key, parameter in module.named_parameters(recurse=is_unit)
               if parameter.requires_grad]
        fresh = Layer(len(layers), name)
        for key, parameter in own:
            if id(parameter) in owner:
                continue
            owner[id(parameter)] = fresh.index
            fresh.names.append(f"{name}.{key}" if name else key)
            fresh.parameters.append(parameter)
        if fresh.parameters:
            layers.append(fresh)
        if own:
            users[module] = sorted({owner[id(parameter)] for _, parameter in own})
    return layers, users


def _live(store, values, timeout):
    """A copy of `values` for each live rank, in order. All ranks get copies of the same ranks,
    because the appliance tells all of them alike that the root of a broadcast is lost."""
    for root in range(store.world_size):
        copy = values.clone()
        try:
            store.broadcast(copy, root, timeout)
        except errors.PeerLost:
            store.check()  # it is the whole job that has ended
            continue
        yield copy


def average(store, buffers, timeout):
    """Replaces buffers by their mean over the live ranks. All floats travel in one message, as
    float64, and are added in the order of ranks."""
    with torch.no_grad():
        floats = [buffer for buffer in buffers if buffer.is_floating_point()]
        if floats:
            mine = torch.cat([buffer.detach().double().flatten() for buffer in floats])
            copies = list(_live(store, mine, timeout))
            mean = sum(copies[1:], copies[0]) / len(copies)
            for buffer, part in zip(floats, mean.split([buffer.numel() for buffer in floats])):
                buffer.copy_(part.reshape(buffer.shape))
        for buffer in buffers:
            if not buffer.is_floating_point():
                buffer.copy_(next(_live(store, buffer.detach().contiguous(), timeout)))
