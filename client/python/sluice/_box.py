"""A private appliance on this machine, for `launch --local-box`, `demo` and `plan`.

One vhost-user port for each worker: no root, no network card, no hugepages. Main thread only.
"""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sluice._processes import Child, describe_exit, free_port, stop_all

ADDRESS = "10.77.0.1"  # seen by the workers' sockets alone
PORT = 7700
READY_TIMEOUT_S = 30.0


class BoxError(Exception):
    """The appliance cannot be found or started; the text says why and what to do."""


def find_appliance(build_dir=None):
    """The path of sluiced: in the build folder, in the source tree's, or on the PATH.

    Raises BoxError, which names every place and the ways to get one.
    """
    places = []
    source_tree = Path(__file__).resolve().parent.parent.parent.parent
    if build_dir:
        places = [Path(build_dir) / "dataplane" / "sluiced", Path(build_dir) / "sluiced"]
    elif (source_tree / "CMakeLists.txt").exists():
        places = [source_tree / "build" / "dataplane" / "sluiced"]
    for place in places:
        if place.is_file():
            return str(place.resolve())
    installed = shutil.which("sluiced")
    if installed and not build_dir:
        return installed
    looked = [f"at {place}" for place in places] + ([] if build_dir else ["on the PATH"])
    raise BoxError(f"there is no sluiced {' or '.join(looked)}: install its Debian package, build "
                   "it with './run build', or give --build-dir")


class LocalBox:
    """A running sluiced with one vhost-user port for each of `workers`. A context manager.

    binary    path of sluiced.
    folder    holds the configuration and the sockets; a socket's path may have 107 bytes.
    log_path  a Path; gets what sluiced prints.
    mtu       of the ports, bytes of an IP packet.

    Entering it blocks until the ports are ready, at most READY_TIMEOUT_S, and raises BoxError with
    sluiced's last lines when they are not. Leaving it stops sluiced.
    """

    def __init__(self, binary, folder, log_path, workers, mtu=1500):
        self._binary = binary
        self._mtu = mtu
        self._folder = folder
        self._log_path = log_path
        self._workers = workers
        self._child = None
        self.secret = secrets.token_hex(16)
        self.metrics_port = free_port()
        self.address = f"vhost://{ADDRESS}:{PORT}{folder}/worker{{rank}}.sock"

    def _configuration(self):
        lines = ["[appliance]", f'address = "{ADDRESS}/24"', f"port = {PORT}",
                 f'secret = "{self.secret}"', 'polling = "adaptive"', "memory_mib = 256", "",
                 "[limits]", "member_timeout_s = 10", "",
                 "[metrics]", f'address = "127.0.0.1:{self.metrics_port}"']
        for worker in range(self._workers):
            lines += ["", "[[port]]", f'name = "worker{worker}"', 'type = "vhost-user"',
                      f'path = "{self._folder}/worker{worker}.sock"', f"mtu = {self._mtu}"]
        return "\n".join(lines) + "\n"

    def log_tail(self, count=8):
        """The last lines that sluiced has printed."""
        try:
            return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""

    @property
    def pid(self):
        return self._child.pid

    @property
    def metrics_url(self):
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def top_command(self):
        """A shell command that shows this box live, also from a source tree."""
        package_parent = str(Path(__file__).resolve().parents[1])
        words = [sys.executable, "-m", "sluice", "top", f"127.0.0.1:{self.metrics_port}"]
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return (f"PYTHONPATH={shlex.quote(package_parent)} " * (package_parent in path)
                + shlex.join(words))

    def exit_text(self):
        """Empty while it runs, else how it ended."""
        status = self._child.poll()
        return "" if status is None else describe_exit(status)

    def __enter__(self):
        config = Path(self._folder) / "box.toml"
        config.touch(mode=0o600)  # it holds the secret
        config.write_text(self._configuration())
        with open(self._log_path, "wb") as log:
            self._child = Child([self._binary, "--config", str(config)], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT)
        try:
            self._await_ready()
        except BaseException:
            stop_all([self._child])
            raise
        return self

    def _await_ready(self):
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "ready:" not in self._log_path.read_text(errors="replace"):
            ended = self.exit_text()
            if ended:
                raise BoxError(f"sluiced {ended} before it was ready. Its last words "
                               f"({self._log_path}):\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BoxError(f"sluiced was not ready after {READY_TIMEOUT_S:.0f} s. Its last "
                               f"words ({self._log_path}):\n{self.log_tail()}")
            time.sleep(0.05)

    def __exit__(self, kind, value, traceback):
        stop_all([self._child])
