"""How a process says why it ends: its exit status, and a word for the launcher.

Python ignores what exit functions raise. But it flushes sys.stdout after them, and its status is
120 when that fails (see sys.exit()); so the other exit functions run as ever, unlike with
os._exit().

`launch` gives each rank the name of a file in SLUICE_LAUNCH_REPORT. The class of the exception that
ends the rank stands there afterwards, such as PeerLost: the rank is a victim, not the cause.
"""

import contextlib
import os
import sys

REPORT = "SLUICE_LAUNCH_REPORT"


def report_to_launcher():
    """Has the exception that ends this process reported, where a launcher asks for it."""
    if REPORT in os.environ:
        shown = sys.excepthook

        def hook(kind, error, trace):
            _report(kind)
            shown(kind, error, trace)
        sys.excepthook = hook


def _report(kind):
    with contextlib.suppress(KeyError, OSError), open(os.environ[REPORT], "w") as file:
        file.write(kind.__name__)


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
    _report(type(error))
    sys.stdout = _Failing(sys.stdout, error)
