"""Runs PyTorch's own tests of backends, those of the installed package, over the backend 'sluice'
or over Gloo, and tells which pass:

    BACKEND=sluice python3 tests/python/conformance.py [REGULAR-EXPRESSION] > OUTCOMES

prints a line of JSON a test, [name, outcome]: "passed", "skipped: why" or "failed: why".

PyTorch asks in each test which backend it is for; it is told Gloo, whose place this backend takes.
Each rank of each test is a fork of this process, which has imported everything once. Tests run with
four ranks, those that want more with eight. A test that does not end in time, or fails on any
rank, has failed. With STAND_IN_FOLDER in the environment the appliance is the stand-in of
stand_in_box.py, else that at SLUICE_ADDRESS.
"""

import datetime
import functools
import json
import os
import re
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

from sluice.launch import free_port

RANKS, MORE_RANKS = 4, 8
LIMIT_S = 100
_GRACE_S = 3  # what the other ranks get to say when one has failed
_NAMES_ITSELF = ("test_Backend_enum_class", "test_get_backend")  # want the backend's own name
_SKIPPED = "skipped: "


class Suite:
    """PyTorch's tests, as Gloo's."""

    def __init__(self):
        os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                          TEMP_DIR=tempfile.mkdtemp(), INIT_METHOD="file://none")
        import sluice.torch  # noqa: F401 - registers the backend
        from torch.testing._internal import common_distributed
        from torch.testing._internal.distributed import distributed_test as module

        class Case(module.TestDistBackend, module.DistributedTest._DistTestBase):
            def _barrier(self, wait_for=None, **_options):
                module.Barrier.sync(wait_for, timeout=LIMIT_S)  # the machine may be busy
        self.module, self.case = module, Case
        self.names = unittest.TestLoader().getTestCaseNames(Case)
        self._skips = {skip.exit_code: skip.message
                       for skip in common_distributed.TEST_SKIPS.values()}

    def why_skipped(self, name):
        """Torch's reason to leave the test out with as many ranks as the environment has, which
        it gives before the test does anything; "" when the test runs."""
        method = getattr(self.case, name)
        if getattr(method, "__unittest_skip__", False):
            return method.__unittest_skip_why__
        case = self.case(name)
        case.rank, case.file_name = 0, "none"
        return _forked(functools.partial(self._first_words, case, name))

    def _first_words(self, case, name):
        try:
            getattr(case, name)()
        except unittest.SkipTest as skip:
            return str(skip)
        except SystemExit as end:
            return self._skips.get(end.code, "")
        except BaseException:  # noqa: BLE001 - it has begun, without a process group
            return ""

    def run_rank(self, name, backend, rank, ranks, place):
        """The outcome of one rank."""
        import torch.distributed as dist
        if "STAND_IN_FOLDER" in os.environ:
            import stand_in_box
            stand_in_box.replace_session()
        self.module.INIT_METHOD = f"file://{place}/again"
        if name in _NAMES_ITSELF:
            self.module.BACKEND = backend
        try:
            case = self.case(name)
            case.rank, case.file_name = rank, f"{place}/store"
            seconds = self.module.CUSTOM_PG_TIMEOUT.get(name, self.module.default_pg_timeout)
            dist.init_process_group(
                backend, init_method=f"file://{place}/store", rank=rank, world_size=ranks,
                timeout=datetime.timedelta(seconds=seconds))
            case._barrier()
            getattr(case, name)()
            case._barrier()
            if dist.is_initialized():
                dist.destroy_process_group()
            return "passed"
        except unittest.SkipTest as skip:
            return f"{_SKIPPED}{skip}"
        except SystemExit as end:
            return "passed" if not end.code else f"{_SKIPPED}{self._skips.get(end.code, end.code)}"
        except BaseException:  # noqa: BLE001 - told to the parent
            return f"failed: {traceback.format_exc()}"


def _forked(function, log=None):
    """What function() returns in a process of its own; "" if it does not within LIMIT_S."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open(log or os.devnull, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.write(write, function().encode())
        os._exit(0)
    os.close(write)
    _end([pid], LIMIT_S)
    with os.fdopen(read) as said:
        return said.read()


def _end(pids, limit_s):
    """Waits for these children until the limit, or some seconds after one has failed; then ends
    those that are left."""
    deadline = time.monotonic() + limit_s
    left = set(pids)
    while left and time.monotonic() < deadline:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                left.remove(pid)
                if status:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        time.sleep(0.005)
    for pid in left:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def outcome(suite, name, backend):
    """Of all ranks of a test."""
    for ranks in (RANKS, MORE_RANKS):
        os.environ["WORLD_SIZE"] = str(ranks)
        why = suite.why_skipped(name)
        if "small world size" not in why:
            break
    if why:
        return f"{_SKIPPED}{why}"
    place = Path(tempfile.mkdtemp())
    os.environ.update(TEMP_DIR=str(place), MASTER_PORT=str(free_port()))
    suite.module.initialize_temp_directories()
    suite.module.Barrier.init()
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            with open(place / f"log{rank}", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            said = suite.run_rank(name, backend, rank, ranks, place)
            (place / f"outcome{rank}").write_text(said)
            os._exit(said.startswith("failed"))
        pids.append(pid)
    _end(pids, LIMIT_S)
    told = [file.read_text() if (file := place / f"outcome{rank}").exists() else
            f"failed: rank {rank} did not end: {(place / f'log{rank}').read_text()[-400:]}"
            for rank in range(ranks)]
    return next((text for text in told if text.startswith("failed")), max(told))


def main():
    backend, pattern = os.environ.get("BACKEND", "sluice"), re.compile((sys.argv[1:] or [""])[0])
    out = os.dup(1)
    os.dup2(2, 1)  # what torch prints is no outcome
    suite = Suite()
    for name in filter(pattern.search, suite.names):
        os.write(out, f"{json.dumps([name, outcome(suite, name, backend)])}\n".encode())


if __name__ == "__main__":
    main()
