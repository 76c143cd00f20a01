"""The C interface: what _header.py has of sluice.h, and what every call of it needs."""

import functools
from ctypes import sizeof

from sluice._header import *  # noqa: F403
from sluice._header import FUNCTIONS, STATUS

OK = STATUS["ok"]
TIMED_OUT = STATUS["timed_out"]
INTERRUPTED = STATUS["interrupted"]


def declare(library):
    """Gives the library's functions their types. AttributeError when one is missing."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def sized(struct):
    """A zeroed struct with its size filled in."""
    value = struct()
    value.struct_size = sizeof(struct)
    return value


def word(enumeration, number):
    """The word of an enumeration's number."""
    return next(word for word, value in enumeration.items() if value == number)


@functools.cache
def names(library, function):
    """What the library's function tells for 0, 1, ... until it returns NULL."""
    found = []
    while name := getattr(library, function)(len(found)):
        found.append(name.decode())
    return tuple(found)
