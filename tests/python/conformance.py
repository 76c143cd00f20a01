"""Runs PyTorch's own tests of backends, those of the installed package, over the backend 'sluice'
or over Gloo, and tells which pass:

    BACKEND=sluice python3 tests/python/conformance.py OUTCOMES.json [REGULAR-EXPRESSION]

PyTorch asks in each test which backend it is for; it is told Gloo, whose place this backend takes.
Each rank of each test is a fork of this process, which has imported everything once. A test that
does not end in time, or fails on any rank, has failed. With STAND_IN_FOLDER in the environment the
appliance is the stand-in of stand_in_box.py, else that at SLUICE_ADDRESS.
"""

import datetime
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

RANKS = 3
LIMIT_S = 60
_SKIPPED = "skipped: "


def _imported():
    """The class of PyTorch's tests, and its exit statuses for tests that are left out."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                      TEMP_DIR=tempfile.mkdtemp())
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed import distributed_test as suite

    class Case(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        pass
    statuses = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    return suite, Case, statuses


def _run_rank(suite, case_class, statuses, backend, name, rank, place, port):
    """The outcome of one rank: "" when it has passed."""
    import torch.distributed as dist
    import sluice.torch  # noqa: F401 - registers the backend
    if "STAND_IN_FOLDER" in os.environ:
        import stand_in_box
        stand_in_box.replace_session()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), MASTER_PORT=str(port))
    try:
        case = case_class(name)
        case.rank, case.file_name = rank, f"{place}/store"
        dist.init_process_group(backend, init_method=f"file://{place}/store", rank=rank,
                                world_size=RANKS, timeout=datetime.timedelta(seconds=LIMIT_S / 2))
        case._barrier()
        getattr(case, name)()
        case._barrier()
        if dist.is_initialized():
            dist.destroy_process_group()
        return ""
    except unittest.SkipTest as skip:
        return f"{_SKIPPED}{skip}"
    except SystemExit as end:
        return "" if not end.code else f"{_SKIPPED}{statuses.get(end.code, end.code)}"
    except BaseException:  # noqa: BLE001 - told to the parent
        return traceback.format_exc()


def _run_test(suite, case_class, statuses, backend, name):
    place = Path(tempfile.mkdtemp())
    os.environ["TEMP_DIR"] = str(place)
    suite.initialize_temp_directories()
    suite.Barrier.init()
    children, port = {}, free_port()
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            with open(place / f"log{rank}", "w") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            outcome = _run_rank(suite, case_class, statuses, backend, name, rank, place, port)
            (place / f"outcome{rank}").write_text(outcome)
            os._exit(0)
        children[pid] = rank
    deadline = time.monotonic() + LIMIT_S
    while children and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        children.pop(pid, None)
        time.sleep(0.01)
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    told = [file.read_text() if (file := place / f"outcome{rank}").exists() else
            f"did not end: {(place / f'log{rank}').read_text()[-400:]}" for rank in range(RANKS)]
    failed = [text for text in told if text and not text.startswith(_SKIPPED)]
    return failed[0] if failed else max(told)


def main():
    backend, pattern = os.environ.get("BACKEND", "sluice"), re.compile((sys.argv[2:] or [""])[0])
    suite, case_class, statuses = _imported()
    names = [name for name in unittest.TestLoader().getTestCaseNames(case_class)
             if pattern.search(name)]
    outcomes = {}
    for name in names:
        outcomes[name] = _run_test(suite, case_class, statuses, backend, name)
        word = outcomes[name].splitlines()[-1] if outcomes[name] else "passed"
        print(f"{name}: {word}"[:200], flush=True)
        Path(sys.argv[1]).write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
