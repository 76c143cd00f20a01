"""What a job is joined with: arguments first, the launcher's environment second."""

import difflib
import numbers
import os
from dataclasses import dataclass, field, fields
from typing import Optional, Union

from sluice import _abi, _elastic, _policy, _settings, errors

_MOST_S = 86_400.0  # of a timeout


def checked_timeout(name, seconds):
    """`seconds` as a timeout can be; raises InvalidArgument."""
    if not isinstance(seconds, numbers.Real) or not 0.001 <= seconds <= _MOST_S:
        raise errors.InvalidArgument(
            f"{name}={seconds!r}: must be seconds, from 0.001 to {_MOST_S:g}")
    return seconds


# Conversions of a keyword: functions of its name, its value, and the C field's default.

def _whole(name, value, _default):
    return _settings.whole(f"{name}={value!r}", value)


def _same(_name, value, _default):
    return value


def _flag(_name, value, default):
    return default if value is None else int(value)


def _number(kind):
    return lambda name, value, default: _policy.number(name, value, kind, default)


def _word(enumeration):
    return lambda name, value, _default: _policy.choice(name, value, enumeration)


def _milliseconds(name, value, _default):
    return int(1000 * checked_timeout(name, value))


def _milliseconds_or_none(name, value, default):
    return 0 if value == 0 else _milliseconds(name, value, default)


def _path(_name, value, default):
    return default if value is None else os.fsencode(value)


def _option(path, convert, default=None):
    """A keyword for the field of sluice_options at `path`, such as "prune.fraction"."""
    return field(default=default, metadata={"path": path, "convert": convert})


def _holder(struct, path):
    """The struct that holds the field at `path`, and the field's name in it."""
    *groups, name = path.split(".")
    for group in groups:
        struct = getattr(struct, group)
    return struct, name


