"""How a job chooses k, and what it does with late gradients: from arguments and environment into
the options of a join, and back from what the appliance has made of them.

Knows no job. Ranges that depend on the world size are left to the library.
"""

import os
from typing import NamedTuple, Union

from sluice import _abi, errors

_SIGNS = {"all": 1, "one-in-32": 32}
_NAMES = ("k", "late", "sign_threshold", "count_threshold", "signs", "round_steps",
          "planned_steps", "max_staleness")


class Policy(NamedTuple):
    """The effective options of a job; see sluice.Job for their meaning. `Job.policy` has one."""

    policy: str
    k: int
    late: str
    sign_threshold: float
    count_threshold: Union[int, str]  # or "k"
    signs: str
    round_steps: int
    planned_steps: int
    max_staleness: int  # steps; 0: no bound
    window_steps: int  # steps that the appliance keeps for stragglers, with the open one
    resync_hold_s: float  # how long the others wait, at most, for a rank that resyncs
    tolerates_stragglers: bool  # a step can be complete without some of the ranks


def _one_of(name, value, table):
    if value not in table:
        raise errors.InvalidArgument(f"{name}={value!r}: must be one of {', '.join(table)}")
    return table[value]


def _whole(name, value):
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 32 or number != float(value):
        raise errors.InvalidArgument(f"{name}={value!r}: must be a whole number from 0 to 2^32 - 1")
    return number


def _permille(name, value):
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise errors.InvalidArgument(f"{name}={value!r}: must be 0 to 1, a share of the signs")
    return round(share * 1000)


def _field(name, value):
    """(field of the C struct, its number)."""
    if name == "late":
        return "late", _one_of(name, value, _abi.LATE_MODES)
    if name == "signs":
        return "sign_stride", _one_of(name, value, _SIGNS)
    if name == "sign_threshold":
        return "sign_threshold_permille", _permille(name, value)
    if name == "count_threshold":
        return name, 0 if value == "k" else _whole(name, value)
    return name, _whole(name, value)


def fields(policy, given, env=os.environ):
    """The policy's fields of sluice_options as a dict; those not given keep their defaults.

    `given` maps option names to values, None for those that the environment may fill in. {} when
    nothing is said: the appliance's configuration decides.
    """
    policy = env.get("SLUICE_POLICY") or None if policy is None else policy
    values = {}
    for name in _NAMES:
        value = given.get(name)
        if value is None:
            value = env.get("SLUICE_" + name.upper()) or None
        if value is not None:
            values[name] = value
    if policy is None:
        if values:
            name, value = next(iter(values.items()))
            raise errors.InvalidArgument(
                f"{name}={value!r} without a policy: give policy=... or set SLUICE_POLICY, or "
                "leave both to the appliance's configuration")
        return {}
    found = {"policy": _one_of("policy", policy, _abi.POLICIES)}
    found.update(_field(name, value) for name, value in values.items())
    return found


def _name_of(table, number):
    return next((name for name, value in table.items() if value == number), str(number))


def from_info(info):
    """A Policy of what sluice_policy() has told."""
    return Policy(
        policy=_name_of(_abi.POLICIES, info.policy), k=info.k,
        late=_name_of(_abi.LATE_MODES, info.late),
        sign_threshold=info.sign_threshold_permille / 1000,
        count_threshold=info.count_threshold or "k", signs=_name_of(_SIGNS, info.sign_stride),
        round_steps=info.round_steps, planned_steps=info.planned_steps,
        max_staleness=info.max_staleness, window_steps=info.window_steps,
        resync_hold_s=info.resync_hold_ms / 1000,
        tolerates_stragglers=bool(info.tolerates_stragglers))
