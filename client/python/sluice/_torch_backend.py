"""The backend 'sluice' of torch.distributed: `init_process_group("sluice")`.

Sums and averages of float32, float16 and bfloat16, copies of anything, and barriers go through the
appliance at SLUICE_ADDRESS; every other operation goes to a Gloo group of the same ranks, made at
its first use. A line of the logger 'sluice' says of each kind of operation which way it takes.
SLUICE_COLLECTIVES=gloo or box forces one.

From torch 2.15 on the wheel's entry point in the group torch.distributed.backends is enough; before
that `import sluice.torch` registers the backend. With `enable_reconfigure=True` (2.15) the group's
members may change: _torch_elastic.
"""

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from sluice._torch_elastic import SluiceElasticGroup
from sluice._torch_operations import Operations

_NAME = "sluice"
_DEVICES = ["cpu", "cuda"]
# A Backend may be written in Python; before, a ProcessGroup in its place.
_alive = set()  # groups in use: torch's debugging wrapper keeps their C++ part alone
_has_backends = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)


def register():
    """Makes the name known to torch.distributed. May be called more than once."""
    if not dist.is_available() or hasattr(dist.Backend, _NAME.upper()):
        return
    devices = {"devices": _DEVICES} if hasattr(dist.Backend, "backend_capability") else {}
    dist.Backend.register_backend(_NAME, _create, extended_api=True, **devices)


def _create(asked, options):
    """The process group that torch asks for: called by init_process_group(), new_group() and their
    kin. Blocks until the ranks have joined where no session with the appliance serves them yet."""
    timeout = getattr(options, "_timeout", None) or asked.timeout
    if getattr(asked, "enable_reconfigure", False):
        return SluiceElasticGroup(asked.store, asked.group_id, asked.group_rank, asked.group_size,
                                  timeout)
    kind = SluiceBackend if _has_backends else SluiceProcessGroup
    return kind(asked.store, asked.group_id, asked.group_rank, asked.group_size,
                list(asked.global_ranks_in_group), timeout)


if _has_backends:
    class SluiceBackend(Operations, c10d.Backend):
        """A process group's operations; made by torch. Any thread may call any method."""

        def __init__(self, store, name, rank, size, ranks, timeout, options=None, alone_as=None):
            c10d.Backend.__init__(self, rank, size)
            self._options = options or c10d.Backend.Options(_NAME, timeout=timeout)
            self._ranks = ranks
            self.prepare(store, name, rank, size, ranks, timeout, alone_as)
            _alive.add(self)

        def _end(self, why, how):
            super()._end(why, how)
            _alive.discard(self)

        @property
        def options(self):
            return self._options

        @property
        def supports_splitting(self):
            return True

        # Torch's own would ask themselves without end of a Backend in Python that lacks these.
        supports_coalescing = supports_shrinking = supports_reconfigure = property(lambda _: False)
        supports_window = _supports_time_estimate = property(lambda _: False)

        def split(self, store, ranks, options):
            """The group of these of this group's ranks; None on the others."""
            if self.rank() not in ranks:
                return None
            options = options or c10d.Backend.Options(_NAME, timeout=self._options._timeout)
            world = self._ranks or range(self.size())
            options.global_ranks_in_group = [world[rank] for rank in ranks]
            return SluiceBackend(store, options.group_name, list(ranks).index(self.rank()),
                                 len(ranks), options.global_ranks_in_group, options._timeout,
                                 options)
else:
    class SluiceProcessGroup(Operations, c10d.ProcessGroup):
        """A process group; made by torch. Any thread may call any method."""

        def __init__(self, store, name, rank, size, ranks, timeout):
            c10d.ProcessGroup.__init__(self, rank, size)
            self.prepare(store, name, rank, size, ranks, timeout)
            self.keep_works()

        # What its Python calls by older names.
        _allgather_base = Operations.all_gather_single
        _reduce_scatter_base = Operations.reduce_scatter_single
        alltoall_base = Operations.all_to_all_single

        def name(self):
            return _NAME
