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

`overlap(ddp_model, optimizer)` in the place of attach() lets the next forward start, layer by
layer, while gradients are still on their way:

    model = DistributedDataParallel(net, gradient_as_bucket_view=True)
    sluice.torch.overlap(model, optimizer, "udp://10.77.0.1")    # the loop stays as it is

`StaleSynchronous(model, optimizer, bound=B)` trains a plain module without DDP: the appliance keeps
the parameters, and no worker waits for others that are at most B iterations behind.

Works with torch 1.13 and 2.x, compiled or not, parameters on the CPU or on one CUDA device of type
float32, float16 or bfloat16, gradient accumulation (no_sync), find_unused_parameters and
static_graph. DDP itself keeps using its process group for what is not a gradient: initial
parameters, buffers, used-parameter maps.

How it works: DDP hands each full bucket of gradients to a communication hook during backward. The
hook submits every parameter's part of the bucket, in place, and returns a future at once. When
backward ends, a callback of the autograd engine, which runs before DDP's own, waits for the step
and completes the futures. Errors are raised there, out of `backward()`, with their own type; an
exception inside the hook itself would leave DDP in pieces.
"""

import functools
import inspect
import os
import weakref

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sluice import _settings, _torch_backend, errors
from sluice._options import checked_timeout
from sluice._torch_agreement import agree, job_name, next_number, place_of
from sluice._torch_models import refuse_other_models, refuse_sparse
from sluice._torch_attachment import Attachment, hook
from sluice._torch_device import device_of
from sluice._torch_fallback import RETURN_JOIN_S, run_of
from sluice._torch_group import GroupAttachment, checked_fallback
from sluice._torch_loop import Loop
from sluice._torch_overlap import Overlap
from sluice._torch_replica import Replica
from sluice._torch_solo import SoloAttachment, extra_tensors, member_of, solo_group
from sluice._torch_stale import StaleSynchronous
from sluice._values import checked_weight
from sluice.job import Job

__all__ = ["Attachment", "Disabled", "Loop", "Overlap", "SoloAttachment", "StaleSynchronous",
           "attach", "overlap", "solo_group"]

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_torch_backend.register()
_attached = weakref.WeakSet()  # models; a copy of one is not attached


def attach(ddp_model, address=None, *, job=None, weight=1, rank=None, world_size=None,
           fallback=None, fallback_after=10.0, **options):
    """Lets the gradients of `ddp_model` be summed by the appliance at `address`.

    ddp_model  a DistributedDataParallel without a communication hook. Every rank must attach, with
               the same model and the same settings, before its first synchronised backward.
    address    'udp://HOST[:PORT][,HOST...]' (a second HOST is where the job moves when the first
               is lost), 'vhost://HOST[:PORT]/SOCKET', 'bcube://N,K[?...]' or, for the
               ranks of one process, 'inproc://NAME'; default SLUICE_ADDRESS. '{rank}' and
               '{local_rank}' are replaced. A vhost-user socket is one process's,
               whose models may share it.
    job        name of the job, default SLUICE_JOB or 'default'. Where the model's process group is
               of some of the ranks only, a hash of these is added to it.
    weight     samples in this rank's batch when batches differ in size: gradients become the mean
               weighted by it. 1 (default) everywhere: the plain mean, as DDP does it. May be set
               on the returned object before any backward. Gradients are multiplied by it on the
               way, so large weights can overflow float16.
    rank, world_size
               default: those of the model's process group, or given to solo_group().
    fallback, fallback_after
               'group': when no box has answered a rank for `fallback_after` seconds, all ranks go
               on over the model's process group (Gloo), with the step that they are in, and return
               to the box between two steps; the log says both. The group must reach its ranks and
               its store without the box. Costs memory for all gradients, and a copy of them a
               step. Every rank gives the same. k = n, gradients on the CPU, without wire and
               prune; collectives of the returned object's `job` need a box.
    options    policy, k, late and the other options of the policy, schedule and its options, wire,
               prune and its options (parameters of one dimension stay whole), trace, secret,
               run_id, averaging, mtu, chunk_bytes, local_address, connect_timeout, join_timeout,
               silence_timeout, stall_report: as for sluice.Job.

    On a solo_group() rank 0's parameters and buffers are copied to all ranks here, unless this
    rank returns to a running job (the Loop fetches another rank's state then), and training goes
    through a sluice.torch.Loop. A policy that does not wait for all ranks needs such a group.

    Returns an `Attachment`. The job is left at exit, or by detach(), or by using the attachment as
    a context manager; or by finish() where ranks are meant to end at different steps. Only the
    context manager sees that a rank ends by sys.exit(3): at exit that looks like an orderly end.

    SLUICE_DISABLE=1 in the environment makes attach() do nothing, to compare with DDP's own
    all-reduce without a change to the script.

    Blocks until all ranks have attached. Raises InvalidArgument (naming the parameter) for
    parameters of other types or on several devices, for sparse gradients and for a policy with
    k < n on another group than solo_group()'s, and everything that sluice.Job raises: Unreachable,
    Refused, TimedOut, ... Later errors, such as PeerLost, come out of backward() or of the next
    forward.
    """
    return _attach(ddp_model, address, None, job=job, weight=weight, rank=rank,
                   world_size=world_size, fallback=fallback, fallback_after=fallback_after,
                   **options)


def overlap(ddp_model, optimizer, address=None, *, job=None, weight=1, rank=None, world_size=None,
            **options):
    """Like attach(), and the next forward starts while gradients are still on their way.

    Just before a layer is used, its forward waits for the layer's gradients and runs the layer's
    part of the optimizer's step.

    optimizer  the object that the loop uses, over this model's parameters and any others. The loop
               stays as it is: backward(), optimizer.step(), scheduler.step(), zero_grad(), in the
               usual orders. Parameters, the optimizer's state and the schedule have the same bits
               as with attach(). Wrap the model with gradient_as_bucket_view=True.

    The other arguments are those of attach().

    step() notes the hyper-parameters; a schedule that runs before the update does not change them.
    A use of a value before its update first waits for the update, and so sees what it would see in
    a plain loop: .grad, parameters through their modules (state_dict(), parameters(), evaluations,
    copies) or through earlier references (a list of them, the optimizer's groups), the optimizer's
    state_dict(), a second backward of the same forward. Three uses are not noticed: tensors over a
    parameter's memory that were made earlier (p.data, p.detach()), optimizer.state itself, and C++
    extensions that take parameters from such references. Call flush() of the returned object before
    these. A change through p.detach() that came too early raises InvalidArgument. The last update
    is applied by detach() or at the end of the process; if another rank has not taken the step,
    detach() raises, or the exit status is 120.

    A closure given to step() overlaps as well: it is called first, and its loss is returned. The
    wrappers that accelerate and Lightning put around an optimizer overlap too.

    With torch.compile, compile the model's blocks (not the whole) before overlap(). Each block then
    waits for its own gradients, all at once.

    Steps are done as by attach(), with one warning of the logger 'sluice' that says why, when

      - the optimizer is not one of torch.optim that treat each parameter by itself (SGD, Adam,
        AdamW, Adagrad, RMSprop, ...), for example LBFGS or a subclass;
      - step() has hooks, or an argument that is not a closure;
      - gradients are read between backward() and step(): clipping by norm, GradScaler, another
        optimizer over this model;
      - parameters are used between step() and the next forward through references: see above;
      - a parameter is of a class of its own;
      - the model is compiled as a whole (torch.compile(net), or of the DDP model), or anything
        else in this process than such blocks is compiled after overlap(): then from there on.

    A sum with fewer than all ranks (k < n) needs a sluice.torch.Loop, which owns the optimizer;
    overlap() refuses such a policy, and a solo_group().

    Returns an `Overlap`. Blocks and raises as attach(). Later errors, such as PeerLost, come out of
    backward() or of the forward, with their own type. The parameters are then of two steps, so go
    on from a checkpoint.
    """
    if isinstance(ddp_model, DistributedDataParallel) and not _settings.disabled():
        if not hasattr(optimizer, "param_groups"):
            raise errors.InvalidArgument(
                f"overlap() needs one optimizer, not a {type(optimizer).__name__}: for several, "
                "give their parameters to one as groups, or use attach()")
        if member_of(ddp_model.process_group) is not None:
            raise errors.InvalidArgument(
                "overlap() on a solo_group(): steps that this rank has missed need a "
                "sluice.torch.Loop, which runs the optimizer. Wrap the model without process_group "
                "to overlap, or use attach() and a Loop")
        if not ddp_model.gradient_as_bucket_view:
            raise errors.InvalidArgument(
                "overlap() needs gradients that stay where they arrive: wrap the model with "
                "DistributedDataParallel(net, gradient_as_bucket_view=True)")
    return _attach(ddp_model, address, optimizer, job=job, weight=weight, rank=rank,
                   world_size=world_size, **options)


def _attach(ddp_model, address, optimizer, *, job, weight, rank, world_size, fallback=None,
            fallback_after=10.0, **options):
    refuse_other_models(ddp_model, "attach(model" if optimizer is None else
                        "overlap(model, optimizer")
    weight = checked_weight(weight)
    if _settings.disabled():
        return Disabled()
    if ddp_model in _attached:
        raise errors.InvalidArgument(
            "this model is attached already; DDP takes one communication hook in its life: wrap "
            "the module with DistributedDataParallel anew, and attach that")
    named = _registered_parameters(ddp_model)
    device = device_of(named)
    options = _with_memory(options, device)
    checked_timeout("join_timeout", options.get("join_timeout", 60.0))
    _check_parameters(ddp_model, named)
    group = ddp_model.process_group
    member = member_of(group)
    falls_back = checked_fallback(fallback, fallback_after, member is not None, optimizer)
    if member is None:
        worker, join = _join_stock(ddp_model.module, named, group, address, job, rank, world_size,
                                   options)
        if falls_back:
            attachment = GroupAttachment(worker, named, group, weight, device, fallback_after,
                                         options.get("join_timeout", 60.0), join)
        elif optimizer is None:
            attachment = Attachment(worker, named, group, weight, device)
        else:
            attachment = Overlap(worker, named, group, weight, optimizer, ddp_model.module, device)
    else:
        member = (member[0] if rank is None else rank,
                  member[1] if world_size is None else world_size)
        attachment = _attach_solo(ddp_model, named, group, weight, address, job, member,
                                  options, device)
    try:
        ddp_model.register_comm_hook(attachment, hook)
    except BaseException as error:
        attachment.job.close()
        if isinstance(error, RuntimeError):
            raise errors.InvalidArgument(
                "DDP takes one communication hook in its life, and this model has one: wrap the "
                f"module with DistributedDataParallel anew, and attach that ({error})") from None
        raise
    _attached.add(ddp_model)
    attachment._watch(ddp_model)
    if optimizer is not None:
        attachment.follow(optimizer)
    return attachment


def _join(specs, address, name, ordinal, **options):
    return Job(specs, address, job=name, ordinal=ordinal, **options)


def _with_memory(options, device):
    """The options for gradients there: the device is the parameters', the way there the caller's or
    the environment's."""
    way = options.get("memory") or os.environ.get("SLUICE_MEMORY") or "device"
    if device is None:
        if options.get("memory") not in (None, "host"):
            raise errors.InvalidArgument(
                f"memory={way!r}, but the parameters are on the CPU: leave it out, or move the "
                "model to a CUDA device")
        return {**options, "memory": "host"}
    if way == "host":
        raise errors.InvalidArgument(
            f"memory='host', but the parameters are on cuda:{device.index}: leave it out")
    return {**options, "memory": way, "device": device.index}


def _specs(named):
    # Biases and scales are few and matter: they are never pruned.
    return [(key, p.numel(), _DTYPES[p.dtype], False, p.dim() < 2) for key, p in named]


def _join_stock(module, named, group, address, job, rank, world_size, options):
    """On a process group of all ranks that train: every step needs all of them. Returns the job,
    and a function of a number that joins another run of it."""
    if rank is None:
        _settings.check_inproc(address or os.environ.get("SLUICE_ADDRESS", ""),
                               dist.get_world_size(group), "the process group")
    is_whole = world_size in (None, dist.get_world_size(group))
    name = job_name(job, group) if is_whole else _settings.job_name(job)
    place = place_of(group, named[0][1].device) if is_whole else None
    if place is None:
        ordinal = next_number(name)
    else:
        run_id, ordinal = agree(group, place, name, module, named,
                                address or os.environ.get("SLUICE_ADDRESS", ""),
                                options.get("join_timeout", 60.0))
        if options.get("run_id") is None:
            options = {**options, "run_id": run_id}
    if name != _settings.job_name(job):  # a place is one process's: its rank is that of the world
        address = _settings.address(address, dist.get_rank())
        options["local_address"] = _settings.local_address(options.get("local_address"),
                                                           dist.get_rank())
    options.update(rank=dist.get_rank(group) if rank is None else rank,
                   world_size=dist.get_world_size(group) if world_size is None else world_size)
    worker = _join(_specs(named), address, name, ordinal, **options)
    if worker.policy.tolerates_stragglers:
        policy = worker.policy.policy
        worker.close()
        raise errors.InvalidArgument(
            f"the job's policy is '{policy}', with which a step can be complete without some of "
            "the ranks, but DDP would still wait for all of them in its process group: wrap the "
            "model with DistributedDataParallel(net, process_group=sluice.torch.solo_group()) and "
            "train with sluice.torch.Loop, or use policy='sync'")

    def join_again(number):
        return _join(_specs(named), address, name, ordinal,
                     **{**options, "run_id": run_of(worker.run_id, number),
                        "join_timeout": min(options.get("join_timeout", 60.0), RETURN_JOIN_S)})
    return worker, join_again


def _attach_solo(ddp_model, named, group, weight, address, job, member, options, device):
    """On a group of this rank alone: what DDP's group is for goes through the job."""
    averaging = options.get("averaging", "default")
    if averaging not in ("default", "weight", "world"):
        raise errors.InvalidArgument(
            f"averaging={averaging!r} on a solo_group(): 'weight' makes the mean of the ranks that "
            "are in a step, 'world' that times their share of all")
    replica = Replica(ddp_model.module, set(getattr(ddp_model, "parameters_to_ignore", ())))
    name = _settings.job_name(job)
    worker = _join(_specs(named) + extra_tensors(replica), address, name, next_number(name),
                   rank=member[0], world_size=member[1], **options)
    try:
        if not worker.must_resync:
            replica.broadcast(worker, timeout=options.get("join_timeout", 60.0))
        return SoloAttachment(worker, named, group, weight, replica, device)
    except BaseException:
        worker.close()
        raise


def _registered_parameters(ddp_model):
    """(name, parameter) of what DDP reduces and has elements, in registration order: the same on
    every rank."""
    ignored = set(getattr(ddp_model, "parameters_to_ignore", ()))
    return [(key, p) for key, p in ddp_model.module.named_parameters()
            if p.requires_grad and key not in ignored and p.numel() != 0]


def _check_parameters(ddp_model, named):
    if not named:
        raise errors.InvalidArgument(
            "no parameter that DDP averages has elements: there is nothing to sum")
    for key, parameter in named:
        if parameter.dtype not in _DTYPES:
            raise errors.InvalidArgument(
                f"parameter '{key}' has type {str(parameter.dtype).replace('torch.', '')}; Sluice "
                "sums float32, float16 and bfloat16: convert it, for example with model.float()")
    refuse_sparse(ddp_model.module, why=", which Sluice does not sum")


def _follows(*kinds):
    """Decorator of a class: methods of these that it does not have do nothing in it."""
    def complete(cls):
        for kind in kinds:
            for name, method in vars(kind).items():
                if inspect.isfunction(method) and name[0] != "_" and not hasattr(cls, name):
                    setattr(cls, name, functools.wraps(method)(lambda self, *args, **kwargs: None))
        return cls
    return complete


@_follows(Attachment, Overlap, SoloAttachment)
class Disabled:
    """What attach() and overlap() return under SLUICE_DISABLE=1: DDP works as if they had not
    been called.

    It has the methods of an Attachment, an Overlap and a SoloAttachment, without effect. A Loop
    over it runs the optimizer after each body, and does no more.
    """

    job = None
    weight = 1
    reason = "SLUICE_DISABLE is set"
    overlapped_steps = 0

    def stats(self):
        return {}

    def state_dict(self):
        return {}

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        pass
