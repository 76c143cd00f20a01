"""`Replica`: the parameters and buffers of one model, which must be bit-identical on all ranks.

Buffers that change during training, such as BatchNorm's statistics, travel with the gradients: each
rank contributes the change that its forward made, and every rank adds the average over the ranks in
the step. So a rank that missed a step catches up on buffers exactly as on gradients.
"""

import torch

from sluice import _torch_state, errors

_STATISTICS = torch.nn.modules.batchnorm._NormBase
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _carried(tensor):
    return tensor.is_floating_point() or tensor.dtype in _INTEGERS


class _Buffer:
    """One buffer, found by owner and name, since modules replace the tensor object itself."""

    def __init__(self, owner, key, name):
        self._owner, self._key, self.name = owner, key, name
        self.agreed = self.tensor().detach().clone()  # the value that all ranks have

    def tensor(self):
        return self._owner._buffers[self._key]

    def change(self):
        """This rank's change since the last agreement, as flat float32."""
        now = self.tensor()
        if now is None or now.shape != self.agreed.shape:
            raise errors.InvalidArgument(
                f"buffer '{self.name}' had the shape {tuple(self.agreed.shape)} at attach() and "
                f"has {None if now is None else tuple(now.shape)} now: buffers that change their "
                "shape cannot be kept equal on all ranks")
        return (now.detach() - self.agreed).to("cpu", torch.float32).reshape(-1)

    def agree(self, change):
        """Adds the average change."""
        if not self.agreed.is_floating_point():
            change = change.round()
        self.agreed.add_(change.reshape(self.agreed.shape).to(self.agreed))

    def restore(self):
        self.tensor().detach().copy_(self.agreed)


class _BufferGroup:
    """Buffers in one tensor of the job: either all small ones, of normalisation layers, or a
    single other one. A large constant buffer then never leaves."""

    def __init__(self, name, buffers, skip_unchanged):
        self.name = name
        self._buffers = buffers
        self._skip_unchanged = skip_unchanged
        self._counts = [buffer.agreed.numel() for buffer in buffers]
        self.values = torch.zeros(sum(self._counts), dtype=torch.float32)

    def collect(self, weight):
        """Fills `values` with this rank's changes times `weight`; False if no buffer has
        changed."""
        torch.cat([buffer.change() for buffer in self._buffers], out=self.values)
        if self._skip_unchanged and not self.values.any():
            return False
        if weight != 1:
            self.values.mul_(weight)
        return True

    def agree(self):
        for buffer, change in zip(self._buffers, self.values.split(self._counts)):
            buffer.agree(change)


class Replica:
    """Parameters and buffers of `module`, except those in `ignored`, which DDP ignores."""

    def __init__(self, module, ignored=()):
        self._parameters = dict(module.named_parameters())
        self._all, statistics, others, seen = [], [], [], set()
        for prefix, owner in module.named_modules():
            for key, tensor in owner._buffers.items():
                name = f"{prefix}.{key}" if prefix else key
                if tensor is None or name in ignored or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                buffer = _Buffer(owner, key, name)
                self._all.append(buffer)
                if tensor.numel() and _carried(tensor):
                    (statistics if isinstance(owner, _STATISTICS) else others).append(buffer)
        self.parts = [_BufferGroup("sluice.buffers", statistics, False)] if statistics else []
        self.parts += [_BufferGroup(f"sluice.buffer.{b.name}", [b], True) for b in others]
        self._moving = [*statistics, *others]

    @torch.no_grad()
    def agree(self, absent):
        """After a step: adds the averages in the parts' `values`, except for indices in
        `absent`, and sets all buffers to the value that every rank has now."""
        for index, part in enumerate(self.parts):
            if index not in absent:
                part.agree()
        for buffer in self._moving:
            buffer.restore()

    def tree(self):
        """The values that another replica needs, for _torch_state. They are those of the last
        step on which all agree, whatever a forward has done to buffers since."""
        moving = set(self._moving)
        return {"parameters": {name: p.detach() for name, p in self._parameters.items()},
                "buffers": {b.name: b.agreed if b in moving else b.tensor() for b in self._all}}

    @torch.no_grad()
    def load(self, tree):
        """Takes another replica's tree(). Raises InvalidArgument when it is of another model."""
        targets = {"parameters": self._parameters,
                   "buffers": {b.name: b.tensor() for b in self._all}}
        for kind, mine in targets.items():
            theirs = tree[kind]
            for name in {**mine, **theirs}:
                if (name not in mine or name not in theirs
                        or mine[name].shape != theirs[name].shape):
                    raise errors.InvalidArgument(
                        f"{kind[:-1]} '{name}' is not the same on the rank that sent its state: "
                        "start all ranks with the same model")
                mine[name].copy_(theirs[name])
        for buffer in self._moving:
            buffer.agreed.copy_(buffer.tensor())

    def broadcast(self, job, root=0, timeout=None):
        """Gives all ranks the parameters and buffers of rank `root`. All ranks call it; blocks
        until it is done.

        Raises TimedOut, and PeerLost with the root's name when the root has gone.
        """
        data = _torch_state.encode(self.tree())
        try:
            job.broadcast(data, root, timeout=timeout)
        except (errors.TimedOut, errors.PeerLost) as error:
            raise type(error)(
                f"rank {job.rank} waited for the first parameters and buffers, which rank {root} "
                f"gives to all: {error}; look at the log of rank {root}") from error
        if job.rank != root:
            self.load(_torch_state.decode(data))