@dataclass(frozen=True)
class Options:
    """The options of `sluice.Job`, which takes them as keywords.

    job          name of the job, default SLUICE_JOB or 'default'.
    rank, world_size
                 default RANK and WORLD_SIZE, else SLURM's; over bcube://n,k else the rank of the
                 digits, and n^k.
    secret       of the appliance, default SLUICE_SECRET.
    local_address
                 source IP address, default SLUICE_LOCAL_ADDRESS; else the kernel chooses.
    run_id       number or name of this launch, equal on all ranks, new for each launch; default
                 SLUICE_RUN_ID, or what torchrun's and SLURM's variables say. Where rank 0 can tell
                 the others it draws one: attach() by DDP's process group, a job by the store of
                 torchrun's agents.
    ordinal      0 for the first job of this process, 1 for a second model, ...
    averaging    'weight': sum of the inputs / sum of the weights, an input being a sum over
                 `weight` samples (with weight 1 everywhere: the mean); 'world': 'weight' times the
                 ranks in the sum / the live ranks, so that a step of k counts k/n; 'sum';
                 'default': 'world' with late='requeue', else 'weight'. Equal on all ranks, or the
                 join is refused.
    allow_nil    end_step() may leave tensors out.
    policy       how the appliance chooses k, the number of ranks whose contributions complete a
                 step: 'sync' (all), 'fixed' (`k`), 'saina' (starts at `k`, grows when the signs of
                 the summed gradient keep flipping), 'ramp' (grows over `planned_steps`), 'goodput'
                 (of the most progress per second). Default SLUICE_POLICY, else the appliance's
                 configuration. The effective policy is equal on all ranks, or the join is refused;
                 `policy` of the job tells it. The options below need it, and have variables too:
                 SLUICE_K, SLUICE_LATE, ...
    k            1 to world_size; for 'fixed', which needs it, and 'saina' (default 1).
    late         what happens to a gradient that is ready after its step is complete: 'drop' (it is
                 lost, default) or 'requeue' (it goes, once, into the step that is open then).
    sign_threshold, count_threshold, signs, round_steps
                 for 'saina': the share of signs that must have flipped, 0 to 1; how often, a number
                 or "k"; 'all' signs or 'one-in-32'; steps of a detection round.
    planned_steps
                 for 'ramp', which needs it: length of the training in steps.
    max_staleness
                 for 'requeue': a gradient that is more steps late is discarded; 0: no bound.
    schedule     which of the waiting packets is sent next: 'strict' (default: of the most urgent
                 tensor, decided for every packet), 'credit' (pieces of a tensor are sent as a
                 whole), 'prophet' (blocks of tensors that can be sent before the next one is
                 expected to be ready), 'fifo' (as submitted). Default SLUICE_SCHEDULE. Ranks may
                 differ in it.
    unit_bytes, credit_bytes
                 for 'credit': most bytes of a piece, above 0, default 1 MiB; the next piece begins
                 while fewer than `credit_bytes` are in flight, at least unit_bytes, default 4 MiB.
                 A credit below the link's rate times its round trip leaves the link idle. Default
                 SLUICE_UNIT_BYTES, SLUICE_CREDIT_BYTES.
    reproducible True: the appliance adds in the order of ranks, so the same inputs give the same
                 bits, whatever the network does; costs the appliance memory for world_size - 1 more
                 inputs of a step. Refused, with the numbers, where it has less, and for policies of
                 k < n. Default: whether SLUICE_REPRODUCIBLE is 1. Equal on all ranks. The
                 appliance's configuration may ask for it as well.
    wire         the format in which float32 tensors travel, both ways: 'float32' (default),
                 'float16', 'bfloat16', 'int8' (with a scale per packet). The rounding error stays
                 with this rank and is added to the next gradient (error feedback; a float of memory
                 per element); averages are rounded without bias. Default SLUICE_WIRE. Equal on all
                 ranks.
    prune        which elements of float32 tensors are sent: 'off' (default: all), 'static' (of each
                 tensor `prune_fraction`, those of the greatest magnitudes), 'sampled' (as 'static',
                 by a threshold from 1 % of the elements), 'sigma' (above `prune_sigmas` standard
                 deviations), 'dynamic' (above the mean of the magnitudes above the last threshold,
                 three times a step), 'dynamic_raw' (above that mean, once a step, which soon sends
                 nothing; to reproduce published results). The other elements are added to the next
                 gradient until they are sent (error feedback; a float of memory per element).
                 Default SLUICE_PRUNE. Equal on all ranks, or the join is refused. Refused with the
                 policies 'saina', 'ramp' and 'goodput', which read whole gradients.
    prune_momentum
                 above 0: momentum correction. A rank prunes its velocity (prune_momentum * the last
                 velocity + gradient) instead of its gradient, and the velocity of a sent element
                 starts again at 0. Averages then contain the momentum, of all float32 tensors: give
                 the optimizer none. Costs a second float of memory per element. Default
                 SLUICE_PRUNE_MOMENTUM, else 0.
    prune_fraction, prune_sigmas, prune_warmup, prune_min_elems
                 for 'static' and 'sampled': the fraction, default 0.01, and for how many steps each
                 1/4, 1/16, 1/64, ... are sent first, default 0 (a run that goes on from a
                 checkpoint needs none); for 'sigma': default 3; tensors of fewer elements are sent
                 whole, default 1024. They have variables too: SLUICE_PRUNE_FRACTION, ...
    memory       where gradients are, and how they are copied: 'host' (default); 'device' (on a CUDA
                 device, in the fastest way that works), or one way of it: 'pinned' (copy engines),
                 'pinned_zero_copy' (kernels), 'gpudirect' (refused so far). attach() looks at the
                 parameters: there it only says which way. Needs libsluice_cuda.so and NVIDIA's
                 driver, and page-locked host memory for one copy of all tensors. Default
                 SLUICE_MEMORY.
    device       with another memory than the host's: the device, counted from 0.
    trace        folder for a Chrome trace of this rank, made when it is missing; '' for none.
                 Default SLUICE_TRACE, else none. `python3 -m sluice trace FOLDER` joins the ranks'
                 files into one.
    mtu          of the path to the appliance, bytes of an IP packet; default SLUICE_MTU, else 1500.
    chunk_bytes  gradient bytes per packet, a multiple of 64; 0: the most that mtu allows.
    connect_timeout, join_timeout, silence_timeout, stall_report
                 seconds: until the appliance must have answered; until all ranks must have
                 joined; until a silent appliance is given up; until a step without progress, or
                 ranks that do not come, are reported (a warning of the logger 'sluice').
    restart_timeout
                 seconds that a job over udp:// waits for an appliance that is lost; when it is
                 back, or at the next of its addresses, the step or the operations go on, with the
                 same bits, and calls only wait; a store with the newest values that a rank has
                 read. Costs memory for all gradients as they travel, of a store for two copies of
                 the parameters. 0: such a job ends after silence_timeout, as others do.
    """

    job: Optional[str] = None
    rank: Optional[int] = None
    world_size: Optional[int] = None
    secret: Optional[str] = None
    run_id: Union[int, str, None] = None
    ordinal: int = _option("ordinal", _same, 0)
    averaging: str = _option("averaging", _word(_abi.AVERAGING), "default")
    allow_nil: bool = _option("allow_nil", _flag, True)
    local_address: Optional[str] = None
    mtu: Optional[int] = _option("mtu", _number(int))
    chunk_bytes: int = _option("chunk_bytes", _whole, 0)
    connect_timeout: float = _option("timeouts.connect_ms", _milliseconds, 4.0)
    join_timeout: float = _option("timeouts.join_ms", _milliseconds, 60.0)
    silence_timeout: float = _option("timeouts.silence_ms", _milliseconds, 4.0)
    stall_report: float = _option("timeouts.stall_report_ms", _milliseconds, 5.0)
    restart_timeout: float = _option("timeouts.restart_ms", _milliseconds_or_none, 60.0)
    # The policy's: sluice_set_policy() takes them as text.
    policy: Optional[str] = None
    k: Optional[int] = None
    late: Optional[str] = None
    sign_threshold: Optional[float] = None
    count_threshold: Union[int, str, None] = None
    signs: Optional[str] = None
    round_steps: Optional[int] = None
    planned_steps: Optional[int] = None
    max_staleness: Optional[int] = None
    schedule: Optional[str] = _option("schedule.kind", _word(_abi.SCHEDULE_KIND))
    unit_bytes: Optional[int] = _option("schedule.unit_bytes", _number(int))
    credit_bytes: Optional[int] = _option("schedule.credit_bytes", _number(int))
    reproducible: Optional[bool] = _option("reproducible", _flag)
    wire: Optional[str] = _option("wire", _word(_abi.WIRE))
    prune: Optional[str] = _option("prune.rule", _word(_abi.PRUNE_RULE))
    prune_fraction: Optional[float] = _option("prune.fraction", _number(float))
    prune_sigmas: Optional[float] = _option("prune.sigmas", _number(float))
    prune_warmup: Optional[int] = _option("prune.warmup", _number(int))
    prune_min_elems: Optional[int] = _option("prune.min_elems", _number(int))
    prune_momentum: Optional[float] = _option("prune.momentum", _number(float))
    memory: Optional[str] = _option("device.memory", _word(_abi.MEMORY))
    device: int = _option("device.index", _same, 0)
    trace: Optional[str] = _option("trace_dir", _path)

    @classmethod
    def of(cls, keywords):
        """Options with these; raises InvalidArgument for a name that there is not."""
        known = cls.__dataclass_fields__
        for name in keywords:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ": see sluice.Options"
                raise errors.InvalidArgument(f"there is no option {name!r}{hint}")
        return cls(**keywords)

    def struct(self, library, *, rank, world_size, job_name, **resolved):
        """sluice_options with these; `resolved`: more of its fields, by their paths."""
        options = _abi.sized(_abi.Options)
        library.sluice_options_init(options)
        local = _settings.local_address(self.local_address, rank)
        run_id = _elastic.run_id(self.run_id, f"{job_name.decode()}/{self.ordinal}", rank,
                                 world_size, checked_timeout("join_timeout", self.join_timeout))
        resolved.update(
            rank=rank, world_size=world_size, job_name=job_name, run_id=run_id,
            secret=(_settings.secret(self.secret) or "").encode(),
            local_address=local.encode() if local else None)
        for option in fields(self):
            if option.metadata:
                path = option.metadata["path"]
                resolved[path] = option.metadata["convert"](
                    option.name, getattr(self, option.name), getattr(*_holder(options, path)))
        for path, value in resolved.items():
            setattr(*_holder(options, path), value)
        _policy.apply(library, options, vars(self))
        return options
