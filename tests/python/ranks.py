"""Starts one process a rank for a test and collects what each of them returns.

`run(function, ...)` ships the source of a function that takes `rank` and returns something that
JSON can hold; its imports stand inside it. The processes see the launcher's environment.
"""

import functools
import inspect
import json
import os
import secrets
import signal
import textwrap
import time
from typing import NamedTuple

from forked import Forker
from sluice._processes import Child, stop_all
from sluice.launch import free_port, rank_environment

_MAIN = """
import json, os, sys
rank = int(os.environ["RANK"])
returned = {name}(rank, **json.loads(os.environ["TEST_ARGUMENTS"]))
with open(os.environ["TEST_RESULT"], "w") as file:
    json.dump(returned, file)
dist = sys.modules.get("torch.distributed")
if dist and dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
    dist.destroy_process_group()  # a thread of Gloo that outlives the interpreter ends the process
"""


class Outcome(NamedTuple):
    status: int
    value: object  # what the function returned; None if it did not
    output: str
    seconds: float


@functools.cache
def _forker():
    return Forker()


class _Rank(Child):
    """A Child that began with torch imported."""

    def __init__(self, *asked):
        self.popen = _forker().start(*asked)
        self.pid = self.popen.pid


class Ranks:
    """Running processes of one test; a context manager that leaves none behind."""

    def __init__(self, function, count, folder, *, box=None, environment=None, world_size=None,
                 arguments=None, own=None):
        """`own`: of a rank, what is in its environment alone."""
        self._folder = folder
        source = textwrap.dedent(inspect.getsource(function))
        script = folder / f"{function.__name__}.py"
        script.write_text(source + _MAIN.format(name=function.__name__))
        base = {**os.environ, "TEST_ARGUMENTS": json.dumps(arguments or {}), **(environment or {})}
        if box is not None:
            base.update(SLUICE_ADDRESS=box.address, SLUICE_SECRET=box.secret)
        base["PYTHONPATH"] = os.pathsep.join((base["PYTHONPATH"], os.path.dirname(__file__)))
        base.setdefault("SLUICE_JOB", f"{function.__name__}-{secrets.token_hex(4)}"[-60:])
        port, run_id = free_port(), secrets.token_hex(8)
        self.children, self._start = [], time.monotonic()
        self._script, self._environments = script, []
        for rank in range(count):
            env = rank_environment(base, rank=rank, local_rank=rank, local_world_size=count,
                                   world_size=world_size or count, node_rank=0,
                                   master_addr="127.0.0.1", master_port=port, run_id=run_id)
            env.setdefault("OMP_NUM_THREADS", "1")
            env["TEST_RESULT"] = str(self._result(rank))
            env.update(own(rank) if own else {})
            self._environments.append(env)
            self._log(rank).write_bytes(b"")
            self.children.append(self._child(rank))

    def _child(self, rank):
        return _Rank(self._script, self._environments[rank], self._log(rank))

    def restart(self, rank):
        """Starts the process of a rank that has ended once more; its log goes on."""
        deadline = time.monotonic() + 300
        while self.children[rank].poll() is None:
            assert time.monotonic() < deadline, f"rank {rank} still runs"
            time.sleep(0.01)
        self.children[rank] = self._child(rank)

    def _result(self, rank):
        return self._folder / f"rank{rank}.json"

    def _log(self, rank):
        return self._folder / f"rank{rank}.log"

    def output(self, rank):
        return self._log(rank).read_text(errors="replace")

    def wait_for(self, rank, text, timeout_s=300):
        """Until the rank has printed `text`."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output(rank):
            assert time.monotonic() < deadline and self.children[rank].poll() is None, (
                f"rank {rank} never printed {text!r}:\n{self.output(rank)}")
            time.sleep(0.02)

    def interrupt(self, rank):
        """Presses Ctrl-C in a rank that has come to rest, and waits up to 30 s until it has ended.
        When it was pressed, by time.time()."""
        time.sleep(0.5)
        pressed = time.time()
        self.children[rank].send(signal.SIGINT)
        while self.children[rank].poll() is None and time.time() < pressed + 300:
            time.sleep(0.02)
        return pressed

    def finish(self, timeout_s=300):
        """Waits for all; a list of Outcome, one a rank."""
        deadline = time.monotonic() + timeout_s
        ended = {}
        while len(ended) < len(self.children) and time.monotonic() < deadline:
            for rank, child in enumerate(self.children):
                if rank not in ended and child.poll() is not None:
                    ended[rank] = time.monotonic() - self._start
            time.sleep(0.02)
        outcomes = []
        for rank, child in enumerate(self.children):
            assert rank in ended, f"rank {rank} still ran after {timeout_s} s:\n" + "\n".join(
                f"--- rank {r}\n{self.output(r)}" for r in range(len(self.children)))
            value = None
            if child.poll() == 0:
                value = json.loads(self._result(rank).read_text())
            outcomes.append(Outcome(child.poll(), value, self.output(rank), ended[rank]))
        return outcomes

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        stop_all(self.children, grace_s=0.5)


def run(function, count, folder, timeout_s=300, **options):
    """Runs to the end; returns the values. Fails with the output when a rank fails."""
    with Ranks(function, count, folder, **options) as ranks:
        outcomes = ranks.finish(timeout_s)
    failed = [f"rank {rank} ended with {one.status} after {one.seconds:.2f} s:\n{one.output}"
              for rank, one in enumerate(outcomes) if one.status != 0]
    assert not failed, "\n".join(failed)
    return [outcome.value for outcome in outcomes]
