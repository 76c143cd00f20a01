"""Where the build is, and an appliance for tests that need several processes."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what tests start inherits that
BUILD = Path(os.environ.get("SLUICE_BUILD", ROOT / "build")).resolve()
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "client" / "python"),
                str(ROOT / "tests" / "lab")]
os.environ["PYTHONPATH"] = str(ROOT / "client" / "python")
os.environ.setdefault("SLUICE_LIBRARY", str(BUILD / "client" / "libsluice.so"))
for name in ("SLUICE_ADDRESS", "SLUICE_SECRET", "SLUICE_JOB", "SLUICE_RUN_ID", "SLUICE_DISABLE",
             "SLUICE_STATS", "SLUICE_POLICY", "SLUICE_K", "SLUICE_LATE", "SLUICE_TRACE",
             "SLUICE_METRICS", "SLUICE_SCHEDULE", "SLUICE_WIRE", "SLUICE_PRUNE", "SLUICE_MEMORY",
             "SLUICE_BCUBE_FILE", "SLUICE_BCUBE_LEVELS", "SLUICE_BCUBE_MODE",
             "SLUICE_BCUBE_DIGITS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR",
             "MASTER_PORT"):
    os.environ.pop(name, None)

from tiers import pytest_collection_modifyitems, pytest_configure  # noqa: E402, F401

PORTS = 4


@pytest.fixture(scope="session")
def library():
    if not Path(os.environ["SLUICE_LIBRARY"]).exists():
        pytest.skip(f"{os.environ['SLUICE_LIBRARY']} is not built")


@contextlib.contextmanager
def _running_appliance(tmp_path_factory, more="", ports=PORTS, limit=""):
    from sluice._box import LocalBox

    class Box(LocalBox):
        def _configuration(self):
            return super()._configuration().replace("[limits]", f"[limits]\n{limit}") + more

    binary = BUILD / "dataplane" / "sluiced"
    if not binary.exists():
        pytest.skip(f"{binary} is not built")
    folder = tmp_path_factory.mktemp("box")
    with Box(str(binary), folder, folder / "sluiced.log", ports) as box:
        yield box
        assert box.exit_text() == "", box.log_tail()


@pytest.fixture(scope="module")
def appliance(library, tmp_path_factory):
    """A sluiced with PORTS vhost-user ports, shared by the tests of one file."""
    with _running_appliance(tmp_path_factory) as box:
        yield box


@pytest.fixture(scope="module")
def backend_appliance(library, tmp_path_factory):
    """Another one, with twice as many ports and an eighth of 128 MiB for a job of operations, which
    is soon made."""
    with _running_appliance(tmp_path_factory, ports=2 * PORTS,
                            limit="job_memory_mib = 128") as box:
        yield box


@pytest.fixture(scope="module")
def fastest_appliance(library, tmp_path_factory):
    """Another one: its jobs complete a step with the first two ranks unless they say otherwise."""
    policy = '\n[policy]\npolicy = "fixed"\nk = 2\nlate = "requeue"\n'
    with _running_appliance(tmp_path_factory, policy) as box:
        yield box


@pytest.fixture(scope="module")
def lossy_appliance(library, tmp_path_factory):
    """Another one, whose last port loses, repeats and reorders packets."""
    fault = dict(seed=5, rx_drop=0.03, tx_drop=0.03, duplicate=0.02, reorder=0.02)
    table = "\n".join(["[port.fault]", *(f"{key} = {value}" for key, value in fault.items()), ""])
    with _running_appliance(tmp_path_factory, table) as box:
        yield box
