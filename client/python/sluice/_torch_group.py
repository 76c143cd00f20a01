"""`solo_group()`: a process group of this process alone, for DDP in jobs with stragglers.

A stock group blocks on what DDP sends over it (buffers, maps of used parameters), so that one
frozen rank would freeze all, whatever k is. In a group of one rank nothing can block.
"""

import contextlib
import os

import torch.distributed as dist

from sluice import _settings

_members = {}  # group -> (rank, world size) in the job


@contextlib.contextmanager
def _loopback():
    """Gloo wants a network device even for a group of one; the host's own name may not resolve."""
    before = os.environ.get("GLOO_SOCKET_IFNAME")
    if before is None:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GLOO_SOCKET_IFNAME"]


def solo_group(rank=None, world_size=None):
    """DDP's process group for a job in which steps can be complete without some of the ranks.

        model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
        attachment = sluice.torch.attach(model, policy="fixed", k=6)
        loop = sluice.torch.Loop(attachment, optimizer)

    rank, world_size   of this process in the job, default RANK and WORLD_SIZE. They are kept for
                       attach(): inside the group this process is rank 0 of 1.

    Needs no rendezvous and waits for nobody, so a rank that has died can start again. When torch
    has no default process group yet, this one becomes it; so do not call init_process_group(). A
    script that has called it already gets a sub-group; then all ranks must call this at the same
    place, as torch demands for sub-groups, and no rank can be restarted.

    Several models may share the group, and further calls return the same one. What DDP would have
    done with its group goes through Sluice: rank 0's parameters and buffers at attach(), buffers
    of BatchNorm after every step. SyncBatchNorm sees this rank's batch only.

    With SLUICE_DISABLE=1 it is the ordinary group of all ranks. Raises InvalidArgument when rank
    or world size are not known.
    """
    if _settings.disabled():
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return dist.group.WORLD
    default = dist.group.WORLD if dist.is_initialized() else None
    for group, member in _members.items():
        if member == (_asked(rank, member[0]), _asked(world_size, member[1])):
            return group
    if default is None:
        member = (_settings.integer("RANK", rank), _settings.integer("WORLD_SIZE", world_size))
        with _loopback():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        group = dist.group.WORLD
    else:
        member = (dist.get_rank() if rank is None else int(rank),
                  dist.get_world_size() if world_size is None else int(world_size))
        with _loopback():
            group = dist.new_group([dist.get_rank()], backend="gloo")
    _members[group] = member
    return group


def _asked(value, default):
    return default if value is None else int(value)


def member_of(group):
    """(rank, world size) in the job when `group` came from solo_group(), else None."""
    return _members.get(group)
