"""Sluice: a software switch that sums gradients. The Python client.

    sluice.torch.attach(ddp_model)     one line in a PyTorch DDP script (import sluice.torch)
    sluice.Job(...)                    the same sums without PyTorch
    sluice.Session(...)                operations of any length among groups of ranks
    sluice.Store(...)                  parameters that the appliance keeps, with bounded staleness
    python3 -m sluice                  doctor, launch, top, demo

Importing this package needs neither torch nor NumPy nor DPDK; libsluice is loaded at first use.
"""

from sluice import _exit_status
from sluice._abi import VERSION as __version__
from sluice._options import Options
from sluice._policy import Policy
from sluice._values import Clocks, LeftBehind, Result, State, StepReport
from sluice.errors import (Behind, Busy, Closed, Error, Exhausted, Forked, Internal, Interrupted,
                           InvalidArgument, IoError, LibraryNotFound, NotFound, PeerLost, Refused,
                           TimedOut, Unreachable)
from sluice.groups import Group, Session, Ticket
from sluice.job import Job
from sluice.store import Store

__all__ = [
    "Behind", "Busy", "Clocks", "Closed", "Error", "Exhausted", "Forked", "Group", "Internal",
    "Interrupted", "InvalidArgument", "IoError", "Job", "LibraryNotFound", "NotFound", "Options",
    "PeerLost", "Policy", "Refused", "Result", "Session", "State", "StepReport", "Store", "Ticket",
    "TimedOut", "Unreachable", "__version__"]

_exit_status.report_to_launcher()
