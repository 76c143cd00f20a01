"""What a Job is told and tells, as values; and ctypes' forms of them."""

import ctypes
import operator
from typing import NamedTuple, Optional

from sluice import _abi, errors


class Result(NamedTuple):
    """What is known about a finished tensor."""

    step: int  # that the output belongs to, from 1
    weight: int  # total weight of the contributions in the output
    absent: bool  # no rank contributed data: the output is untouched
    non_finite: bool  # some element of the sum is NaN or infinite
    latency_s: float  # from submission to completion


class StepReport(NamedTuple):
    """What is known about a finished step as a whole."""

    step: int  # from 1
    k: int  # contributions that completed its chunks; the least of them, 0: one has none
    members: tuple  # ranks that are in every chunk of the sum
    partly: tuple  # ranks that are in some chunks but not in all
    weight: int  # the effective batch: total weight in the sum; the least of its chunks, as k
    counted: bool  # this rank is in every chunk
    share: float  # of the live ranks, in its first chunk that has any: k/n. Equal on all ranks; 0:
    # no chunk has any, and all gradients are absent


def checked_weight(weight):
    """`weight` as a submission can have it; raises InvalidArgument."""
    try:
        number = operator.index(weight)
    except TypeError:
        number = -1
    if not 0 <= number <= 0xFFFF_FFFF:
        raise errors.InvalidArgument(
            f"weight={weight!r}: must be a whole number of samples from 0 to 2^32 - 1")
    return number


class LeftBehind(NamedTuple):
    """What pruning has kept from leaving."""

    elem_count: int  # elements of residuals that are not zero
    norm: float  # the root of the sum of their squares


class Turn(NamedTuple):
    """What a rank has to do next: see Job.next_turn()."""

    kind: str  # "compute", "catch_up", "apply", "save" or "load"
    step: int
    data: Optional[bytearray]  # of "load"


class State(NamedTuple):
    """Another rank's state, from Job.resync()."""

    step: int  # the last one that it contains
    data: bytearray  # what the other rank gave to send_state()


class Tensor(NamedTuple):
    name: str
    elem_count: int
    dtype: str
    exact: bool = False  # travels as it is, whatever `wire` and `prune` say
    dense: bool = False  # is never pruned
    begins_layer: bool = False  # of a Store


class Clocks(NamedTuple):
    """The clocks of a Store's layer, as far as this worker has heard."""

    pushed: int  # this worker's last iteration
    held: int  # everybody's iterations up to this one are in the copy pulled last
    clock: int  # ... are in the store; a hint, as are the following
    laggards: int  # members whose push the clock waits for
    parked: int  # pulls that wait for that
    kept: int  # the store has outlived all of its workers: see Store.kept


def ranks_of(words):
    return {64 * index + bit for index, word in enumerate(words) if word
            for bit in range(64) if word >> bit & 1}


def dtype_name(dtype, tensor):
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    name = name.replace("torch.", "")
    if name not in _abi.DTYPE:
        raise errors.InvalidArgument(
            f"tensor '{tensor}' has dtype {name}; Sluice sums {', '.join(_abi.DTYPE)}")
    return name


def copied(struct):
    """The bytes that a struct with `data` and `bytes` points to."""
    data = bytearray(struct.bytes)
    if data:
        ctypes.memmove((ctypes.c_char * len(data)).from_buffer(data), struct.data, len(data))
    return data
