"""How a job chooses k, what it does with late gradients, and which packet leaves next: from
arguments and environment into the options of a join, and back from what the appliance has made of
them.

Knows no job. What could be read in two ways, or would be ignored without a word, is refused here,
in the words of whoever gave it: an argument's name or a variable's.
"""

import difflib
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


class _Given(NamedTuple):
    """A value, and where it is from."""

    name: str  # of the argument
    value: object
    from_environment: bool

    def __str__(self):
        if self.from_environment:
            return f"{_variable(self.name)}={self.value!r} in the environment"
        return f"{self.name}={self.value!r}"


def _variable(name):
    return "SLUICE_" + name.upper()


def _bad(given, rule):
    return errors.InvalidArgument(f"{given}: {rule}")


def _one_of(given, table):
    if given.value not in table:
        near = difflib.get_close_matches(str(given.value), table, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise _bad(given, f"must be one of {', '.join(table)}{hint}")
    return table[given.value]


def _whole(given, least=0, most=(1 << 32) - 1, which=""):
    try:
        number = int(given.value)
    except (TypeError, ValueError):
        number = -1
    if not least <= number <= most or number != float(given.value):
        raise _bad(given, f"must be a whole number from {least} to {most}{which}")
    return number


def _permille(given):
    try:
        share = float(given.value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise _bad(given, "must be 0 to 1, a share of the signs")
    return round(share * 1000)


def _field(given, world_size):
    """(field of the C struct, its number)."""
    name = given.name
    if name == "k":
        return name, _whole(given, 1, world_size, ", the world size")
    if name == "late":
        return "late", _one_of(given, _abi.LATE_MODES)
    if name == "signs":
        return "sign_stride", _one_of(given, _SIGNS)
    if name == "sign_threshold":
        return "sign_threshold_permille", _permille(given)
    if name == "count_threshold":
        return name, 0 if given.value == "k" else _whole(given)
    return name, _whole(given, least=1 if name == "round_steps" else 0)


def _look_up(name, value, env):
    """A _Given, or None when neither the caller nor the environment says anything."""
    if value is not None:
        return _Given(name, value, False)
    text = env.get(_variable(name))
    return _Given(name, text, True) if text else None


def _check_sense(policy, given, found):
    """Refuses what the policy needs and lacks, and what it would not look at."""
    if policy.value == "fixed" and "k" not in given:
        raise _bad(policy, "needs k, the ranks that complete a step: give k=... or set SLUICE_K")
    if policy.value == "ramp" and not found.get("planned_steps"):
        raise _bad(policy, "needs the length of the training in steps: give planned_steps=... or "
                           "set SLUICE_PLANNED_STEPS")
    if "k" in given and policy.value not in ("fixed", "saina"):
        raise _bad(given["k"], f"is not used by policy {policy.value!r}: leave it out, or use "
                               "'fixed' or 'saina'")
    late = given["late"].value if "late" in given else "drop"
    if late == "drop" and found.get("max_staleness"):
        raise _bad(given["max_staleness"], "needs late='requeue' (SLUICE_LATE=requeue): with "
                                           "'drop' every late gradient is lost")


def fields(policy, given, env=os.environ, *, world_size):
    """The policy's fields of sluice_options as a dict; those not given keep their defaults.

    `given` maps option names to values, None for those that the environment may fill in. {} when
    nothing is said: the appliance's configuration decides.
    """
    policy = _look_up("policy", policy, env)
    known = {name: _look_up(name, given.get(name), env) for name in _NAMES}
    known = {name: one for name, one in known.items() if one is not None}
    if policy is None:
        if known:
            raise _bad(next(iter(known.values())),
                       "is not used without a policy: give policy=... or set SLUICE_POLICY, or "
                       "leave both to the appliance's configuration")
        return {}
    found = {"policy": _one_of(policy, _abi.POLICIES)}
    found.update(_field(one, world_size) for one in known.values())
    _check_sense(policy, known, found)
    return found


def schedule(given, env=os.environ):
    """The number of the schedule that was asked for; strict when nobody says anything."""
    asked = _look_up("schedule", given, env)
    return _abi.SCHEDULES["strict"] if asked is None else _one_of(asked, _abi.SCHEDULES)


def _name_of(table, number):
    return next((name for name, value in table.items() if value == number), str(number))


def from_info(info):
    """A Policy of what sluice_get_policy() has told."""
    return Policy(
        policy=_name_of(_abi.POLICIES, info.policy), k=info.k,
        late=_name_of(_abi.LATE_MODES, info.late),
        sign_threshold=info.sign_threshold_permille / 1000,
        count_threshold=info.count_threshold or "k", signs=_name_of(_SIGNS, info.sign_stride),
        round_steps=info.round_steps, planned_steps=info.planned_steps,
        max_staleness=info.max_staleness, window_steps=info.window_steps,
        resync_hold_s=info.resync_hold_ms / 1000,
        tolerates_stragglers=bool(info.tolerates_stragglers))
