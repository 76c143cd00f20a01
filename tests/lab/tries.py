"""For tests that compare times: one in which the machine stalled is tried again."""

from __future__ import annotations

import functools

TRIES = 3


class TooLate(AssertionError):
    """Something took too long; nothing else was wrong."""


def within(took_s: float, limit_s: float, about: object = "") -> None:
    if took_s >= limit_s:
        raise TooLate(f"took {took_s:.2f} s, not {limit_s:.2f}: {about}")


def about_time(test):
    """Decorates a test that fails when it was too late as often as TRIES times in a row."""

    @functools.wraps(test)
    def tried(*args, **kwargs):
        for _ in range(TRIES - 1):
            try:
                return test(*args, **kwargs)
            except TooLate as late:
                print(f"tried again: {late}")
        return test(*args, **kwargs)

    return tried
