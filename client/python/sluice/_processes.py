"""Child processes that cannot outlive the one that started them.

Each child leads a process group of its own, so that whatever it starts can be stopped with it, and
the kernel kills it if this process disappears without a word. Used by `launch` and `demo`, from the
main thread.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import time

_PR_SET_PDEATHSIG = 1
_SIOCGIFADDR = 0x8915


def free_port(host="127.0.0.1"):
    """A TCP port that nothing uses at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def interface_towards(host):
    """Name of the interface whose first IPv4 address this machine has towards `host`, or None.

    Sends nothing; a name of a host is looked up.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one without an address
                request = struct.pack("40s", name.encode())
                if fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24] == own:
                    return name
    return None


def signal_name(number):
    """'SIGKILL' for 9; the number as text when it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(status):
    """Words for a Popen return code: 'exited with status 3', 'was killed by SIGKILL'."""
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    return f"exited with status {status}"


def _die_with_parent():
    # Runs in the child between fork and exec. Without prctl (not Linux) the orderly paths remain.
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass


class Child:
    """One child process with its own process group. Not thread-safe."""

    def __init__(self, argv, **popen_options):
        self.popen = subprocess.Popen(
            argv, start_new_session=True, preexec_fn=_die_with_parent, **popen_options)
        self.pid = self.popen.pid

    def poll(self):
        """The return code once the process has ended (None before); then its group is gone too.

        The group is killed before the leader is reaped: until then the kernel cannot give its
        number to a stranger.
        """
        if self.popen.returncode is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return None
            self._signal_group(signal.SIGKILL)
            self.popen.wait()
        return self.popen.returncode

    def send(self, number):
        """Signals the whole group, unless it has ended."""
        if self.poll() is None:
            self._signal_group(number)

    def _signal_group(self, number):
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # only a zombie is left in the group


def stop_all(children, grace_s=3.0, first_signal=signal.SIGTERM):
    """Ends all children: `first_signal`, then SIGKILL to those alive after `grace_s` seconds.

    Returns when none is left. Blocks for at most `grace_s` plus the kernel's time to kill.
    """
    for child in children:
        child.send(first_signal)
    deadline = time.monotonic() + grace_s
    while any(child.poll() is None for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child in children:
        child.send(signal.SIGKILL)
    for child in children:
        while child.poll() is None:
            time.sleep(0.005)
