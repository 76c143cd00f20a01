"""Processes that begin with torch imported: forks of one that has imported it. An import takes a
second of processor time, most of the time of a short test of a few ranks.

`Forked` is a child of the process that asks, as if it had started Python itself. The forking
process (this file as a program) reads a JSON line for each process: script, environment, log. It
forks twice, so that the kernel gives the process to the one that asked, which declares for that
moment that it takes orphans. The forking process has no thread and has imported nothing of sluice.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import subprocess
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36


class _Process:
    """What Child uses of subprocess.Popen."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class Forker:
    """Starts processes; its own ends with this one."""

    def __init__(self):
        self._parent = subprocess.Popen(
            [sys.executable, "-B", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True)

    def start(self, script, environment, log):
        """Runs the script, which appends to the log, as a leader of a group of its own."""
        asked = dict(script=str(script), environment=environment, log=str(log), parent=os.getpid())
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            print(json.dumps(asked), file=self._parent.stdin, flush=True)
            return _Process(int(self._parent.stdout.readline()))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _become(script, environment, log, parent):
    from sluice._processes import _die_with_parent

    while os.getppid() != parent:  # it is about to be ours; who dies with it must not know another
        time.sleep(0.001)
    _die_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    paths = environment["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [os.path.dirname(script), *paths, *(p for p in sys.path if p not in paths)]
    sys.argv[:] = [script]
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for ours, theirs in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(ours, theirs)
    runpy.run_path(script, run_name="__main__")


def _fork():
    """The id of the process; in the process itself, None."""
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            return None
        os.write(writer, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    return pid


def _main():
    import torch.distributed  # noqa: F401
    import torch.nn.parallel  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        pid = _fork()
        if pid is None:
            return _become(**asked)
        print(pid, flush=True)
    return None


if __name__ == "__main__":
    _main()
