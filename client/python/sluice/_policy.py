"""How a job chooses k, what it does with late gradients, which packet leaves next, and what is
pruned: from arguments and environment into the options of a join, and back from what the appliance
has made of them.

Knows no job and no rule: the library says what a policy's option may be, here stands who gave it,
an argument or a variable.
"""

import ctypes
import difflib
import os
from typing import NamedTuple, Union

from sluice import _abi, errors


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
    averaging: str  # what outputs hold by the job's option: "weight", "world" or "sum"


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


def _look_up(name, value, env):
    """A _Given, or None when neither the caller nor the environment says anything."""
    if value is not None:
        return _Given(name, value, False)
    text = env.get(_variable(name))
    return _Given(name, text, True) if text else None


def names(library):
    """What the library calls a policy's options, the policy itself first."""
    return _abi.names(library, "sluice_policy_option_name")


def apply(library, options, given, env=os.environ):
    """Sets the policy's fields of sluice_options, by the library's rules; those not given keep
    their defaults.

    `given` maps option names to values, None for those that the environment may fill in. When
    nothing is said the appliance's configuration decides.
    """
    found = [_look_up(name, given.get(name), env) for name in names(library)]
    texts = [None if one is None else str(one.value).encode() for one in found]
    wrong = ctypes.c_size_t()
    if library.sluice_set_policy(ctypes.byref(options), (ctypes.c_char_p * len(texts))(*texts),
                                 len(texts), ctypes.byref(wrong)) == _abi.OK:
        return
    rule = library.sluice_last_error(None).decode()
    if found[wrong.value] is not None:
        raise _bad(found[wrong.value], rule)
    name = names(library)[wrong.value]
    raise _bad(found[0], f"needs {name}: give {name}=... or set {_variable(name)}; it {rule}")


def choice(name, given, table, env=os.environ):
    """The number of the word that was asked for; the first one when nobody says anything."""
    asked = _look_up(name, given, env) or _Given(name, next(iter(table)), False)
    if asked.value in table:
        return table[asked.value]
    near = difflib.get_close_matches(str(asked.value), table, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise _bad(asked, f"must be one of {', '.join(table)}{hint}")


def number(name, given, kind, default, env=os.environ):
    """The number that was asked for, an int or a float as `kind` says."""
    asked = _look_up(name, given, env)
    if asked is None:
        return default
    try:
        value = kind(asked.value)
    except (TypeError, ValueError):
        value = None
    if value is None or value != float(asked.value) or value < 0:
        whole = "whole number" if kind is int else "number"
        raise _bad(asked, f"must be a {whole} that is not negative")
    return value


def _value(text):
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def from_info(library, info):
    """A Policy of what sluice_get_policy() has told."""
    text = ctypes.create_string_buffer(64)
    values = {}
    for index, name in enumerate(names(library)):
        library.sluice_get_policy_text(ctypes.byref(info), index, text, len(text))
        values[name] = _value(text.value.decode())
    return Policy(**values, window_steps=info.window_steps,
                  resync_hold_s=info.resync_hold_ms / 1000,
                  tolerates_stragglers=bool(info.tolerates_stragglers),
                  averaging=_abi.word(_abi.AVERAGING, info.averaging))
