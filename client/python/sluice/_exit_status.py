"""Ends a process that is exiting already with a status that is not 0.

Python ignores what exit functions raise. But it flushes sys.stdout after them, and its status is
120 when that fails (see sys.exit()); so the other exit functions run as ever, unlike with
os._exit().
"""

import sys


class _Failing:
    """sys.stdout, but for a flush() that raises `error` once it is done."""

    closed = False

    def __init__(self, stream, error):
        self._stream, self._error = stream, error

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def flush(self):
        if self._stream is not None:
            self._stream.flush()
        raise self._error.with_traceback(None)

    def __repr__(self):
        return "the end of this process, whose exit status it makes 120"


def fail(error):
    """To be called by an exit function. Python prints `error`."""
    sys.stdout = _Failing(sys.stdout, error)
