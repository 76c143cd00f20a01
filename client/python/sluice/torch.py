"""Sluice for PyTorch: `attach(ddp_model)` sums the gradients of a DDP model in the switch.

    model = torch.nn.parallel.DistributedDataParallel(net)
    sluice.torch.attach(model, "udp://10.77.0.1")        # the one added line

When a step may be complete without some of the ranks (policy="fixed", "ramp", ...: stragglers do
not hold the others up), the model runs on a group of its own and a loop helper applies what this
rank has missed:

    model = DistributedDataParallel(net, process_group=sluice.torch.solo_group())
    attachment = sluice.torch.attach(model, "udp://10.77.0.1", policy="fixed", k=6)
    loop = sluice.torch.Loop(attachment, optimizer, scheduler)
    for step in loop.steps(1000):
        loss_function(model(inputs), targets).backward()      # the loop runs the optimizer

Works with torch 1.13 and 2.x, parameters on the CPU of type float32, float16 or bfloat16, gradient
accumulation (no_sync), find_unused_parameters and static_graph. DDP itself keeps using its process
group for what is not a gradient: initial parameters, buffers, used-parameter maps.

How it works: DDP hands each full bucket of gradients to a communication hook during backward. The
hook submits every parameter's part of the bucket, in place, and returns a future at once. When
backward ends, a callback of the autograd engine, which runs before DDP's own, waits for the step
and completes the futures. Errors are raised there, out of `backward()`, with their own type; an
exception inside the hook itself would leave DDP in pieces.
"""

import itertools

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sluice import _settings, errors
from sluice._torch_attachment import Attachment, hook
from sluice._torch_group import member_of, solo_group
from sluice._torch_loop import Loop
from sluice._torch_replica import Replica
from sluice._torch_solo import SoloAttachment, extra_tensors
from sluice.job import Job

__all__ = ["Attachment", "Disabled", "Loop", "SoloAttachment", "attach", "solo_group"]

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_ordinals = {}  # job name -> counter: the models of this process, in the order of attach()


