"""The order in which a model's first forward needs its parameters, and the priorities from it."""

PRIORITIES = 256


def priorities_of(order, count):
    """Tensor index -> priority, 0 to 255: its place in `order`, scaled to that range."""
    table = [0] * count
    for place, index in enumerate(order):
        table[index] = place if count <= PRIORITIES else place * PRIORITIES // count
    return table


class ForwardOrder:
    """Notes the order in which the first forward calls modules, and then removes its hooks."""

    def __init__(self, module, indices):
        self._places = {}  # module -> how many were called before it
        self._handles = []
        self._callers = {}  # tensor index -> for each module that has it: that one, those around it
        stack = [(module, ())]
        while stack:
            child, around = stack.pop()
            callers = (child, *around)
            for p in child.parameters(recurse=False):
                if p in indices:
                    self._callers.setdefault(indices[p], []).append(callers)
            # The model itself comes first whatever it uses, so it says nothing about its children.
            inner = callers if child is not module else ()
            stack.extend((grandchild, inner) for grandchild in child.children())
        for child in module.modules():
            self._handles.append(child.register_forward_pre_hook(self._record))

    def _record(self, module, _inputs):
        self._places.setdefault(module, len(self._places))

    def finish(self, count):
        """All tensor indices: first in the order in which their modules were called; a module
        that was not called has the place of the module around it (nn.MultiheadAttention uses its
        child's weight without a call); then all others. Parameters of equal place keep the order of
        registration.
        """
        for handle in self._handles:
            handle.remove()
        self._handles = []
        last = len(self._places)

        def place(index):
            return min((next((self._places[module] for module in callers
                              if module in self._places), last)
                        for callers in self._callers.get(index, ())), default=last)
        return sorted(range(count), key=place)
