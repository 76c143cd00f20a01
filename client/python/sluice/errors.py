"""Exceptions: `Error` and one subclass for each cause.

The text is the library's own: one line with the cause, the values involved and the remedy.
"""


class Error(RuntimeError):
    """Base of all errors of this package; a RuntimeError, as torch.distributed's are. `status` is
    the number in sluice.h, 0 if it has none."""

    status = 0


class LibraryNotFound(Error, ImportError):
    """libsluice is missing, does not load, or is of another version than this package."""


class InvalidArgument(Error, ValueError):
    """A value that the caller gave is wrong."""

    status = 1


class NotFound(Error):
    """A host name, a socket path or a plug-in does not exist."""

    status = 2


class Refused(Error):
    """The appliance said no: wrong secret, another layout or world size, a rank that is taken."""

    status = 3


class Unreachable(Error, ConnectionError):
    """Nothing answers at the appliance's address, or it has stopped to answer."""

    status = 4


class TimedOut(Error, TimeoutError):
    """The call's own timeout has passed; what it waited for goes on. At join: ranks are missing."""

    status = 5


class PeerLost(Error):
    """Another rank died, fell silent or left; the text names it."""

    status = 6


class Exhausted(Error):
    """A limit would be exceeded; the text has the numbers."""

    status = 7


class IoError(Error):
    """The operating system or DPDK said no."""

    status = 8


class Closed(Error):
    """This worker has left the job."""

    status = 9


class Busy(Error):
    """The tensor's previous submission, or another collective, is not done."""

    status = 10


class Interrupted(Error):
    """The call was interrupted; what it waited for goes on."""

    status = 11


class Forked(Error):
    """The job belongs to the parent process: join again in the child."""

    status = 12


class Internal(Error):
    """A bug in libsluice."""

    status = 13


class Behind(Error):
    """This rank has fallen out of the appliance's window, or has returned to a running job: it
    needs another rank's state, see Job.resync() and sluice.torch.Loop."""

    status = 14


_BY_STATUS = {cls.status: cls for cls in Error.__subclasses__() if cls.status}


def make(status, text):
    """The exception for a status of the C interface."""
    cls = _BY_STATUS.get(status, Internal)
    return cls(text or cls.__doc__)