def attach(ddp_model, address=None, *, job=None, weight=1, rank=None, world_size=None, **options):
    """Lets the gradients of `ddp_model` be summed by the appliance at `address`.

    ddp_model  a DistributedDataParallel without a communication hook. Every rank must attach, with
               the same model and the same settings, before its first synchronised backward.
    address    'udp://HOST[:PORT]' or 'vhost://HOST[:PORT]/SOCKET', default SLUICE_ADDRESS;
               '{rank}' and '{local_rank}' are replaced. A vhost-user socket takes one job: a
               second model needs another one.
    job        name of the job, default SLUICE_JOB or 'default'.
    weight     samples in this rank's batch when batches differ in size: gradients become the mean
               weighted by it. 1 (default) everywhere: the plain mean, as DDP does it. May be set
               on the returned object before any backward. Gradients are multiplied by it on the
               way, so large weights can overflow float16.
    rank, world_size
               default: those of the model's process group, or given to solo_group().
    options    policy, k, late and the other options of the policy, secret, run_id, averaging, mtu,
               chunk_bytes, local_address, connect_timeout, join_timeout, silence_timeout,
               stall_report: as for sluice.Job.

    On a solo_group() rank 0's parameters and buffers are copied to all ranks here, unless this
    rank returns to a running job (the Loop fetches another rank's state then), and training goes
    through a sluice.torch.Loop. A policy that does not wait for all ranks needs such a group.

    Returns an `Attachment`. The job is left at exit, or by detach(), or by using the attachment as
    a context manager.

    SLUICE_DISABLE=1 in the environment makes attach() do nothing, to compare with DDP's own
    all-reduce without a change to the script.

    Blocks until all ranks have attached. Raises InvalidArgument (naming the parameter) for
    parameters of other types or on a GPU, for sparse gradients and for a policy with k < n on
    another group than solo_group()'s, and everything that sluice.Job
    raises: Unreachable, Refused, TimedOut, ... Later errors, such as PeerLost, come out of
    backward() or of the next forward.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise errors.InvalidArgument(
            f"attach() needs a DistributedDataParallel model, not a {type(ddp_model).__name__}: "
            "wrap it first, model = torch.nn.parallel.DistributedDataParallel(model)")
    if _settings.disabled():
        return Disabled()
    if getattr(ddp_model, "_sluice_attached", False):
        raise errors.InvalidArgument(
            "this model is attached already; DDP takes one communication hook in its life")
    named = _registered_parameters(ddp_model)
    _check_parameters(ddp_model, named)
    group = ddp_model.process_group
    member = member_of(group)
    if member is None:
        attachment = _attach_stock(named, group, weight, address, job, rank, world_size, options)
    else:
        member = (member[0] if rank is None else rank,
                  member[1] if world_size is None else world_size)
        attachment = _attach_solo(ddp_model, named, group, weight, address, job, member, options)
    try:
        ddp_model.register_comm_hook(attachment, hook)
    except BaseException:
        attachment.job.close()
        raise
    ddp_model._sluice_attached = True
    attachment._watch(ddp_model)
    return attachment


def _join(specs, address, job, **options):
    name = _settings.job_name(job)
    ordinal = next(_ordinals.setdefault(name, itertools.count()))
    return Job(specs, address, job=name, ordinal=ordinal, **options)


def _specs(named):
    return [(key, p.numel(), _DTYPES[p.dtype]) for key, p in named]


def _attach_stock(named, group, weight, address, job, rank, world_size, options):
    """On a process group of all ranks: every step needs all of them."""
    worker = _join(_specs(named), address, job,
                   rank=dist.get_rank(group) if rank is None else rank,
                   world_size=dist.get_world_size(group) if world_size is None else world_size,
                   **options)
    if worker.policy.tolerates_stragglers:
        policy = worker.policy.policy
        worker.close()
        raise errors.InvalidArgument(
            f"the job's policy is '{policy}', with which a step can be complete without some of "
            "the ranks, but DDP would still wait for all of them in its process group: wrap the "
            "model with DistributedDataParallel(net, process_group=sluice.torch.solo_group()) and "
            "train with sluice.torch.Loop, or use policy='sync'")
    return Attachment(worker, [p for _, p in named], group, weight)


def _attach_solo(ddp_model, named, group, weight, address, job, member, options):
    """On a group of this rank alone: what DDP's group is for goes through the job."""
    averaging = options.get("averaging", "weight")
    if averaging != "weight":
        raise errors.InvalidArgument(
            f"averaging={averaging!r} on a solo_group(): only 'weight' makes the mean of the ranks "
            "that are in a step")
    replica = Replica(ddp_model.module, set(getattr(ddp_model, "parameters_to_ignore", ())))
    worker = _join(_specs(named) + extra_tensors(replica), address, job, rank=member[0],
                   world_size=member[1], **options)
    try:
        if not worker.must_resync:
            replica.broadcast(worker)
        return SoloAttachment(worker, named, group, weight, replica)
    except BaseException:
        worker.close()
        raise


def _registered_parameters(ddp_model):
    """(name, parameter) of what DDP reduces, in registration order: the same on every rank."""
    ignored = set(getattr(ddp_model, "parameters_to_ignore", ()))
    return [(key, p) for key, p in ddp_model.module.named_parameters()
            if p.requires_grad and key not in ignored]


def _check_parameters(ddp_model, named):
    for key, parameter in named:
        if parameter.device.type != "cpu":
            raise errors.InvalidArgument(
                f"parameter '{key}' is on {parameter.device}: this build of Sluice sums host "
                "memory only; train on the CPU, or leave this model to DDP's own all-reduce")
        if parameter.dtype not in _DTYPES:
            raise errors.InvalidArgument(
                f"parameter '{key}' has type {str(parameter.dtype).replace('torch.', '')}; Sluice "
                "sums float32, float16 and bfloat16: convert it, for example with model.float()")
    for key, module in ddp_model.module.named_modules():
        if getattr(module, "sparse", False) and isinstance(
                module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            raise errors.InvalidArgument(
                f"parameter '{key}.weight' has sparse gradients, which Sluice does not sum: create "
                "the embedding with sparse=False")


class Disabled:
    """What attach() returns under SLUICE_DISABLE=1: DDP works as if attach() had not been called.
    A Loop over it runs the optimizer after each body, and no more.
    """

    job = None
    weight = 1

    def stats(self):
        return {}

    def report(self, step=0):
        return None

    def detach(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        pass
